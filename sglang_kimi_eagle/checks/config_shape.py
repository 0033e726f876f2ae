"""KE12x: where ``eagle_config`` is and what its flags are; the ids in it are `wiring`'s."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.states import IDS_KEY

FLAG = "use_aux_hidden_state"

NULL = rule(
    "KE121",
    "eagle-config-null",
    Severity.ERROR,
    "`eagle_config` is there but null. Up to 0.5.14 the EAGLE worker fails on it after all weights "
    "are loaded; later releases take it for missing.",
    example='{"eagle_config": null}',
)
TYPE = rule(
    "KE122",
    "eagle-config-type",
    Severity.ERROR,
    "`eagle_config` is no JSON object. Every release reads keys of it and fails, some without a "
    "word, some after all weights are loaded.",
    example='{"eagle_config": [2, 30, 58]}',
)
MISPLACED = rule(
    "KE123",
    "eagle-config-misplaced",
    Severity.ERROR,
    "`eagle_config` lies inside another object of the config, where SGLang does not look.",
    example='{"text_config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}}',
)
FLAG_MISPLACED = rule(
    "KE124",
    "flag-misplaced",
    Severity.WARNING,
    "`use_aux_hidden_state` is at the top level of the config. SGLang reads it below "
    "`eagle_config` only, so the drafter is fed captured states all the same.",
    example='{"use_aux_hidden_state": false}',
)
FLAG_TYPE = rule(
    "KE125",
    "flag-type",
    Severity.WARNING,
    "`eagle_config.use_aux_hidden_state` is neither true nor false. SGLang takes anything that is "
    'not empty for true, even the text "false".',
    example='{"eagle_config": {"use_aux_hidden_state": "false"}}',
)
COUNT_DIFFERS = rule(
    "KE126",
    "state-count-differs",
    Severity.ERROR,
    "`num_aux_hidden_states` is another number than that of the layer ids: the target captures as "
    "many states as there are ids, and `fc` is built for the other number.",
    example='{"num_aux_hidden_states": 4, "eagle_config": {"eagle_aux_hidden_state_layer_ids": '
    "[2, 30, 58]}}",
)


def check_eagle_config(context: Context) -> Iterator[Diagnostic]:
    """Check that ``eagle_config`` is an object at the top level."""
    if context.drafter is None:
        return
    config = context.config
    if "eagle_config" in config:
        nested = config["eagle_config"]
        where = f"{context.where}, eagle_config"
        if nested is None:
            found = NULL.found(
                "eagle_config is null.",
                where=where,
                seen="null",
                leads_to=f"{context.running} fails on it after all weights are loaded."
                if not context.loader.null_eagle_config
                else "The default states are captured, as if there were no eagle_config.",
                mend="Remove the key, or write the layer ids the drafter was trained with.",
            )
            # Later releases take null for missing.
            harmless = context.loader.null_eagle_config
            yield replace(found, severity=Severity.WARNING) if harmless else found
        elif not isinstance(nested, dict):
            yield TYPE.found(
                "eagle_config must be a JSON object.",
                where=where,
                seen=brief(nested),
                leads_to=f"{context.running} ignores it or fails on it.",
                mend=f'Write it as {{"{IDS_KEY}": [...], "{FLAG}": true}}.',
            )
        return
    for key, value in config.items():
        if isinstance(value, dict) and "eagle_config" in value:
            yield MISPLACED.found(
                "eagle_config is not at the top level of the config.",
                where=f"{context.where}, {key[:80]}.eagle_config",
                seen=brief(value["eagle_config"]),
                leads_to="SGLang does not see it and captures its default states.",
                mend="Move eagle_config to the top level of config.json.",
            )


def check_flags(context: Context) -> Iterator[Diagnostic]:
    """Check ``use_aux_hidden_state`` and ``num_aux_hidden_states``."""
    config, nested = context.config, context.eagle_config
    if config.get(FLAG) is False and FLAG not in nested:
        yield FLAG_MISPLACED.found(
            f"{FLAG} is at the top level of the config.",
            where=f"{context.where}, {FLAG}",
            seen="false",
            leads_to="SGLang does not see it and feeds the drafter captured states.",
            mend=f"Move {FLAG} into eagle_config.",
        )
    if FLAG in nested and not isinstance(nested[FLAG], bool):
        yield FLAG_TYPE.found(
            f"eagle_config.{FLAG} must be true or false.",
            where=f"{context.where}, eagle_config.{FLAG}",
            seen=brief(nested[FLAG]),
            leads_to=f"SGLang takes it for {str(bool(nested[FLAG])).lower()}.",
            mend="Write true or false, without quotes.",
        )
    ids, count = nested.get(IDS_KEY), config.get("num_aux_hidden_states")
    if context.is_llama and isinstance(ids, list) and ids and count not in (None, len(ids)):
        yield COUNT_DIFFERS.found(
            "num_aux_hidden_states is not the number of layer ids.",
            where=f"{context.where}, num_aux_hidden_states",
            seen=f"{brief(count, 40)}, and {len(ids)} ids",
            leads_to="fc fails on the width of the captured states.",
            mend=f"Set num_aux_hidden_states to {len(ids)}, or remove it.",
        )
