"""What the launching process ends with when a scheduler was refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Shaped as SGLang's: the process that waits has the schedulers in a list of that name.
WAITING = """
import sys
from multiprocessing import get_context
from sglang_kimi_eagle.exit_status import pass_on

def wait_for_schedulers(scheduler_procs):
    for process in scheduler_procs:
        process.join()
    raise EOFError

if __name__ == "__main__":
    pass_on()
    pass_on()
    process = get_context("fork").Process(target=sys.exit, args=(int(sys.argv[1]),))
    process.start()
    wait_for_schedulers([process])
"""


@pytest.mark.parametrize(("scheduler", "launcher"), [(3, 3), (1, 1), (-9 % 256, 1)])
def test_a_refusal_is_passed_on_and_nothing_else(
    tmp_path: Path, scheduler: int, launcher: int
) -> None:
    script = tmp_path / "launch.py"
    script.write_text(WAITING)
    done = subprocess.run(
        [sys.executable, script, str(scheduler)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == launcher
    assert ("EOFError" in done.stderr) == (launcher != 3)
