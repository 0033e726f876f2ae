"""The recorder of ``benchmarks/gpu``, which a GPU server loads as its own start-up module."""

import sys
from pathlib import Path


def register() -> None:
    sys.path.append(str(Path(__file__).resolve().parents[4] / "benchmarks" / "gpu" / "recording"))
    import target_forwards

    target_forwards.register()
