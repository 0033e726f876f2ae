"""The plugin's change as patches for SGLang's sources.

`generate` makes a patch out of a release's sources (it needs libcst); `shipped` holds the
generated patch of every known release, and `trees` applies one to a source tree or takes it back.
"""
