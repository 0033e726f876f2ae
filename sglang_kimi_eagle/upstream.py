"""Everything of SGLang that the plugin relies on, declared, and read from the sources at hand.

Nothing is imported from SGLang here: its files are parsed.  So a launch can be judged before
torch or a model is loaded, and a tool can judge an SGLang that this interpreter cannot run.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES, Release, SetterRule
from sglang_kimi_eagle.states import default_states

METHODS = ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")
"""The three methods that an EAGLE-3 target must have, in the order they are called."""

KIMI_MODULE = "sglang.srt.models.kimi_k25"
KIMI_CLASS = "KimiK25ForConditionalGeneration"
DEEPSEEK_MODULE = "sglang.srt.models.deepseek_v2"
SERVER_ARGS_MODULE = "sglang.srt.server_args"
RUNNER_MODULE = "sglang.srt.model_executor.model_runner"
SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
REGISTRY_MODULE = "sglang.srt.models.registry"

MOVED = rule(
    "KE001",
    "upstream-moved",
    Severity.ERROR,
    "SGLang's sources have moved: something that the plugin relies on is not where every release "
    f"from {OLDEST} to {NEWEST} has it. Patching what is left would be a guess.",
    example="An SGLang whose DeepseekV2ForCausalLM has no set_eagle3_layers_to_capture.",
)
NO_SGLANG = rule(
    "KE002",
    "sglang-not-found",
    Severity.ERROR,
    "There is no SGLang in this Python environment.",
    example="sglang-kimi-eagle doctor, in an environment without sglang",
)
UNKNOWN_RULE = rule(
    "KE003",
    "setter-rule-unknown",
    Severity.ERROR,
    "This SGLang reads layer ids by a rule that no release of the table has, so what it would "
    "capture is not known.",
    example="A release whose set_eagle3_layers_to_capture([2, 30, 58]) gives [1, 29, 57].",
)
UNKNOWN_RELEASE = rule(
    "KE004",
    "release-unknown",
    Severity.WARNING,
    "This SGLang is not in the plugin's table of releases. Everything relied on was found in its "
    "sources, so the plugin works by what it sees there, but no test has run on it.",
    example="sglang 0.5.24 with a plugin tested up to 0.5.23",
)
ROW_DIFFERS = rule(
    "KE005",
    "release-differs",
    Severity.NOTE,
    "The sources of this SGLang do not do what its version does elsewhere: it is patched, or a "
    "build of its own. What the sources do counts.",
    example="sglang 0.5.9 with a patched kimi_k25.py",
)


@dataclass(frozen=True)
class Reliance:
    """One attribute of SGLang that the plugin relies on."""

    module: str
    attributes: tuple[str, ...]
    """Dotted names inside the module; any one of them will do."""
    purpose: str


RELIANCES: tuple[Reliance, ...] = (
    Reliance(
        SERVER_ARGS_MODULE,
        ("ServerArgs.resolve_once", "ServerArgs.__post_init__"),
        "to judge the launch before the target is opened",
    ),
    Reliance(
        RUNNER_MODULE,
        ("ModelRunner.__init__",),
        "to judge the launch once more before weights are read",
    ),
    Reliance(
        SCHEDULER_MODULE,
        ("Scheduler.__init__",),
        "to see that the states are captured before anything is served",
    ),
    Reliance(KIMI_MODULE, (KIMI_CLASS,), "the class that gets the three methods"),
    Reliance(
        REGISTRY_MODULE,
        ("_ModelRegistry.resolve_model_cls",),
        "to see which class SGLang takes for the target",
    ),
    Reliance(
        DEEPSEEK_MODULE,
        ("DeepseekV2ForCausalLM.set_eagle3_layers_to_capture",),
        "to make the target capture states",
    ),
    Reliance(
        DEEPSEEK_MODULE,
        ("DeepseekV2ForCausalLM.get_embed_and_head",),
        "to share the target's embedding and head with the draft model",
    ),
    Reliance(
        DEEPSEEK_MODULE,
        ("DeepseekV2ForCausalLM.set_embed_and_head",),
        "to share the target's embedding and head with the draft model",
    ),
    Reliance(DEEPSEEK_MODULE, ("DeepseekV2Model.forward",), "the loop that captures states"),
)


class Sources:
    """The parsed source files of one SGLang package folder."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """Parse ``module`` (dotted, from ``sglang``); None when that file is not to be had."""
        if module not in self._trees:
            path = self.path(module)
            try:
                self._trees[module] = ast.parse(path.read_bytes(), filename=str(path))
            except (OSError, SyntaxError, ValueError):
                self._trees[module] = None
        return self._trees[module]

    def path(self, module: str) -> Path:
        """Return the file of ``module``."""
        return self.package.joinpath(*module.split(".")[1:]).with_suffix(".py")

    def find(self, module: str, dotted: str) -> ast.AST | None:
        """Return the class or function ``dotted`` of ``module``; None when it is not there."""
        node: ast.AST | None = self.tree(module)
        for name in dotted.split("."):
            if node is None:
                break
            node = next(
                (
                    child
                    for child in ast.iter_child_nodes(node)
                    if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and child.name == name
                ),
                None,
            )
        return node


@dataclass(frozen=True)
class Inspection:
    """What the sources of one SGLang do."""

    version: str
    package: Path
    release: Release | None
    """Its behaviour; None when something relied on has moved."""
    findings: tuple[Diagnostic, ...] = ()
    missing_methods: tuple[str, ...] = ()
    """Those of `METHODS` that the Kimi wrapper lacks."""


@dataclass(frozen=True)
class Installation:
    """The SGLang of this interpreter, found without importing it."""

    package: Path
    version: str = field(default="unknown")

    @cached_property
    def has_plugin_framework(self) -> bool:
        """Whether SGLang loads plugins by itself (0.5.11 and later)."""
        return (self.package / "srt" / "plugins" / "__init__.py").is_file()


def find_sglang() -> Installation | None:
    """Find SGLang on ``sys.path`` without importing it."""
    loaded = sys.modules.get("sglang")
    locations = list(getattr(loaded, "__path__", []))
    if not locations:
        # All finders are asked: an editable install has one of its own.
        try:
            spec = importlib.util.find_spec("sglang")
        except (ImportError, ValueError):
            spec = None
        locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        if (Path(location) / "srt").is_dir():
            return Installation(Path(location), _version())
    return None


def _version() -> str:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "unknown"


def inspect(installation: Installation) -> Inspection:
    """Read what an SGLang does from its sources."""
    sources = Sources(installation.package)
    version = installation.version
    findings = list(_moved(sources, version))
    missing = tuple(
        name for name in METHODS if sources.find(KIMI_MODULE, f"{KIMI_CLASS}.{name}") is None
    )
    if findings:
        return Inspection(version, installation.package, None, tuple(findings), missing)
    setter_rule = _setter_rule(sources)
    inline = _captures_inline(sources)
    if setter_rule is None or inline is None:
        findings.append(
            UNKNOWN_RULE.found(
                "The way this SGLang turns layer ids into states is not known.",
                where=f"sglang {version}, {sources.path(DEEPSEEK_MODULE)}",
                seen="set_eagle3_layers_to_capture and layers_to_capture differ from every "
                f"release {OLDEST} - {NEWEST}",
                leads_to="The drafter might be fed other states than it was trained on.",
                mend=f"Use SGLang {OLDEST} - {NEWEST}, or a newer sglang-kimi-eagle; "
                "SGLANG_KIMI_EAGLE=0 switches the plugin off.",
            )
        )
        return Inspection(version, installation.package, None, tuple(findings), missing)
    release = Release(
        version=version,
        wrapper_methods=not missing,
        plugin_framework=installation.has_plugin_framework,
        setter_rule=setter_rule,
        captures_embedding=not inline,
        graphs_reset_ids=_graphs_reset_ids(sources),
        partial_sums=inline and _defers_all_reduce(sources) and not _completes_sums(sources),
        mla_drafter=sources.find("sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM")
        is not None,
    )
    findings += _compare(release)
    return Inspection(version, installation.package, release, tuple(findings), missing)


def _moved(sources: Sources, version: str) -> Iterator[Diagnostic]:
    for reliance in RELIANCES:
        if any(sources.find(reliance.module, name) for name in reliance.attributes):
            continue
        wanted = " or ".join(reliance.attributes)
        yield MOVED.found(
            f"{reliance.module} has no {wanted}.",
            where=f"sglang {version}, {sources.path(reliance.module)}",
            seen=f"not found in the source; every release {OLDEST} - {NEWEST} has it",
            leads_to=f"The plugin needs it {reliance.purpose}; without it nothing is patched.",
            mend=f"Use SGLang {OLDEST} - {NEWEST}, or a newer sglang-kimi-eagle; "
            "SGLANG_KIMI_EAGLE=0 switches the plugin off.",
        )


def _compare(release: Release) -> Iterator[Diagnostic]:
    row = RELEASES.get(release.version)
    if row is None:
        yield UNKNOWN_RELEASE.found(
            f"SGLang {release.version} is not in the table of releases.",
            where="sglang",
            seen=f"tested: {OLDEST} - {NEWEST}",
            leads_to=f"Layer ids are read as its sources do: {release.setter_rule.value}.",
            mend="Compare the acceptance length with a tested release, or upgrade the plugin.",
        )
    elif row != release:
        differing = [
            f"{name}: {getattr(release, name)!r} instead of {getattr(row, name)!r}"
            for name in Release.__dataclass_fields__
            if getattr(row, name) != getattr(release, name)
        ]
        yield ROW_DIFFERS.found(
            f"The sources of this SGLang {release.version} are not those of the release.",
            where="sglang",
            seen="; ".join(differing),
            leads_to="The plugin follows the sources.",
        )


# Enough lists to tell the rules of the table from each other and from anything else.
_PROBES = ([2, 30, 58], [1, 29, 57], [0, 5, 9], [3, 1, 7], [7])


def _setter_rule(sources: Sources) -> SetterRule | None:
    """Find the rule by running SGLang's own setter on a stand-in for the model.

    The function is compiled alone from its source, so that the whole module (torch, kernels) is
    not needed.
    """
    node = sources.find(DEEPSEEK_MODULE, "DeepseekV2ForCausalLM.set_eagle3_layers_to_capture")
    if not isinstance(node, ast.FunctionDef):
        return None
    setter = _compile(node)
    layers = 61
    if _captured(setter, None, layers) != list(default_states(layers)):
        return None
    for candidate in SetterRule:
        if all(
            _captured(setter, ids, layers) == [k + candidate.convention(ids).shift for k in ids]
            for ids in _PROBES
        ):
            return candidate
    return None


def _compile(node: ast.FunctionDef) -> Callable[..., object]:
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns = [], None
    for argument in bare.args.args:
        argument.annotation = None
    module = ast.fix_missing_locations(ast.Module(body=[bare], type_ignores=[]))
    namespace: dict[str, Callable[..., object]] = {}
    exec(compile(module, f"<{node.name}>", "exec"), {}, namespace)
    return namespace[node.name]


def _captured(
    setter: Callable[..., object], ids: list[int] | None, num_layers: int
) -> list[int] | None:
    layers = [
        types.SimpleNamespace(layer_communicator=types.SimpleNamespace(is_last_layer=False))
        for _ in range(num_layers)
    ]
    model = types.SimpleNamespace(
        layers_to_capture=[], layers=layers, start_layer=0, end_layer=num_layers
    )
    target = types.SimpleNamespace(
        pp_group=types.SimpleNamespace(is_last_rank=True),
        config=types.SimpleNamespace(num_hidden_layers=num_layers),
        model=model,
        capture_aux_hidden_states=False,
    )
    try:
        setter(target, ids)
    except Exception:
        return None
    return list(model.layers_to_capture) if target.capture_aux_hidden_states else None


def _captures_inline(sources: Sources) -> bool | None:
    """Tell whether the model adds hidden_states and residual itself before a captured layer.

    None when its forward does not look at ``layers_to_capture`` at all.
    """
    forward = sources.find(DEEPSEEK_MODULE, "DeepseekV2Model.forward")
    if forward is None or not any(
        isinstance(node, ast.Attribute) and node.attr == "layers_to_capture"
        for node in ast.walk(forward)
    ):
        return None
    return any(
        isinstance(test, ast.If)
        and _mentions(test.test, "layers_to_capture")
        and any(
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add)
            and _is_name(node.left, "hidden_states")
            and _is_name(node.right, "residual")
            for node in ast.walk(test)
        )
        for test in ast.walk(forward)
    )


def _defers_all_reduce(sources: Sources) -> bool:
    """Tell whether a decoder layer may leave its all-reduce to the next layer's norm."""
    layer = sources.find(DEEPSEEK_MODULE, "DeepseekV2DecoderLayer.forward")
    return layer is not None and _mentions(layer, "should_fuse_mlp_allreduce_with_next_layer")


def _completes_sums(sources: Sources) -> bool:
    """Tell whether the setter itself mends partial sums, as the patched releases do."""
    setter = sources.find(DEEPSEEK_MODULE, "DeepseekV2ForCausalLM.set_eagle3_layers_to_capture")
    return setter is not None and _mentions(setter, "is_last_layer")


def _graphs_reset_ids(sources: Sources) -> bool:
    """Tell whether the graph runner calls the setter without ids before it captures."""
    tree = sources.tree("sglang.srt.model_executor.cuda_graph_runner")
    return tree is not None and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == METHODS[0]
        and not node.args
        and not node.keywords
        for node in ast.walk(tree)
    )


def _mentions(tree: ast.AST, attribute: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(tree)
    )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
