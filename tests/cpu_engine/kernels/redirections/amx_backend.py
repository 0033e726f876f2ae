"""The ``intel_amx`` attention backend on a processor without AMX, 0.5.16 and later."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.arg_groups.overrides", _keep_the_backend)
    after_import("sglang.srt.layers.attention.intel_amx_backend", _prepared_lengths)


def _keep_the_backend(module: Any) -> None:
    """``arg_groups/overrides.py``, 0.5.16 and 0.5.17: no fallback from intel_amx to torch_native.

    These releases build both phases' backend from ``attention_backend``, which falls back,
    when the two phases name the same one; later ones build what the phases name.
    """
    if hasattr(module, "cpu_has_amx_support"):
        module.cpu_has_amx_support = lambda: True


def _prepared_lengths(module: Any) -> None:
    """``layers/attention/intel_amx_backend.py``, 0.5.16 to 0.5.18: lengths of speculation.

    Both forwards of the backend replace the lengths prepared for a verify or for the
    branches of a draft by those of the batch, which leave the drafted tokens out.
    """
    backend = module.IntelAMXAttnBackend

    def lengths_of_verify(instance: Any) -> Any:
        return instance.extend_metadata and instance.extend_metadata[0]

    def lengths_of_branches(instance: Any) -> Any:
        return instance.draft_decode_metadata and instance.draft_decode_metadata[1]

    backend.forward_extend = _with_lengths(backend.forward_extend, lengths_of_verify)
    backend.forward_decode = _with_lengths(backend.forward_decode, lengths_of_branches)


def _with_lengths(original: Callable[..., Any], prepared: Callable[[Any], Any]) -> Any:
    """``original``, seeing the ``prepared`` lengths of its backend as those of the batch."""

    @wraps(original)
    def forward(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        of_the_batch = forward_batch.seq_lens
        lengths = prepared(self)
        if lengths is not None:
            forward_batch.seq_lens = lengths
        try:
            return original(self, q, k, v, layer, forward_batch, *args, **kwargs)
        finally:
            forward_batch.seq_lens = of_the_batch

    return forward
