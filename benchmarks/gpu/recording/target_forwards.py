"""Writes the states that the target's forwards hand on, those of replayed graphs included.

``ModelRunner.forward`` (``srt/model_executor/model_runner.py``, 0.5.9 - 0.5.23) is eager Python
even where the model inside it is a replayed CUDA graph.  Each prefill and each verify gives one
file in the folder TARGET_FORWARDS: ``tokens`` and ``positions`` int64 [n], ``hidden`` [n, states x
hidden size] float32, and in the metadata ``mode`` and ``graph`` ("1": a graph was replayed).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "TARGET_FORWARDS"
_MOST_FILES = 2000


def register() -> None:
    """Wrap the forward as its module is imported."""
    import wrapt

    def wrap(module: Any) -> None:
        wrapt.wrap_function_wrapper(module.ModelRunner, "forward", _Writer())

    wrapt.register_post_import_hook(wrap, "sglang.srt.model_executor.model_runner")


class _Writer:
    def __init__(self) -> None:
        self._count = 0

    def __call__(
        self,
        forward: Callable[..., Any],
        runner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = forward(*args, **kwargs)
        batch = args[0] if args else kwargs["forward_batch"]
        hidden = getattr(result.logits_output, "hidden_states", None)
        mode = batch.forward_mode
        wanted = mode.is_target_verify() or mode.name == "EXTEND"
        if runner.is_draft_worker or hidden is None or not wanted or self._count >= _MOST_FILES:
            return result
        from safetensors.torch import save_file

        rows = batch.input_ids.shape[0]
        name = f"{os.getpid()}-{self._count:05}.safetensors"
        self._count += 1
        save_file(
            {
                "tokens": batch.input_ids.long().cpu(),
                "positions": batch.positions[:rows].long().cpu(),
                "hidden": hidden[:rows].float().cpu().contiguous(),
            },
            Path(os.environ[FOLDER]) / name,
            metadata={"mode": mode.name, "graph": str(int(bool(result.can_run_graph)))},
        )
        return result
