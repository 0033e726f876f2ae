"""The changes to SGLang's sources, one function each: module in, module out."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import libcst as cst
from libcst import matchers as m

from sglang_kimi_eagle.adapters.kimi_k25 import KIMI_CLASS
from sglang_kimi_eagle.delegations import DELEGATIONS
from sglang_kimi_eagle.patching.edits import (
    LINE_LENGTH,
    Statement,
    add_import,
    class_of,
    code_of,
    edit_method,
    extend_class,
    insert_after,
    replace,
    statement,
    the_only,
)

HELPERS = "sglang.srt.speculative.eagle_layer_ids"
SETTER = "set_eagle3_layers_to_capture"
DEEPSEEK_CLASS = "DeepseekV2ForCausalLM"
IDS = "eagle_aux_hidden_state_layer_ids"
CONVENTION = "eagle_layer_id_convention"

Transform = Callable[[cst.Module], cst.Module]

_DEEPEST = 12
"""The indentation of the deepest call of the setter in any release."""

_SIGNATURE = f"""\
def {SETTER}(
    self,
    layer_ids: Optional[List[int]] = None,
    layer_id_convention: Optional[str] = None,
):
    pass
"""


def upstream_text(method: Callable[..., Any]) -> str:
    """Return a function of `delegations` in SGLang's style.

    What this project's own type checker and linter need is left out.
    """
    source = textwrap.dedent(inspect.getsource(method))
    source = source.replace("self: Any", "self")
    return re.sub(r"  # (noqa|type: ignore).*", "", source)


def add_delegations(module: cst.Module) -> cst.Module:
    """Give the Kimi wrapper those of the three methods that it lacks."""
    present = {
        node.name.value
        for node in class_of(module, KIMI_CLASS).body.body
        if isinstance(node, cst.FunctionDef)
    }
    return extend_class(
        module,
        KIMI_CLASS,
        [
            _after_blank_line(statement(upstream_text(method)))
            for method in DELEGATIONS
            if method.__name__ not in present
        ],
    )


def wrapper_hands_convention(module: cst.Module) -> cst.Module:
    """Let the Kimi wrapper hand a declared convention to its language model."""

    def change(function: cst.FunctionDef) -> cst.FunctionDef:
        call = the_only(_setter_calls(function), f"call of language_model.{SETTER}")
        hand = "set_layers_to_capture(self.language_model, layer_ids, layer_id_convention)"
        return _with_convention(replace(function, call, cst.parse_expression(hand)))

    module = edit_method(module, KIMI_CLASS, SETTER, change)
    return add_import(module, HELPERS, "set_layers_to_capture")


def setter_takes_convention(first: int, owner: str = DEEPSEEK_CLASS) -> Transform:
    """Let a target's setter follow a declared convention instead of its own rule.

    Args:
        first: the first state that the model can capture (0, or 1 where not the embedding).
        owner: the class with the setter.
    """
    layers = "self.config.num_hidden_layers"
    declared = statement(
        textwrap.dedent(
            f"""\
            if layer_id_convention is not None:
                self.capture_aux_hidden_states = True
                self.model.layers_to_capture = get_layers_to_capture(
                    layer_ids, layer_id_convention, range({first}, {layers})
                )
            """
        )
    )

    def change(function: cst.FunctionDef) -> cst.FunctionDef:
        choice = choice_of_rule(function)
        orelse = declared.with_changes(orelse=choice.orelse)
        return _with_convention(replace(function, choice, choice.with_changes(orelse=orelse)))

    def transform(module: cst.Module) -> cst.Module:
        module = edit_method(module, owner, SETTER, change)
        return add_import(module, HELPERS, "get_layers_to_capture")

    return transform


def choice_of_rule(setter: cst.FunctionDef) -> cst.If:
    """Return the statement of a setter that tells default from configured ids."""
    is_choice = m.If(test=m.Comparison(left=m.Name("layer_ids")))
    return the_only(
        [
            node
            for node in setter.body.body
            if isinstance(node, cst.If) and m.matches(node, is_choice)
        ],
        f"`if layer_ids is None: ... else: ...` in {SETTER}",
    )


def setter_completes_sums(module: cst.Module) -> cst.Module:
    """Keep the layer before each captured one from deferring its all-reduce (defect B).

    What `repairs.complete_partial_sums` does to the running model.
    """
    mend = statement(
        textwrap.dedent(
            """\
            # The layer before a captured hidden state must not leave its all-reduce to
            # the norm after the capture: each rank would capture a partial sum.
            for i in range(self.model.start_layer, self.model.end_layer):
                if i + 1 in self.model.layers_to_capture:
                    self.model.layers[i].layer_communicator.is_last_layer = True
            """
        )
    )

    def change(function: cst.FunctionDef) -> cst.FunctionDef:
        body = [*function.body.body, _after_blank_line(mend)]
        return function.with_changes(body=function.body.with_changes(body=body))

    return edit_method(module, DEEPSEEK_CLASS, SETTER, change)


def graphs_keep_ids(runner: str) -> Transform:
    """Hand the configured ids to the call of the setter that has none (defect A).

    Args:
        runner: how the caller reaches the model runner, which holds the ids.
    """

    def transform(module: cst.Module) -> cst.Module:
        call = the_only(
            [call for call in _setter_calls(module) if not call.args],
            f"call of {SETTER} without ids",
        )
        new = cst.parse_expression(f"{code_of(call.func)}(\n    {runner}.{IDS}\n)")
        return replace(module, call, new)

    return transform


def reads_convention(holder: str) -> Transform:
    """Read the declared convention after the ids.

    Args:
        holder: the object whose attributes are set there.
    """
    reading = statement(
        textwrap.dedent(
            f"""\
            (
                {holder}.{IDS},
                {holder}.{CONVENTION},
            ) = resolve_layer_ids(
                draft_model_config.hf_config,
                {holder}.{IDS},
            )
            """
        )
    )

    def transform(module: cst.Module) -> cst.Module:
        module = insert_after(module, reading_of_ids(module), reading)
        return add_import(module, HELPERS, "resolve_layer_ids")

    return transform


def reading_of_ids(module: cst.Module) -> cst.CSTNode:
    """Return the statement that reads ``eagle_config``."""
    attempts = [node for node in m.findall(module, m.Try()) if f'"{IDS}"' in code_of(node)]
    return the_only(attempts, f"try that reads {IDS}")


def hands_convention(module: cst.Module) -> cst.Module:
    """Call the setter with the declared convention, wherever it is called.

    The convention is found beside the ids: ``self.eagle_aux_hidden_state_layer_ids`` has
    ``self.eagle_layer_id_convention``.
    """
    calls = _setter_calls(module)
    for _ in calls:
        # A replaced call is no call of the setter any more: the next one is now the first.
        call = _setter_calls(module)[0]
        ids = code_of(the_only(call.args, f"layer ids in a call of {SETTER}").value)
        model = code_of(cst.ensure_type(call.func, cst.Attribute).value)
        arguments = (model, ids, ids.replace(IDS, CONVENTION))
        line = f"    {', '.join(arguments)}\n"
        if _DEEPEST + len(line) <= LINE_LENGTH:
            lines = line
        else:
            lines = "".join(f"    {argument},\n" for argument in arguments)
        new = cst.parse_expression(f"set_layers_to_capture(\n{lines})")
        module = replace(module, call, new)
    return add_import(module, HELPERS, "set_layers_to_capture") if calls else module


def config_holds_convention(module: cst.Module) -> cst.Module:
    """Add the convention to ``SpecAuxHiddenStateConfig``, after the ids."""
    field = the_only(
        [
            node
            for node in class_of(module, "SpecAuxHiddenStateConfig").body.body
            if m.matches(
                node, m.SimpleStatementLine(body=[m.AnnAssign(target=m.Name(IDS)), m.ZeroOrMore()])
            )
        ],
        f"field {IDS}",
    )
    return insert_after(module, field, statement(f"{CONVENTION}: Optional[str] = None"))


def parameter_for_convention(module: cst.Module) -> cst.Module:
    """Let ``configure_aux_hidden_state_capture`` take the convention, after the ids."""
    parameters = [
        node for node in m.findall(module, m.Param(name=m.Name(IDS))) if isinstance(node, cst.Param)
    ]
    parameter = the_only(parameters, f"parameter {IDS}")
    own = parameter.with_changes(
        name=cst.Name(CONVENTION),
        annotation=cst.Annotation(cst.parse_expression("Optional[str]")),
        default=cst.Name("None"),
        equal=cst.AssignEqual(),
    )
    return insert_after(module, parameter, own)


def argument_with_convention(module: cst.Module) -> cst.Module:
    """Hand the convention to ``configure_aux_hidden_state_capture``, after the ids."""
    arguments = [
        node for node in m.findall(module, m.Arg(keyword=m.Name(IDS))) if isinstance(node, cst.Arg)
    ]
    argument = the_only(arguments, f"argument {IDS}")
    value = code_of(argument.value).replace(IDS, CONVENTION)
    own = argument.with_changes(keyword=cst.Name(CONVENTION), value=cst.parse_expression(value))
    return insert_after(module, argument, own)


def _setter_calls(tree: cst.CSTNode) -> list[cst.Call]:
    calls = m.findall(tree, m.Call(func=m.Attribute(attr=m.Name(SETTER))))
    return [call for call in calls if isinstance(call, cst.Call)]


def _with_convention(function: cst.FunctionDef) -> cst.FunctionDef:
    """Give a setter the optional parameter ``layer_id_convention``."""
    signature = cst.ensure_type(statement(_SIGNATURE), cst.FunctionDef)
    return function.with_changes(
        params=signature.params, whitespace_before_params=signature.whitespace_before_params
    )


def _after_blank_line(node: Statement) -> Statement:
    return node.with_changes(leading_lines=[cst.EmptyLine(indent=False), *node.leading_lines])
