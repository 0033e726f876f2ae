"""Virtual environments with the wheel in them, for tests of what happens at start-up."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Environment:
    """A fresh virtual environment that sees the dependencies of this one."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def pip(self, *arguments: str) -> None:
        """Run pip on this environment."""
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", *arguments],
            check=True,
        )

    def run(
        self, code: str, *flags: str, environ: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of Python in this environment."""
        return subprocess.run(
            [self.python, *flags, "-c", code],
            capture_output=True,
            text=True,
            # Away from the checkout, whose package `-c` would import instead of the installed one.
            cwd=self.folder,
            env={**os.environ, **(environ or {})},
        )


def package_standing_in_for_sglang(site: Path, *, framework: bool) -> None:
    """Write an empty package ``sglang``, with or without SGLang's plugin framework."""
    folder = site / "sglang" / "srt"
    folder.mkdir(parents=True)
    (site / "sglang" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    if framework:
        (folder / "plugins").mkdir()
        (folder / "plugins" / "__init__.py").write_text("")
