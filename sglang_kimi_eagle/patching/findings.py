"""What can go wrong with a patch, and the exception that carries it to the command."""

from __future__ import annotations

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.releases import NEWEST, OLDEST

NO_TREE = rule(
    "KE701",
    "patch-no-tree",
    Severity.ERROR,
    "The folder holds no SGLang sources that can be read: neither a checkout "
    "(`python/sglang/srt`), nor a `site-packages` (`sglang/srt`), nor the package itself (`srt`).",
    example="sglang-kimi-eagle patch --check /tmp",
)
UNKNOWN_TREE = rule(
    "KE702",
    "patch-tree-unknown",
    Severity.ERROR,
    "The files that a patch would change are not, byte for byte, those of a release. A patch that "
    "is made to fit by searching for a similar place can land in the wrong one, so it is refused.",
    example="sglang-kimi-eagle patch --apply-to a checkout of SGLang between two releases",
)
MIXED_TREE = rule(
    "KE703",
    "patch-tree-mixed",
    Severity.ERROR,
    "Some files of the tree are patched and others are as released. `--apply-to` patches the rest, "
    "and `--undo` takes the part back: each file is, byte for byte, one or the other.",
    example="sglang-kimi-eagle patch --check, after --apply-to was killed half-way",
)
NO_ANCHOR = rule(
    "KE704",
    "patch-no-anchor",
    Severity.ERROR,
    "The place in SGLang's sources where the patch has to change something was not found, or found "
    f"more than once. Every release from {OLDEST} to {NEWEST} has it exactly once.",
    example="sglang-kimi-eagle patch --from an SGLang whose ModelRunner no longer reads layer ids",
)
NO_LIBCST = rule(
    "KE705",
    "patch-no-libcst",
    Severity.ERROR,
    "Generating a patch from sources rewrites them with libcst, which is not installed.",
    example="sglang-kimi-eagle patch --from DIR, in an environment without libcst",
)
NO_PATCH = rule(
    "KE706",
    "patch-not-shipped",
    Severity.ERROR,
    "There is no patch for this release.",
    example="sglang-kimi-eagle patch --sglang 0.5.8",
)
NOT_APPLIED = rule(
    "KE707",
    "patch-not-applied",
    Severity.WARNING,
    "The tree is the release as published: the patch applies to it and is not applied.",
    example="sglang-kimi-eagle patch --check a fresh checkout",
)
NOT_WRITTEN = rule(
    "KE708",
    "patch-not-written",
    Severity.ERROR,
    "The tree could not be written. What had been replaced was put back, so that it is as before; "
    "where that failed too, the message says so.",
    example="sglang-kimi-eagle patch --apply-to a folder without write permission",
)
OUTPUT_NOT_WRITTEN = rule(
    "KE709",
    "patch-output-not-written",
    Severity.ERROR,
    "The file that a patch was to be written to cannot be written.",
    example="sglang-kimi-eagle patch --sglang 0.5.9 -o a file in a folder that does not exist",
)


class PatchRefused(Exception):
    """A patch that cannot be made, applied or taken back; nothing was changed."""

    def __init__(self, *findings: Diagnostic) -> None:
        super().__init__(findings[0].message)
        self.findings = findings
