"""Records what the target computes and what reaches the drafter, file by file.

Loaded only where CPU_ENGINE_RECORDS is set; writes once it names a folder, which
``cpu_engine.records`` reads back.
The states are taken by hooks of its own on the norms between the layers, not from what
SGLang captured.
"""

import json
import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from redirections.after_import import after_import

_FOLDER_VARIABLE = "CPU_ENGINE_RECORDS"
_LIMIT_VARIABLE = "CPU_ENGINE_RECORDS_LIMIT"
_DEFAULT_LIMIT = "200"


def register() -> None:
    writer = _Writer()
    for module_name, model in (
        ("sglang.srt.models.deepseek_v2", "DeepseekV2Model"),
        ("sglang.srt.models.llama", "LlamaModel"),
        ("sglang.srt.models.qwen2", "Qwen2Model"),
        ("sglang.srt.models.qwen3", "Qwen3Model"),
        ("sglang.srt.models.qwen3_vl", "Qwen3LLMModel"),
    ):
        after_import(module_name, partial(_record_target, writer, model))
    after_import("sglang.srt.models.kimi_k3", partial(_record_k3, writer))
    for module_name, drafter in (
        ("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3"),
        ("sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM"),
    ):
        after_import(module_name, partial(_record_drafter, drafter, writer))


class _Writer:
    """Writes the first forwards of this process, numbered in the order they happened."""

    def __init__(self) -> None:
        self._written = 0

    @property
    def full(self) -> bool:
        """Whether nothing (more) is to be written."""
        limit = int(os.environ.get(_LIMIT_VARIABLE, _DEFAULT_LIMIT))
        return not os.environ[_FOLDER_VARIABLE] or self._written >= limit

    def write(self, kind: str, batch: Any, positions: Any, tensors: dict[str, Any]) -> None:
        import torch
        from safetensors.torch import save_file

        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        facts = {
            "kind": kind,
            "rank": rank,
            "order": self._written,
            "mode": batch.forward_mode.name,
            "input_ids": batch.input_ids.tolist(),
            "positions": positions.tolist(),
        }
        if kind == "target":
            facts["layers_to_capture"] = tensors.pop("layers_to_capture")
        name = f"{rank}-{os.getpid()}-{self._written:05}-{kind}"
        folder = Path(os.environ[_FOLDER_VARIABLE])
        unfinished = folder / f"{name}.partial"
        save_file(
            {key: value.detach().contiguous().clone() for key, value in tensors.items()},
            unfinished,
            metadata={"facts": json.dumps(facts)},
        )
        unfinished.rename(folder / f"{name}.safetensors")
        self._written += 1


def _record_target(writer: _Writer, name: str, module: Any) -> None:
    """A language model: h[k] for every k, and the states that SGLang itself captured."""
    model_class = getattr(module, name)
    if "forward" not in vars(model_class):
        # An inherited one is recorded by its own class.
        return
    original = model_class.forward

    @wraps(original)
    def forward(
        self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        if writer.full or not positions.numel():
            return original(self, input_ids, positions, forward_batch, *args, **kwargs)
        if not hasattr(self, "recorded_states"):
            self.recorded_states = {}
            norms = [layer.input_layernorm for layer in self.layers]
            for index, norm in enumerate([*norms, self.norm]):
                _watch(norm, index, self.recorded_states)
        self.recorded_states.clear()
        result = original(self, input_ids, positions, forward_batch, *args, **kwargs)
        tensors = {f"h{index}": state for index, state in self.recorded_states.items()}
        if isinstance(result, tuple):
            captured = result[1]
            tensors["captured"] = (
                captured if torch.is_tensor(captured) else torch.cat(list(captured), dim=-1)
            )
        tensors["layers_to_capture"] = list(getattr(self, "layers_to_capture", ()))
        writer.write("target", forward_batch, positions, tensors)
        return result

    model_class.forward = forward


def _record_k3(writer: _Writer, module: Any) -> None:
    """``KimiK3LinearModel``: what SGLang itself captured; a twin tells what h[k] is."""
    model_class = module.KimiK3LinearModel
    original = model_class.forward

    @wraps(original)
    def forward(
        self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        result = original(self, input_ids, positions, forward_batch, *args, **kwargs)
        if isinstance(result, tuple) and positions.numel() and not writer.full:
            captured = result[1]
            packed = captured if torch.is_tensor(captured) else torch.cat(list(captured), dim=-1)
            layers = list(self.dspark_layers_to_capture)
            tensors = {"captured": packed, "layers_to_capture": layers}
            writer.write("target", forward_batch, positions, tensors)
        return result

    model_class.forward = forward


def _watch(norm: Any, index: int, states: dict[int, Any]) -> None:
    """Keep what enters layer ``index``: the norm's input with the residual added to it."""

    def keep(args: tuple[Any, ...], result: Any) -> None:
        entering = result[1] if isinstance(result, tuple) else args[0]
        states[index] = entering.detach().clone()

    norm.register_forward_hook(lambda _norm, args, result: keep(args, result))
    reducing: Callable[..., Any] | None = getattr(norm, "forward_with_allreduce_fusion", None)
    if reducing is not None:

        def forward_with_allreduce_fusion(*args: Any, **kwargs: Any) -> Any:
            result = reducing(*args, **kwargs)
            keep(args, result)
            return result

        norm.forward_with_allreduce_fusion = forward_with_allreduce_fusion


def _record_drafter(name: str, writer: _Writer, module: Any) -> None:
    """The draft model: the hidden states it is given after a prefill or a verify."""
    model_class = getattr(module, name)
    original = model_class.forward

    @wraps(original)
    def forward(
        self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        hidden = getattr(forward_batch.spec_info, "hidden_states", None)
        of_the_target = hidden is not None and not forward_batch.forward_mode.is_decode_or_idle()
        if of_the_target and not writer.full:
            writer.write("draft", forward_batch, positions, {"captured": hidden})
        return original(self, input_ids, positions, forward_batch, *args, **kwargs)

    model_class.forward = forward
