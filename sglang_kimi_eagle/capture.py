"""Make the target capture exactly the resolved states, whatever the release's own rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_kimi_eagle.repairs import complete_partial_sums
from sglang_kimi_eagle.states import States, show


class CaptureFailed(RuntimeError):
    """The target did not take the states that it must capture."""


@dataclass
class StateCapture:
    """The states to be captured in this process, and the wrapper that enforces them.

    An instance wraps ``DeepseekV2ForCausalLM.set_eagle3_layers_to_capture`` (every release).  The
    setter runs a few times while the model is set up, never per token.
    """

    states: States | None = None
    """None leaves SGLang's own reading alone."""
    mend_partial_sums: bool = False
    traced: States = ()
    """States that are captured beside them while a trace is taken."""

    def __call__(
        self,
        setter: Callable[..., None],
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Run SGLang's setter, then put the resolved states in place.

        Also mends defect A (0.5.9 - 0.5.10.post1, ``cuda_graph_runner.py``): there the setter is
        called again without ids before graphs are captured, and would fall back to the default
        states; here every call ends in the resolved ones.

        Raises:
            CaptureFailed: the target's attributes are not those of any known release.
        """
        setter(*args, **kwargs)
        if self.states is None or not target.pp_group.is_last_rank:
            return
        model = target.model
        if not target.capture_aux_hidden_states or not hasattr(model, "layers_to_capture"):
            raise CaptureFailed(
                f"{type(target).__name__} was told to capture {show(self.states)} and does not: "
                "capture_aux_hidden_states or layers_to_capture is missing"
            )
        # DeepseekV2Model.forward captures before layer i: its indices are states.
        model.layers_to_capture = list(self.states)
        if self.mend_partial_sums:
            complete_partial_sums(model.layers, self.states + self.traced)

    def differs(self, model: Any) -> str | None:
        """Tell how what a set-up ``model`` captures differs from the states; None if it does not.

        Args:
            model: the target, a wrapper with ``language_model`` or the language model itself.
        """
        if self.states is None:
            return None
        target = getattr(model, "language_model", model)
        if not target.pp_group.is_last_rank:
            return None
        captured = getattr(target.model, "layers_to_capture", None)
        if captured == list(self.states) and target.capture_aux_hidden_states:
            return None
        return f"layers_to_capture is {captured!r}"
