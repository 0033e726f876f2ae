"""An SGLang of the future: DeepseekV2ForCausalLM has its setter under another name."""

from typing import Any

from redirections.after_import import after_import

_NAME = "set_eagle3_layers_to_capture"


def register() -> None:
    after_import("sglang.srt.models.deepseek_v2", _rename)


def _rename(module: Any) -> None:
    cls = module.DeepseekV2ForCausalLM
    cls.set_eagle3_capture = vars(cls)[_NAME]
    delattr(cls, _NAME)
