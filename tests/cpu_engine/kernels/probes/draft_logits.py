"""Writes what the draft model is given and what it answers, forward by forward.

To the folder CPU_ENGINE_DRAFT_LOGITS, for the first forwards of more than one token and those that
follow them.
"""

import json
import os
from functools import wraps
from pathlib import Path
from typing import Any

from redirections.after_import import after_import

_FOLDER = "CPU_ENGINE_DRAFT_LOGITS"
_LIMIT = 8


def register() -> None:
    for module, drafter in (
        ("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3"),
        ("sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM"),
    ):
        after_import(module, lambda loaded, name=drafter: _record(getattr(loaded, name)))


def _record(model_class: Any) -> None:
    original = model_class.forward
    count = 0

    @wraps(original)
    def forward(
        self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        nonlocal count
        folder = os.environ.get(_FOLDER)
        hidden = getattr(forward_batch.spec_info, "hidden_states", None)
        # The first forward that counts is a prompt's; health checks have one token.
        counts = folder and hidden is not None and count < _LIMIT and (count or len(input_ids) > 1)
        given = hidden.detach().clone() if counts else None
        ids, places = (input_ids.tolist(), positions.tolist()) if counts else ([], [])
        result = original(self, input_ids, positions, forward_batch, *args, **kwargs)
        if counts:
            from safetensors.torch import save_file

            facts = {"mode": forward_batch.forward_mode.name, "ids": ids, "positions": places}
            tensors = {"hidden": given, "logits": result.next_token_logits.detach().clone()}
            path = Path(str(folder)) / f"{count:03}.safetensors"
            count += 1
            unfinished = path.with_suffix(".partial")
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()},
                unfinished,
                metadata={"facts": json.dumps(facts)},
            )
            unfinished.replace(path)
        return result

    model_class.forward = forward
