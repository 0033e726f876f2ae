"""Any model class of SGLang that has a capture loop inside, adapted by looking at the class.

Two kinds lack the methods that EAGLE-3 needs: wrappers around a language model that has them
(`Kind.DELEGATE`), and classes that hold a bare model and compute logits themselves
(`Kind.TOWER`).  Which of the two, and by which attribute, is read from the sources; no version
is looked at, but for `PROVED`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.adapters.base import Adapter, CannotServe, Reading
from sglang_kimi_eagle.adapters.routes import (
    SETTER,
    Kind,
    Route,
    captures_before_layers,
    loop_of,
    marks_layers,
    route_of,
)
from sglang_kimi_eagle.capture import StateCapture, wrap_setter
from sglang_kimi_eagle.delegations import add_delegations, add_own_head
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.model_classes import ModelClass, ModelClasses
from sglang_kimi_eagle.releases import RELEASES, Release, SetterRule
from sglang_kimi_eagle.settings import ADAPT, Settings
from sglang_kimi_eagle.states import States
from sglang_kimi_eagle.upstream import Sources

PROVED: dict[str, tuple[str, ...]] = {
    "GlmAsrForConditionalGeneration": ("0.5.23",),
    "Qwen2AudioForConditionalGeneration": ("0.5.23",),
    "Qwen3VLForConditionalGeneration": ("0.5.9",),
}
"""Target class -> releases on which the real engine was seen to serve it with these adapters: there
they need no setting."""

STEADY = ("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "bailing_moe")
"""Modules whose setter reads every id k as h[k+1] on every release of the table."""

NO_LOOP = rule(
    "KE873",
    "no-capture-loop",
    Severity.ERROR,
    "SGLang's class of the target has no loop that captures hidden states, and neither has what it "
    "is built around. EAGLE-3 needs one; it cannot be added from outside.",
    example="SGLANG_KIMI_EAGLE_ADAPT=HunYuanVLForConditionalGeneration",
)
NO_CLASS = rule(
    "KE874",
    "no-such-class",
    Severity.ERROR,
    "The class that is to be adapted is not among SGLang's models.",
    example="SGLANG_KIMI_EAGLE_ADAPT=Qwen2AudioForConditionalGeneration on a release without it",
)
SEVERAL = rule(
    "KE875",
    "language-model-unknown",
    Severity.ERROR,
    "The target's class can be built around several language models, which do not capture states "
    "alike, and its config does not name one that can capture.",
    example="An InternVLChatModel with InternLM2, which has no capture loop.",
)
LACKS = rule(
    "KE876",
    "target-lacks-methods",
    Severity.WARNING,
    "EAGLE3 is asked for with a target whose class lacks methods that it needs. SGLang fails on "
    "it after all weights are loaded. The plugin can add them, on request: nobody has tried it "
    "with this class on this release.",
    example="--speculative-algorithm EAGLE3 with KimiVLForConditionalGeneration",
)
CHANGED = rule(
    "KE877",
    "language-model-changed",
    Severity.ERROR,
    "The target was built around a language model that cannot capture states.",
    example="DeepSeek-VL2-tiny, whose language model has no capture loop.",
)


NOT_SERVED = rule(
    "KE879",
    "target-not-served",
    Severity.NOTE,
    "No adapter is for the target's class, so the plugin leaves its launches alone. What is said "
    "of states and ids here holds for Kimi-K2.5.",
    example="sglang-kimi-eagle doctor DRAFTER --target meta-llama/Llama-3.1-8B-Instruct",
)


class Wrapper(Adapter):
    """One class, adapted as its sources say."""

    def __init__(self, architecture: str) -> None:
        self.name = architecture
        self.architectures = (architecture,)
        self.proved = PROVED.get(architecture, ())
        self._route: Route | None = None

    def module_of(self, architecture: str) -> str:
        """Return the module that the sources have it in."""
        assert self._route is not None
        return self._route.cls.module

    def missing(self, sources: Sources, architecture: str) -> tuple[str, ...]:
        """Return what the class and its bases lack."""
        route = self._find(sources)
        return route.missing if route is not None else upstream.METHODS

    def read(
        self, sources: Sources, architecture: str, config: Mapping[str, Any] | None
    ) -> Reading:
        """Read the setter and the loop of the language model that the config asks for.

        Raises:
            CannotServe: KE003, KE873, KE874 or KE875.
        """
        route = self._find(sources)
        if route is None:
            raise CannotServe([_no_class(sources, architecture)])
        if route.kind is Kind.NONE:
            raise CannotServe([_no_loop(sources, route)])
        candidates = _asked_for(route, self.text_config(config) if config is not None else {})
        if not candidates:
            raise CannotServe([_several(sources, route)])
        readings = {self._read_one(sources, route, inner) for inner in candidates}
        if len(readings) > 1:
            raise CannotServe([_several(sources, route)])
        return readings.pop()

    def readings(self, release: Release) -> Mapping[str, Release]:
        """Return the releases whose setter is known to be this one's; else two conventions."""
        if self._route is None:
            return {release.version: release}
        modules = {_setter_module(inner) for inner in self._route.capable}
        if modules == {upstream.DEEPSEEK_MODULE}:
            return RELEASES
        if modules <= {f"sglang.srt.models.{name}" for name in STEADY}:
            return dict.fromkeys(RELEASES, release)
        other = (
            SetterRule.ALWAYS_INPUT
            if release.setter_rule is SetterRule.ALWAYS_OUTPUT
            else SetterRule.ALWAYS_OUTPUT
        )
        return {
            f"SGLang {release.version}": release,
            "another reader": dataclasses.replace(release, setter_rule=other),
        }

    def install(self, architecture: str, capture: StateCapture) -> tuple[str, ...]:
        """Add what the class lacks, and wrap the setter that puts states in place."""
        route = self._route
        assert route is not None
        cls = getattr(importlib.import_module(route.cls.module), architecture)
        if route.kind is Kind.DELEGATE:
            for inner in route.capable:
                wrap_setter(_imported(inner), capture)
            _see_what_is_built(cls, route)
            return add_delegations(cls, route.attribute)
        added = add_own_head(cls, route.attribute) if route.kind is Kind.TOWER else ()
        wrap_setter(cls, capture)
        return added

    def language_model(self, model: Any) -> Any:
        """Return what the wrapper delegates to; a class with its own head is it itself."""
        route = self._route
        if route is None or route.kind is not Kind.DELEGATE:
            return model
        return getattr(model, route.attribute)

    def layers(self, language_model: Any) -> Sequence[Any]:
        """Return the decoder layers of the model with the capture loop."""
        return self._tower(language_model).layers  # type: ignore[no-any-return]

    def put(self, language_model: Any, states: States) -> None:
        """Name the states to the model that holds the layers, and mark those where it does so."""
        tower = self._tower(language_model)
        if hasattr(tower, SETTER):
            # Its own setter marks layers, and leaves earlier marks.
            for layer in tower.layers:
                if getattr(layer, "_is_layer_to_capture", False):
                    layer._is_layer_to_capture = False
            tower.set_eagle3_layers_to_capture(list(states))
        else:
            tower.layers_to_capture = list(states)

    def seen(self, language_model: Any) -> list[int] | None:
        """Return the states named, unless the marks on the layers are others."""
        tower = self._tower(language_model)
        named = getattr(tower, "layers_to_capture", None)
        if named is None or not language_model.capture_aux_hidden_states:
            return None
        if not hasattr(tower, SETTER):
            return list(named)
        return [
            index
            for index, layer in enumerate(tower.layers)
            if getattr(layer, "_is_layer_to_capture", False)
        ]

    def _tower(self, language_model: Any) -> Any:
        route = self._route
        own = route is not None and route.kind is Kind.TOWER
        return getattr(language_model, route.attribute if own and route else "model")

    def _find(self, sources: Sources) -> Route | None:
        if self._route is None:
            cls = ModelClasses(sources).find(self.name)
            self._route = route_of(cls) if cls is not None else None
        return self._route

    def _read_one(self, sources: Sources, route: Route, inner: ModelClass) -> Reading:
        found = loop_of(inner)
        rule_found = SetterRule.ALWAYS_OUTPUT
        if route.kind is not Kind.TOWER:
            known = upstream.setter_rule(inner.method(SETTER))
            if known is None:
                raise CannotServe([_unknown(sources, inner)])
            rule_found = known
        if found is None or not captures_before_layers(found[1]):
            raise CannotServe([_unknown(sources, inner)])
        cls, forward = found
        inline = upstream.captures_inline(forward) or False
        tree = sources.tree(cls.module)
        setter = inner.method(SETTER)
        return Reading(
            setter_rule=rule_found,
            captures_embedding=not inline or upstream.sums_are_guarded(forward),
            partial_sums=inline
            and not marks_layers(forward)
            and tree is not None
            and upstream.defers_all_reduce(tree)
            and not (setter is not None and upstream.completes_sums(setter)),
        )


def adapter_for(architecture: str, settings: Settings, version: str | None) -> Wrapper | None:
    """Return the adapter of a class that was asked for, or proved on this release; else None."""
    if architecture in settings.adapt or version in PROVED.get(architecture, ()):
        return Wrapper(architecture)
    return None


def hint(architecture: str, installation: upstream.Installation) -> list[Diagnostic]:
    """Say that the class of a target lacks methods for EAGLE-3, if it does and can get them."""
    sources = Sources(installation.package, installation.version)
    cls = ModelClasses(sources).find(architecture) if architecture else None
    route = route_of(cls) if cls is not None else None
    if route is None or not route.lacking or route.kind not in (Kind.DELEGATE, Kind.TOWER):
        return []
    return [
        LACKS.found(
            f"{architecture} has no {', '.join(route.missing)}.",
            where=f"sglang {installation.version}, {sources.path(route.cls.module)}",
            seen=f"a capture loop in {', '.join(inner.name for inner in route.capable)}, "
            f"by {route.attribute}",
            leads_to="SGLang fails after it has loaded all weights.",
            mend=f"Set {ADAPT}={architecture} to have them added, and compare the acceptance "
            "length with what the drafter reaches elsewhere.",
        )
    ]


def not_served(architecture: str, where: str) -> Diagnostic:
    """Build the finding of a target that the plugin leaves alone."""
    return NOT_SERVED.found(
        f"The target's class is none that the plugin serves: {architecture or 'not named'}.",
        where=f"{where}, config.json, architectures",
        seen=architecture,
        leads_to="A launch with it is left alone; states are given as for Kimi-K2.5.",
        mend=f"If SGLang's class has a capture loop inside, set {ADAPT}; `sglang-kimi-eagle sweep` "
        "tells.",
    )


def _asked_for(route: Route, text: Mapping[str, Any]) -> tuple[ModelClass, ...]:
    """Return those of the capable classes that the config's own architectures leave."""
    if not route.others and len(route.capable) == 1:
        return route.capable
    named = text.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    every = {inner.name for inner in (*route.capable, *route.others)}
    if not every & set(names):
        return route.capable
    return tuple(inner for inner in route.capable if inner.name in names)


def _see_what_is_built(cls: type, route: Route) -> None:
    """Refuse, before weights are read, a wrapper that was built around another language model."""
    import wrapt

    if isinstance(vars(cls).get("__init__"), wrapt.FunctionWrapper):
        return

    def build(
        wrapped: Callable[..., None], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        wrapped(*args, **kwargs)
        inner = getattr(model, route.attribute, None)
        if inner is not None and not hasattr(inner, SETTER):
            raise CannotServe(
                [
                    CHANGED.found(
                        f"{cls.__name__} was built around {type(inner).__name__}.",
                        where=cls.__module__,
                        seen=f"no {SETTER}; {_names(route.capable)} would have it",
                        leads_to="No states can be captured for the drafter.",
                        mend="Serve this target without EAGLE3.",
                    )
                ]
            )

    wrapt.wrap_function_wrapper(cls, "__init__", build)


def _imported(inner: ModelClass) -> type:
    found: type = getattr(importlib.import_module(inner.module), inner.name)
    return found


def _setter_module(inner: ModelClass) -> str:
    for cls in inner.lineage:
        if any(isinstance(node, ast.FunctionDef) and node.name == SETTER for node in cls.node.body):
            return cls.module
    found = loop_of(inner)
    return found[0].module if found is not None else inner.module


def _names(classes: Iterable[ModelClass]) -> str:
    return ", ".join(cls.name for cls in classes) or "nothing"


def _no_class(sources: Sources, architecture: str) -> Diagnostic:
    return NO_CLASS.found(
        f"SGLang {sources.version} has no model class {architecture}.",
        where=f"environment, {ADAPT}",
        seen=f"no such class below {sources.package / 'srt' / 'models'}",
        leads_to="The target cannot be adapted.",
        mend=f"Leave it out of {ADAPT}, or use a release that has it.",
    )


def _no_loop(sources: Sources, route: Route) -> Diagnostic:
    held = sorted({inner.name for classes in route.cls.holds.values() for inner in classes})
    return NO_LOOP.found(
        f"{route.cls.name} has no loop that captures hidden states.",
        where=f"sglang {sources.version}, {sources.path(route.cls.module)}",
        seen=f"built around {', '.join(held) or 'no other model class'}",
        leads_to="EAGLE3 cannot be served with this target.",
        mend="Use a release whose model captures states, or serve without EAGLE3.",
    )


def _several(sources: Sources, route: Route) -> Diagnostic:
    return SEVERAL.found(
        f"Which language model {route.cls.name} gets is not known, or it cannot capture.",
        where=f"sglang {sources.version}, {sources.path(route.cls.module)}",
        seen=f"can capture: {_names(route.capable)}; cannot: {_names(route.others)}",
        leads_to="The states that would be captured are not known.",
        mend="Name the language model in `architectures` of the config's part for it, if it is "
        "one of the first.",
    )


def _unknown(sources: Sources, inner: ModelClass) -> Diagnostic:
    return upstream.unknown_rule(
        sources,
        inner.module,
        f"the setter or the loop of {inner.name} is none that is known",
    )
