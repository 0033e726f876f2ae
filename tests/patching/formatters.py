"""What SGLang's pre-commit hooks say about Python sources, at the versions that they run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cpu_engine.releases import since

RUFF_FORMAT = "0.5.20"
"""The first release whose sources are formatted by ruff; those before are by black and isort."""

_OLD = (
    ("black", "--check"),
    ("isort", "--check", "--profile=black", "--project=sglang"),
)
_NEW = (
    ("ruff", "format", "--check", "--isolated"),
    (
        *("ruff", "check", "--output-format=concise", "--isolated", "--select=I"),
        '--config=lint.isort.known-first-party=["sglang"]',
    ),
)
_WORDS = "ans,als,hel,boostrap,childs,te,vas,hsa,ment,cann,thi,makro,wil,rouge,PRIS"
_ALWAYS = (
    ("ruff", "check", "--output-format=concise", "--isolated", "--select=F401,F821"),
    ("codespell_lib", f"--ignore-words-list={_WORDS}"),
)


def complaints(checkout: Path, paths: Sequence[str], version: str) -> set[tuple[str, str]]:
    """Return (tool, path) for every tool of a release that objects to a file."""
    found = set()
    for name, *options in (*(_NEW if since(version, RUFF_FORMAT) else _OLD), *_ALWAYS):
        words = [sys.executable, "-m", name, *options, *paths]
        done = subprocess.run(words, cwd=checkout, capture_output=True, text=True)
        said = done.stdout + done.stderr
        objected = {(name, path) for path in paths if path in said}
        # A tool that fails without naming a file did not run.
        assert objected or done.returncode == 0, said
        found |= objected
    return found
