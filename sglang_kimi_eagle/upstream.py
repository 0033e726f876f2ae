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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES, Release, SetterRule
from sglang_kimi_eagle.states import default_states

if TYPE_CHECKING:
    from sglang_kimi_eagle.adapters import Adapter

METHODS = ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")
"""The three methods that an EAGLE-3 target must have, in the order they are called."""

DEEPSEEK_MODULE = "sglang.srt.models.deepseek_v2"
DEEPSEEK_CLASS = "DeepseekV2ForCausalLM"
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


class Reliance(NamedTuple):
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
)
"""What every target needs of the engine."""

DEEPSEEK_RELIANCES: tuple[Reliance, ...] = (
    Reliance(
        REGISTRY_MODULE,
        ("_ModelRegistry.resolve_model_cls",),
        "to see which class SGLang takes for the target",
    ),
    Reliance(
        DEEPSEEK_MODULE,
        (f"{DEEPSEEK_CLASS}.set_eagle3_layers_to_capture",),
        "to make the target capture states",
    ),
    Reliance(
        DEEPSEEK_MODULE,
        (f"{DEEPSEEK_CLASS}.get_embed_and_head",),
        "to share the target's embedding and head with the draft model",
    ),
    Reliance(
        DEEPSEEK_MODULE,
        (f"{DEEPSEEK_CLASS}.set_embed_and_head",),
        "to share the target's embedding and head with the draft model",
    ),
    Reliance(DEEPSEEK_MODULE, ("DeepseekV2Model.forward",), "the loop that captures states"),
)
"""What targets with DeepSeek's language model, such as Kimi-K2.5, need beside."""


class Sources:
    """The parsed source files of one SGLang package folder."""

    def __init__(self, package: Path, version: str = "unknown") -> None:
        self.package = package
        self.version = version
        self._trees: dict[str, ast.Module | None] = {}
        self.unread: dict[str, str] = {}
        """Module -> why its file, though it is there, could not be read or parsed."""

    def tree(self, module: str) -> ast.Module | None:
        """Parse ``module`` (dotted, from ``sglang``); None when that file is not to be had."""
        if module not in self._trees:
            path = self.path(module)
            self._trees[module] = None
            try:
                self._trees[module] = ast.parse(read_ordinary(path), filename=str(path))
            except FileNotFoundError:
                pass
            except OSError as error:
                self.unread[module] = error.strerror or str(error)
            except (SyntaxError, ValueError) as error:
                self.unread[module] = f"no Python: {error}"
            except (RecursionError, MemoryError):
                self.unread[module] = "nested too deeply"
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


class Inspection(NamedTuple):
    """What the sources of one SGLang do."""

    version: str
    package: Path
    release: Release | None
    """Its behaviour; None when something relied on has moved."""
    findings: tuple[Diagnostic, ...] = ()
    missing_methods: tuple[str, ...] = ()
    """Those of `METHODS` that the target's class lacks."""


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


def inspect(
    installation: Installation,
    adapter: Adapter | None = None,
    architecture: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Inspection:
    """Read what an SGLang does with a target from its sources.

    Args:
        installation: the SGLang.
        adapter: the target's; that of Kimi-K2.5 by default.
        architecture: the target's class; the adapter's first by default.
        config: the target's decoded config, where there is a target.
    """
    from sglang_kimi_eagle.adapters import KIMI_K25, CannotServe

    adapter = adapter or KIMI_K25
    architecture = architecture or adapter.architectures[0]
    version = installation.version
    sources = Sources(installation.package, version)
    findings = list(_moved(sources, (*RELIANCES, *adapter.reliances(architecture))))
    missing = adapter.missing(sources, architecture)
    if findings:
        return Inspection(version, installation.package, None, tuple(findings), missing)
    try:
        reading = adapter.read(sources, architecture, config)
    except CannotServe as problem:
        return Inspection(version, installation.package, None, problem.findings, missing)
    release = Release(
        version=version,
        wrapper_methods=not missing,
        plugin_framework=installation.has_plugin_framework,
        setter_rule=reading.setter_rule,
        captures_embedding=reading.captures_embedding,
        graphs_reset_ids=_graphs_reset_ids(sources),
        partial_sums=reading.partial_sums,
        mla_drafter=sources.find("sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM")
        is not None,
        captures_last=reading.captures_last,
    )
    findings += _compare(release, adapter.table.get(version))
    return Inspection(version, installation.package, release, tuple(findings), missing)


def unknown_rule(sources: Sources, module: str, seen: str) -> Diagnostic:
    """Build the finding that says that a setter's rule is not known."""
    return UNKNOWN_RULE.found(
        "The way this SGLang turns layer ids into states is not known.",
        where=f"sglang {sources.version}, {sources.path(module)}",
        seen=seen,
        leads_to="The drafter might be fed other states than it was trained on.",
        mend=f"Use SGLang {OLDEST} - {NEWEST}, or a newer sglang-kimi-eagle; "
        "SGLANG_KIMI_EAGLE=0 switches the plugin off.",
    )


def _moved(sources: Sources, reliances: Iterable[Reliance]) -> Iterator[Diagnostic]:
    for reliance in reliances:
        if any(sources.find(reliance.module, name) for name in reliance.attributes):
            continue
        wanted = " or ".join(reliance.attributes)
        yield MOVED.found(
            f"{reliance.module} has no {wanted}.",
            where=f"sglang {sources.version}, {sources.path(reliance.module)}",
            seen=sources.unread.get(reliance.module)
            or f"not found in the source; every release {OLDEST} - {NEWEST} has it",
            leads_to=f"The plugin needs it {reliance.purpose}; without it nothing is patched.",
            mend=f"Use SGLang {OLDEST} - {NEWEST}, or a newer sglang-kimi-eagle; "
            "SGLANG_KIMI_EAGLE=0 switches the plugin off.",
        )


def _compare(release: Release, row: Release | None) -> Iterator[Diagnostic]:
    if release.version not in RELEASES:
        yield UNKNOWN_RELEASE.found(
            f"SGLang {release.version} is not in the table of releases.",
            where="sglang",
            seen=f"tested: {OLDEST} - {NEWEST}",
            leads_to=f"Layer ids are read as its sources do: {release.setter_rule.value}.",
            mend="Compare the acceptance length with a tested release, or upgrade the plugin.",
        )
    elif row is not None and row != release:
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


def setter_rule(setter: ast.AST | None) -> SetterRule | None:
    """Find the rule of a ``set_eagle3_layers_to_capture`` by running it on a stand-in.

    The function is compiled alone from its source, so that the whole module (torch, kernels) is
    not needed.  None when it is no rule of the table.
    """
    if not isinstance(setter, ast.FunctionDef):
        return None
    function = compiled(setter)
    layers = 61
    if _captured(function, None, layers) != list(default_states(layers)):
        return None
    # No setter of SGLang is known to read every id as h[k], and these probes would not tell it from
    # one that looks elsewhere than at the first id.
    for candidate in (SetterRule.ALWAYS_OUTPUT, SetterRule.OUTPUT_IF_FIRST_IS_ONE):
        if all(
            _captured(function, ids, layers) == [k + candidate.convention(ids).shift for k in ids]
            for ids in _PROBES
        ):
            return candidate
    return None


def compiled(node: ast.FunctionDef) -> Callable[..., object]:
    """Compile a function alone from its source: without the globals of its module."""
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
    # Of models of experts, which mark their layers beside.
    model.set_eagle3_layers_to_capture = lambda ids: setattr(model, "layers_to_capture", list(ids))
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


def captures_inline(forward: ast.AST) -> bool | None:
    """Tell whether a model adds hidden_states and residual itself before a captured layer.

    None when its forward does not look at ``layers_to_capture`` at all.
    """
    if not mentions(forward, "layers_to_capture"):
        return None
    return any(True for _ in _inline_sums(forward))


def sums_are_guarded(forward: ast.AST) -> bool:
    """Tell whether such sums are taken only where there is a residual, so that h[0] works."""
    guarded = {
        id(node)
        for choice in ast.walk(forward)
        if isinstance(choice, ast.IfExp) and _mentions_name(choice.test, "residual")
        for node in ast.walk(choice)
    }
    return all(id(node) in guarded for node in _inline_sums(forward))


def _inline_sums(forward: ast.AST) -> Iterator[ast.AST]:
    for test in ast.walk(forward):
        if isinstance(test, ast.If) and mentions(test.test, "layers_to_capture"):
            for node in ast.walk(test):
                if (
                    isinstance(node, ast.BinOp)
                    and isinstance(node.op, ast.Add)
                    and _is_name(node.left, "hidden_states")
                    and _is_name(node.right, "residual")
                ):
                    yield node


def defers_all_reduce(layers: ast.AST) -> bool:
    """Tell whether a decoder layer may leave its all-reduce to the next layer's norm."""
    return mentions(layers, "should_fuse_mlp_allreduce_with_next_layer")


def completes_sums(setter: ast.AST) -> bool:
    """Tell whether a setter itself mends partial sums, as the patched releases do."""
    return mentions(setter, "is_last_layer")


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


def mentions(tree: ast.AST, attribute: str) -> bool:
    """Tell whether an attribute of this name is looked at anywhere below ``tree``."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(tree)
    )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _mentions_name(tree: ast.AST, name: str) -> bool:
    return any(_is_name(node, name) for node in ast.walk(tree))
