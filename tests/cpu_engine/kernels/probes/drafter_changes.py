"""Something happens to the drafter between the launching process and the one that loads it.

CPU_ENGINE_DRAFTER is its folder, CPU_ENGINE_CHANGE what happens as the scheduler starts:
``removed``, ``cut`` (half-written weights) or ``replaced`` (by the folder CPU_ENGINE_OTHER).
"""

import os
import shutil
from pathlib import Path
from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.managers.scheduler", _change_at_start)


def _change_at_start(module: Any) -> None:
    original = module.Scheduler.__init__

    def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        folder = Path(os.environ["CPU_ENGINE_DRAFTER"])
        match os.environ["CPU_ENGINE_CHANGE"]:
            case "removed":
                shutil.rmtree(folder)
            case "cut":
                weights = folder / "model.safetensors"
                weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
            case "replaced":
                shutil.rmtree(folder)
                shutil.copytree(os.environ["CPU_ENGINE_OTHER"], folder)
        original(scheduler, *args, **kwargs)

    module.Scheduler.__init__ = __init__
