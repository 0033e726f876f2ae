"""Make the target capture exactly the resolved states, whatever the release's own rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_kimi_eagle.repairs import complete_partial_sums
from sglang_kimi_eagle.states import States, show

SETTER = "set_eagle3_layers_to_capture"


class CaptureFailed(RuntimeError):
    """The target did not take the states that it must capture."""


class LayersToCapture:
    """How a model is told which states to capture; an adapter overrides what differs.

    As ``DeepseekV2ForCausalLM`` and most others do it: ``model.layers_to_capture`` holds the
    layers before which its forward captures, which are states.
    """

    def language_model(self, model: Any) -> Any:
        """Return the language model of a target: the object whose setter `StateCapture` wraps."""
        return getattr(model, "language_model", model)

    def layers(self, language_model: Any) -> Sequence[Any]:
        """Return its decoder layers: they are mended where captured states lack an all-reduce."""
        return language_model.model.layers  # type: ignore[no-any-return]

    def put(self, language_model: Any, states: States) -> None:
        """Make ``language_model`` capture exactly ``states``, which are sorted and reachable."""
        language_model.model.layers_to_capture = list(states)

    def seen(self, language_model: Any) -> Sequence[int] | None:
        """Return the states that ``language_model`` captures now; None if it captures nothing."""
        captured = getattr(language_model.model, "layers_to_capture", None)
        return captured if language_model.capture_aux_hidden_states else None


@dataclass
class StateCapture:
    """The states to be captured in this process, and the wrapper that enforces them.

    An instance wraps ``set_eagle3_layers_to_capture`` of the language model's class, for
    Kimi-K2.5 ``DeepseekV2ForCausalLM`` (every release).  The setter runs a few times while the
    model is set up, never per token.
    """

    states: States | None = None
    """None leaves SGLang's own reading alone."""
    mend_partial_sums: bool = False
    traced: States = ()
    """States that are captured beside them while a trace is taken."""
    point: LayersToCapture = field(default_factory=LayersToCapture)
    """How the target of this process is told."""

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
        if self.states is None or not _is_last_rank(target):
            return
        if self.point.seen(target) is None:
            raise CaptureFailed(
                f"{type(target).__name__} was told to capture {show(self.states)} and does not: "
                "capture_aux_hidden_states or layers_to_capture is missing"
            )
        self.point.put(target, self.states)
        if self.mend_partial_sums:
            complete_partial_sums(self.point.layers(target), self.states + self.traced)

    def differs(self, model: Any) -> str | None:
        """Tell how what a set-up ``model`` captures differs from the states; None if it does not.

        Args:
            model: the target, a wrapper or the language model itself.
        """
        if self.states is None:
            return None
        target = self.point.language_model(model)
        if not _is_last_rank(target):
            return None
        captured = self.point.seen(target)
        if captured is not None and list(captured) == list(self.states):
            return None
        return f"layers_to_capture is {captured!r}"


def _is_last_rank(language_model: Any) -> bool:
    group = getattr(language_model, "pp_group", None)
    return group is None or bool(group.is_last_rank)


def wrap_setter(cls: type, capture: StateCapture) -> None:
    """Let ``capture`` wrap the setter of ``cls``, its own or an inherited one, once.

    Raises:
        CaptureFailed: the class has no such method.
    """
    if not hasattr(cls, SETTER):
        raise CaptureFailed(f"wrap setter failed: {cls.__module__}.{cls.__name__} has no {SETTER}")
    import wrapt

    present = vars(cls).get(SETTER)
    if not (isinstance(present, wrapt.FunctionWrapper) and present._self_wrapper is capture):
        wrapt.wrap_function_wrapper(cls, SETTER, capture)
