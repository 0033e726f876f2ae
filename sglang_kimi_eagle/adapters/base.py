"""What an adapter has to say of its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_kimi_eagle.capture import LayersToCapture, StateCapture
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.releases import Release, SetterRule

if TYPE_CHECKING:
    from sglang_kimi_eagle.checks.context import Context
    from sglang_kimi_eagle.upstream import Reliance, Sources

_TEXT_CONFIGS = (
    ("text_config",),
    ("language_config",),
    ("llm_config",),
    ("thinker_config", "text_config"),
)


BROKEN_ADAPTER = rule(
    "KE872",
    "adapter-failed",
    Severity.ERROR,
    "The adapter that knows this target failed. Without it the plugin does not know which states "
    "would be captured, so the launch is refused.",
    example="An adapter of another package whose `read` raises.",
)


class CannotServe(Exception):
    """The target cannot be served on this SGLang; `findings` say why, with a code."""

    def __init__(self, findings: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(finding.render() for finding in findings))
        self.findings = tuple(findings)


class Reading(NamedTuple):
    """What an SGLang does with the layer ids of a target, as its sources say.

    On a release that lacks the setter it is what the setter that the adapter adds does.
    """

    setter_rule: SetterRule
    """How ``set_eagle3_layers_to_capture`` turns ids into states."""
    captures_embedding: bool
    """h[0] can be captured."""
    captures_last: bool = False
    """h[n], the last layer's output before the final norm, can be captured."""
    partial_sums: bool = False
    """A captured state may lack its all-reduce, and `StateCapture` has to mend it (defect B)."""


class Adapter(LayersToCapture):
    """One target model: its classes in SGLang, and how h[k] is captured there.

    Subclass it and override what differs; a package brings instances by the hook
    ``kimi_eagle_adapters``.  The methods of the first group read sources or configs and import
    nothing of SGLang; those of the second run in the process that loads the model.

    How a model is told to capture (`language_model`, `put`, `seen`) is inherited from
    `LayersToCapture`: ``<wrapper>.language_model.model.layers_to_capture``, whose numbers are
    states.
    """

    name: str = ""
    """Of the target, for people: ``Kimi-K2.5``."""
    architectures: tuple[str, ...] = ()
    """The target's classes in SGLang, as ``architectures`` of its config names them: a launch
    whose config names one of them concerns the adapter."""
    model_types: tuple[str, ...] = ()
    """``model_type`` of its configs."""
    family: str = ""
    """A word, in lower case, in every hub name of the target: a drafter whose config names a base
    model without it is warned about (KE604).  Empty: nothing is said."""
    proved: tuple[str, ...] = ()
    """The SGLang releases on which a test has served it in the real engine."""
    table: Mapping[str, Release] = {}
    """What its releases are known to do; sources that differ are noted (KE005)."""
    checks: tuple[Callable[[Context], Iterable[Diagnostic]], ...] = ()
    """Checks that are made for this target only, beside those made for every target."""

    # Reading, in the launching process and in tools.

    def module_of(self, architecture: str) -> str:
        """Return the module of a class: ``sglang.srt.models.kimi_k25``."""
        raise NotImplementedError

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of a decoded ``config.json`` that describes the language model.

        The number of layers, the width and the vocabulary are read there.
        """
        return text_config(config)

    def reliances(self, architecture: str) -> tuple[Reliance, ...]:
        """Return what of SGLang's sources is relied on beside the engine itself.

        Each is looked for before a launch; one that is missing refuses it (KE001).
        """
        return ()

    def missing(self, sources: Sources, architecture: str) -> tuple[str, ...]:
        """Return those of `upstream.METHODS` that the class lacks in these sources."""
        raise NotImplementedError

    def read(
        self, sources: Sources, architecture: str, config: Mapping[str, Any] | None
    ) -> Reading:
        """Read what this SGLang does with layer ids.

        Args:
            sources: the parsed SGLang.
            architecture: one of `architectures`.
            config: the target's decoded config; None when there is none (a report on an
                environment).

        Raises:
            CannotServe: the sources are not understood, or the target cannot be served; the
                launch is refused with its findings.
        """
        raise NotImplementedError

    def readings(self, release: Release) -> Mapping[str, Release]:
        """Return who reads layer ids how, where a drafter does not say what its ids mean.

        Ids that all of them read as the same states are taken so; others are ambiguous (KE210).

        Args:
            release: the behaviour of the running release for this target.

        Returns:
            who reads (a version of the table, or words) -> its behaviour.
        """
        return {release.version: release}

    # Acting, in the process that loads the model, before it is built.

    def install(self, architecture: str, capture: StateCapture) -> tuple[str, ...]:
        """Put everything in place on SGLang's classes, which may be imported here.

        Called once in a process, before the model is built.  It must

        - add those of the three methods that the class lacks (`delegations.add_delegations`);
        - see that ``capture`` wraps the setter of the class of the language model, with
          ``wrapt.wrap_function_wrapper(cls, "set_eagle3_layers_to_capture", capture)``: after
          every call of that setter ``capture`` calls `put` with the resolved states, if there are
          any.

        Returns:
            the names of the added methods.

        Raises:
            Exception: anything; the launch is refused with KE006 before weights are read.
        """
        raise NotImplementedError


def broken_adapter(adapter: Adapter, error: Exception) -> Diagnostic:
    """Build the finding of an adapter that raised."""
    return BROKEN_ADAPTER.found(
        f"The adapter for {adapter.name} failed.",
        where=f"{type(adapter).__module__}.{type(adapter).__qualname__}",
        seen=f"{type(error).__name__}: {error}"[:300],
        leads_to="What SGLang would capture for the drafter is not known.",
        mend="Upgrade or uninstall the package that brings it.",
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model; the whole, if no part does."""
    for path in _TEXT_CONFIGS:
        found: Any = config
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return config
