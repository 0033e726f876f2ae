"""What the measuring commands need beside the plugin: torch, never installed by it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

if TYPE_CHECKING:
    import torch

NO_TORCH = rule(
    "KE810",
    "measure-no-torch",
    Severity.ERROR,
    "Comparing or scoring hidden states needs torch, and numpy for some of it. An environment with "
    "SGLang has both; elsewhere they come with the extra `measure`. The plugin itself depends on "
    "neither, so that installing it never changes a server's torch.",
    example="sglang-kimi-eagle identify DUMP --trace TRACE, in an environment without torch",
)


class CannotMeasure(Exception):
    """A measurement that this environment cannot make; ``finding`` says why."""

    def __init__(self, finding: Diagnostic) -> None:
        super().__init__(finding.message)
        self.finding = finding


def require_torch() -> None:
    """Do nothing where torch can be imported.

    Raises:
        CannotMeasure: it is not installed, or its import fails.
    """
    if find_spec("torch") is None:
        raise CannotMeasure(_no_torch("there is no module named torch"))
    try:
        import torch  # noqa: F401
    except Exception as error:  # a broken build fails in many ways
        raise CannotMeasure(_no_torch(f"importing torch fails: {error}")) from error


def all_finite(values: torch.Tensor) -> bool:
    """Tell whether floats of any shape and dtype have neither NaN nor infinity among them."""
    if not values.numel():
        return True
    # NaN is both; unlike isfinite() it makes no second tensor of a large one.
    low, high = values.aminmax()
    return bool(low.isfinite() and high.isfinite())


def _no_torch(seen: str) -> Diagnostic:
    return NO_TORCH.found(
        "torch is needed for this command and cannot be imported.",
        where="the Python environment of this command",
        seen=seen,
        mend="Run it in the environment of SGLang, or pip install 'sglang-kimi-eagle[measure]'.",
    )
