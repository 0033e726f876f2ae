"""What the checks say of a checkpoint."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from drafter_files import Checkpoint, tiny_target
from sglang_kimi_eagle.checks import Context, run_checks
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity
from sglang_kimi_eagle.drafter import UnreadableDrafter, read_drafter
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.target import target_of

LAUNCH = "--model-path kimi --speculative-algorithm EAGLE3 --speculative-draft-model-path drafter"


def judge(
    checkpoint: Checkpoint | Path | None,
    *,
    release: str = "0.5.23",
    target: dict[str, Any] | None = None,
    launch: str | None = LAUNCH,
    settings: Settings | None = None,
    environ: dict[str, str] | None = None,
    notes: bool = False,
) -> list[Diagnostic]:
    """Check a drafter on a release, with the tiny target unless told; notes only if asked for."""
    with tempfile.TemporaryDirectory() as folder:
        drafter = None
        if checkpoint is not None:
            location = (
                checkpoint if isinstance(checkpoint, Path) else checkpoint.write(Path(folder) / "d")
            )
            try:
                drafter = read_drafter(str(location))
            except UnreadableDrafter as problem:
                return list(problem.findings)
        arguments = (
            None
            if launch is None
            else ServerArguments.from_command_line(launch.split(), environ or {})
        )
        findings = run_checks(
            Context(
                drafter,
                target_of(tiny_target() if target is None else target, "kimi"),
                arguments,
                RELEASES[release],
            ),
            settings or Settings(),
        )
        return [f for f in findings if notes or f.severity is not Severity.NOTE]


def codes(*args: Any, **kwargs: Any) -> list[str]:
    """Return the codes of what `judge` finds."""
    return sorted({finding.code for finding in judge(*args, **kwargs)})


def changed(checkpoint: Checkpoint, **config: Any) -> Checkpoint:
    """Return a copy with other config values; ... removes a key."""
    result = copy.deepcopy(checkpoint)
    for key, value in config.items():
        if value is ...:
            result.config.pop(key, None)
        else:
            result.config[key] = value
    return result
