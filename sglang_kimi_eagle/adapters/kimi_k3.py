"""Kimi-K3: a wrapper, and the language model alone, which both lack the three methods.

Its layers come in blocks.  A block adds up its own outputs (the *prefix*); what finished blocks
added up stays in a bank; a sublayer reads a softmax *mixture* of bank and prefix.  EAGLE-3
drafters of Kimi-K3 are trained on the prefix: h[k] is the prefix after k layers.  What SGLang
captures after a layer for DSPARK and DFlash drafters is the mixture that the next layer reads, of
the same shape and type.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.adapters.base import Adapter, CannotServe, Reading
from sglang_kimi_eagle.adapters.kimi_k3_methods import (
    LanguageMethods,
    WrapperMethods,
    prefix_of_stream,
    prefix_of_tensors,
)
from sglang_kimi_eagle.capture import SETTER, StateCapture, wrap_setter
from sglang_kimi_eagle.checks.kimi_k3 import CHECKS, MIXTURE
from sglang_kimi_eagle.releases import RELEASES, Release, SetterRule
from sglang_kimi_eagle.states import Convention, States, ids_of
from sglang_kimi_eagle.upstream import Reliance, Sources

K3_MODULE = "sglang.srt.models.kimi_k3"
WRAPPER = "KimiK3ForConditionalGeneration"
LANGUAGE = "KimiK3LinearForCausalLM"
TRUNK = "KimiK3LinearModel"
CAPTURE = "_dspark_capture_stream"
MARK = "captures_prefix"
"""Set on a `TRUNK` that captures the prefix in place of the mixture."""

PROVED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")

_PREFIXES: Mapping[tuple[str, ...], Callable[..., Any]] = {
    ("self", "layer_idx", "hidden_states", "forward_batch"): prefix_of_stream,
    ("self", "layer_idx", "hidden_states", "residual", "attn_res"): prefix_of_tensors,
}
"""Parameters of `CAPTURE` -> the function that gives the prefix from them."""


class Store(NamedTuple):
    """Where a setter of SGLang's own keeps what it was told, on the `TRUNK`."""

    attribute: str
    shift: int
    """Added to a state to get what is kept."""
    mixture: bool = False
    """What is captured is the mixture."""

    def write(self, trunk: Any, states: Sequence[int]) -> None:
        """Keep ``states``."""
        kept = [state + self.shift for state in states]
        now = getattr(trunk, self.attribute, None)
        setattr(trunk, self.attribute, tuple(kept) if isinstance(now, tuple) else kept)

    def read(self, trunk: Any) -> list[int] | None:
        """Return the states that are kept; None if there are none."""
        kept = getattr(trunk, self.attribute, None)
        return None if kept is None else [index - self.shift for index in kept]


OWN = Store("dspark_layers_to_capture", -1)
"""Where the setter that this adapter adds keeps zero-based layers, after which is captured."""


class KimiK3(Adapter):
    """``KimiK3ForConditionalGeneration`` and ``KimiK3LinearForCausalLM``, 0.5.17 and later."""

    name = "Kimi-K3"
    architectures = (WRAPPER, LANGUAGE)
    model_types = ("kimi_k3", "kimi_linear")
    family = "k3"
    proved = PROVED
    checks = CHECKS
    table: Mapping[str, Release] = {
        version: dataclasses.replace(
            RELEASES[version],
            wrapper_methods=False,
            setter_rule=SetterRule.ALWAYS_INPUT,
            captures_embedding=False,
            captures_last=True,
        )
        for version in PROVED
    }

    def __init__(self) -> None:
        self._store = OWN

    def module_of(self, architecture: str) -> str:
        """Return the module of both classes."""
        return K3_MODULE

    def reliances(self, architecture: str) -> tuple[Reliance, ...]:
        """Name both classes, and what of the trunk captures after a layer."""
        return (
            Reliance(K3_MODULE, (WRAPPER,), "the class that gets the three methods"),
            Reliance(
                K3_MODULE,
                (f"{LANGUAGE}.set_dspark_layers_to_capture",),
                "to make the target capture states",
            ),
            Reliance(K3_MODULE, (f"{TRUNK}.{CAPTURE}",), "the place where a state is captured"),
            Reliance(K3_MODULE, (f"{TRUNK}.forward",), "the loop that captures states"),
        )

    def missing(self, sources: Sources, architecture: str) -> tuple[str, ...]:
        """Return the methods that are not in the class itself: it has no base with them."""
        return tuple(
            name
            for name in upstream.METHODS
            if sources.find(K3_MODULE, f"{architecture}.{name}") is None
        )

    def read(
        self, sources: Sources, architecture: str, config: Mapping[str, Any] | None
    ) -> Reading:
        """Read the release's own setter, if it has one, and else how it captures after a layer.

        Raises:
            CannotServe: neither is known, or the setter makes the target capture the mixture.
        """
        setter = sources.find(K3_MODULE, f"{LANGUAGE}.{SETTER}")
        if setter is None:
            if prefix_function(sources) is None:
                seen = f"parameters of {TRUNK}.{CAPTURE} are none of a known release"
                raise CannotServe([upstream.unknown_rule(sources, K3_MODULE, seen)])
            return Reading(SetterRule.ALWAYS_INPUT, captures_embedding=False, captures_last=True)
        store = store_of(sources)
        if store is None:
            seen = f"{LANGUAGE} has a {SETTER} of its own, of no known kind"
            raise CannotServe([upstream.unknown_rule(sources, K3_MODULE, seen)])
        if store.mixture:
            raise CannotServe([_mixture(sources)])
        return Reading(SetterRule.ALWAYS_INPUT, captures_embedding=False, captures_last=True)

    def readings(self, release: Release) -> Mapping[str, Release]:
        """Return the release, and the trainers whose ids are outputs of layers.

        A trainer's template says [1, 45, 89] where the published drafter says [2, 46, 90].
        """
        outputs = dataclasses.replace(release, setter_rule=SetterRule.ALWAYS_OUTPUT)
        return {release.version: release, "trainers that count layers from 0": outputs}

    def language_model(self, model: Any) -> Any:
        """Return the language model; that of the wrapper, or the model itself."""
        return getattr(model, "language_model", None) or model

    def put(self, language_model: Any, states: States) -> None:
        """Make the language model capture exactly ``states``."""
        self._store.write(language_model.model, states)

    def seen(self, language_model: Any) -> Sequence[int] | None:
        """Return the states that are captured; None without any, or where it is the mixture."""
        if not language_model.capture_aux_hidden_states:
            return None
        if self._store is OWN and not getattr(language_model.model, MARK, False):
            return None
        return self._store.read(language_model.model)

    def install(self, architecture: str, capture: StateCapture) -> tuple[str, ...]:
        """Add the methods that the classes lack; stand aside where a release has its own setter.

        Raises:
            RuntimeError: SGLang's capture is none of a known release.
        """
        module = importlib.import_module(K3_MODULE)
        language, wrapper = getattr(module, LANGUAGE), getattr(module, WRAPPER)
        installation = upstream.find_sglang()
        assert installation is not None
        sources = Sources(installation.package, installation.version)
        if hasattr(language, SETTER):
            store = store_of(sources)
            if store is None or store.mixture:
                raise RuntimeError(f"the setter of {LANGUAGE} is not known")
            self._store = store
        else:
            prefix = prefix_function(sources)
            if prefix is None:
                raise RuntimeError(f"{TRUNK}.{CAPTURE} is not known")
            capture_prefix(getattr(module, TRUNK), prefix)
        added = [*_add(language, LanguageMethods), *_add(wrapper, WrapperMethods)]
        wrap_setter(language, capture)
        _hand_resolved_states(language, capture)
        return tuple(name for name in upstream.METHODS if name in added)


def capture_prefix(trunk: type, prefix: Callable[..., Any]) -> None:
    """Let instances of ``trunk`` that carry `MARK` capture the prefix, others as before."""
    import wrapt  # it imports asyncio, which no check of a drafter needs

    def choose(
        mixture: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        chosen = prefix if getattr(model, MARK, False) else mixture
        return chosen(*args, **kwargs)

    wrapt.wrap_function_wrapper(trunk, CAPTURE, choose)


def _hand_resolved_states(language: type, capture: StateCapture) -> None:
    """Call the setter with the resolved states as ids: it refuses lists that they may mend."""
    import wrapt

    def hand(
        setter: Callable[..., Any], _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if capture.states is None:
            return setter(*args, **kwargs)
        return setter(list(ids_of(capture.states, Convention.LAYER_INPUT)))

    wrapt.wrap_function_wrapper(language, SETTER, hand)


def _add(cls: type, methods: type) -> list[str]:
    names = [name for name in upstream.METHODS if not hasattr(cls, name)]
    for name in names:
        method = vars(methods)[name]
        own = types.FunctionType(method.__code__, method.__globals__, name, method.__defaults__)
        own.__doc__ = method.__doc__
        own.__annotations__ = dict(method.__annotations__)
        own.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, own)
    return names


def prefix_function(sources: Sources) -> Callable[..., Any] | None:
    """Return what gives the prefix where this SGLang captures; None when that is not known."""
    method = sources.find(K3_MODULE, f"{TRUNK}.{CAPTURE}")
    if not isinstance(method, ast.FunctionDef):
        return None
    return _PREFIXES.get(tuple(argument.arg for argument in method.args.args))


def store_of(sources: Sources) -> Store | None:
    """Find where the setter of this SGLang keeps its layers, by running it on a stand-in.

    Known kinds keep zero-based layers in ``dspark_layers_to_capture`` (the patched releases), or
    the ids as they are in ``eagle3_layers_to_capture``, with ids that count layers from 1
    (upstream's main branch after 0.5.23).  None for any other.
    """
    setter = sources.find(K3_MODULE, f"{LANGUAGE}.{SETTER}")
    if not isinstance(setter, ast.FunctionDef):
        return None
    run = upstream.compiled(setter)
    found = {_kept(run, ids) for ids in ([2, 46, 90], [1, 45, 89], [7])}
    kept = found.pop()
    if found or kept is None:
        return None
    attribute, shift, marked = kept
    if (attribute, shift) == ("eagle3_layers_to_capture", 0):
        return Store(attribute, shift)
    if (attribute, shift) == (OWN.attribute, OWN.shift):
        return Store(attribute, shift, mixture=not marked)
    return None


def _kept(run: Callable[..., object], ids: list[int]) -> tuple[str, int, bool] | None:
    """Return (attribute, shift, whether anything else was marked) of a setter's call."""
    trunk = types.SimpleNamespace(
        dspark_layers_to_capture=None,
        eagle3_layers_to_capture=None,
        carries_bank_slices=False,
        start_layer=0,
        end_layer=93,
    )
    before = dict(vars(trunk))
    group = types.SimpleNamespace(world_size=1, is_first_rank=True, is_last_rank=True)
    target = types.SimpleNamespace(
        pp_group=group,
        config=types.SimpleNamespace(num_hidden_layers=93),
        model=trunk,
        capture_aux_hidden_states=False,
    )

    def set_dspark_layers_to_capture(layers: list[int]) -> None:
        trunk.dspark_layers_to_capture = list(layers)
        target.capture_aux_hidden_states = True

    target.set_dspark_layers_to_capture = set_dspark_layers_to_capture
    target.set_dflash_layers_to_capture = set_dspark_layers_to_capture
    try:
        run(target, ids)
    except Exception:
        return None
    changed = {name: value for name, value in vars(trunk).items() if before.get(name) != value}
    lists = [name for name, value in changed.items() if isinstance(value, (list, tuple))]
    if len(lists) != 1 or not target.capture_aux_hidden_states:
        return None
    kept = list(changed[lists[0]])
    shift = kept[0] - ids[0] if kept else 0
    if kept != [layer_id + shift for layer_id in ids]:
        return None
    return lists[0], shift, len(changed) > 1


def _mixture(sources: Sources) -> Any:
    return MIXTURE.found(
        "This SGLang captures the mixture for EAGLE-3 drafters of Kimi-K3.",
        where=f"sglang {sources.version}, {sources.path(K3_MODULE)}",
        seen=f"{LANGUAGE}.{SETTER} sets what DSPARK drafters take, and marks nothing",
        leads_to="The drafter would be fed another tensor than it was trained on.",
        mend="Remove the patch that adds this setter, or use an SGLang release as it is.",
    )


KIMI_K3 = KimiK3()
