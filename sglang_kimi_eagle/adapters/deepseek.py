"""What targets with DeepSeek's language model have in common."""

from __future__ import annotations

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.adapters.base import CannotServe, Reading
from sglang_kimi_eagle.releases import NEWEST, OLDEST
from sglang_kimi_eagle.upstream import Sources


def read_deepseek(sources: Sources) -> Reading:
    """Read what ``DeepseekV2ForCausalLM`` does with ids.

    Raises:
        CannotServe: its setter or loop is not known.
    """
    setter = sources.find(
        upstream.DEEPSEEK_MODULE, f"{upstream.DEEPSEEK_CLASS}.set_eagle3_layers_to_capture"
    )
    forward = sources.find(upstream.DEEPSEEK_MODULE, "DeepseekV2Model.forward")
    layer = sources.find(upstream.DEEPSEEK_MODULE, "DeepseekV2DecoderLayer.forward")
    rule = upstream.setter_rule(setter)
    inline = upstream.captures_inline(forward) if forward is not None else None
    if setter is None or rule is None or inline is None:
        seen = (
            "set_eagle3_layers_to_capture and layers_to_capture differ from every release "
            f"{OLDEST} - {NEWEST}"
        )
        raise CannotServe([upstream.unknown_rule(sources, upstream.DEEPSEEK_MODULE, seen)])
    deferred = layer is not None and upstream.defers_all_reduce(layer)
    return Reading(
        setter_rule=rule,
        captures_embedding=not inline,
        partial_sums=inline and deferred and not upstream.completes_sums(setter),
    )
