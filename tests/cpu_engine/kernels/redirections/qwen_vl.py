"""Text for Qwen3-VL where its processor of images cannot be imported, 0.5.9 and 0.5.10.

``multimodal/processors/qwen_vl.py`` takes in ``decord`` and kernels of AMX.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.managers.multimodal_processor", _add_processor)


def _add_processor(module: Any) -> None:
    original: Callable[..., None] = module.import_processors

    @wraps(original)
    def import_processors(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        from sglang.srt.models.qwen3_vl import Qwen3VLForConditionalGeneration

        class TextOnly(module.BaseMultimodalProcessor):  # type: ignore[misc, name-defined]
            models = [Qwen3VLForConditionalGeneration]  # noqa: RUF012

            async def process_mm_data_async(self, *_args: Any, **_kwargs: Any) -> None:
                raise NotImplementedError("images")

        module.PROCESSOR_MAPPING.setdefault(Qwen3VLForConditionalGeneration, TextOnly)

    module.import_processors = import_processors
