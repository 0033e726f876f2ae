"""Start-up hook for SGLang 0.5.9 and 0.5.10.x, which have no plugin framework.

Run by ``sglang_kimi_eagle.pth`` at every interpreter start.  It imports nothing
but ``sys`` and leaves one finder on ``sys.meta_path`` that fires on the first
``import sglang``; only then is the package itself imported.
"""

import sys


class SglangImportTrigger:
    """A finder that finds nothing: it only notices the first import of sglang."""

    armed = True

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Activate the plugin when ``name`` is ``sglang``; always return None."""
        if name == "sglang" and cls.armed:
            cls.armed = False
            try:
                from sglang_kimi_eagle.entry import activate

                activate(found_by="start-up hook")
            except Exception as error:
                sys.stderr.write(f"sglang-kimi-eagle: start-up hook failed: {error!r}\n")
        return None


if "sglang" in sys.modules:  # by a .pth that came before
    SglangImportTrigger.find_spec("sglang")
else:
    # `site` runs every .pth twice in a virtual environment; a module is run once.
    sys.meta_path.insert(0, SglangImportTrigger)
