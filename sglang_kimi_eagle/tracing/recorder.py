"""Records prefill in the process that runs the target; loaded only where a trace is asked for.

While a prefill is recorded, and only then, the target captures the further states too
(``DeepseekV2Model.layers_to_capture``, read by ``forward`` on every release).  Decoding, verifying
and every CUDA graph keep the drafter's own.  The caller of ``forward`` gets those back, in the
form of the release: a list of tensors up to 0.5.16, one packed tensor from 0.5.17
(``srt/layers/aux_hidden_states.py``).
"""

from __future__ import annotations

import atexit
import functools
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.states import State, States, show
from sglang_kimi_eagle.tracing.launching import TRACE_STOPPED, graph_finding
from sglang_kimi_eagle.tracing.request import TraceRequest
from sglang_kimi_eagle.tracing.trace_file import SUFFIX, Facts, Piece, write_file

if TYPE_CHECKING:
    import torch

log = logging.getLogger("sglang_kimi_eagle")

_MODE = "EXTEND"
"""Prefill, in chunks or whole; verifying and the drafter's own extension have other names."""
_LONGEST_NAME = 120
_ANY_NUMBER = 1 << 30


@dataclass(frozen=True)
class Launch:
    """What every file of a launch says."""

    plugin: str
    sglang: str
    target: str
    drafter: str
    num_layers: int
    wired: States
    reason: str


@dataclass
class Recorder:
    """Records the first prompts that this process runs."""

    request: TraceRequest
    launch: Launch
    captures_embedding: bool
    """The release captures h[0] by itself (0.5.14 and later)."""
    partial_sums: bool
    """Captured states may lack their all-reduce unless that is mended (up to 0.5.13.post1)."""
    draft: Any = None
    """The draft model's ``ModelRunner``."""
    _parts: list[_Wrapped] = field(default_factory=list)

    @property
    def traced(self) -> States:
        """The states asked for, ascending."""
        asked = self.request.states
        return tuple(range(self.launch.num_layers + 1)) if asked is None else asked

    @property
    def completed(self) -> States:
        """States that must be whole sums beside the drafter's own.

        Every rank is asked for in order to see what each of them has: then nothing is mended
        beyond what the drafter gets.
        """
        return () if self.request.every_rank else self.traced

    def install(self, target: Any) -> Iterator[Diagnostic]:
        """Wrap the target and the draft model, once both are set up.

        Args:
            target: the target's ``ModelRunner``.

        Yields:
            Findings that refuse the launch: prefill runs from graphs in spite of
            `prefill_eagerly`.
        """
        graphs = [*_prefill_graphs(target), *_prefill_graphs(self.draft)]
        yield from graphs
        model = getattr(target.model, "language_model", target.model)
        if graphs or not model.pp_group.is_last_rank:
            return
        writer = _Writer(self._facts(model.config), self.request)
        capture = _Capture(
            model.model, self.launch.wired, self.traced, self.captures_embedding, writer
        )
        self._parts = [_Wrapped(model.model, capture.forward)]
        if self.draft is not None:
            self._parts.append(_Wrapped(self.draft.model, capture.draft_forward))
        writer.when_complete = self._remove
        if writer.records:
            atexit.register(writer.flush)
            log.info(
                "sglang-kimi-eagle: tracing %s of the first %d prompt tokens of rank %d into %s",
                show(sorted({*self.launch.wired, *self.traced})),
                self.request.tokens,
                writer.facts.rank,
                self.request.folder,
            )

    def _facts(self, config: Any) -> Facts:
        from sglang.srt.distributed import parallel_state

        tp_size = parallel_state.get_tensor_model_parallel_world_size()
        may_be_partial = self.partial_sums and self.request.every_rank and tp_size > 1
        # The embedding and the last layer's output are never deferred.
        inner = set(self.traced) - {0, self.launch.num_layers, *self.launch.wired}
        return Facts(
            **vars(self.launch),
            mode=_MODE,
            rank=parallel_state.get_tensor_model_parallel_rank(),
            tp_size=tp_size,
            order=0,
            hidden_size=config.hidden_size,
            partial=tuple(sorted(inner)) if may_be_partial else (),
            pieces=(),
        )

    def _remove(self) -> None:
        """Take every wrapper off: from here on nothing of the trace runs."""
        for part in self._parts:
            part.remove()


class _Wrapped:
    """A module whose ``forward`` goes through a function, until it is removed."""

    def __init__(self, module: Any, around: Callable[..., Any]) -> None:
        self._module = module
        original = module.forward

        @functools.wraps(original)
        def forward(
            input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if forward_batch.forward_mode.name != _MODE:
                return original(input_ids, positions, forward_batch, *args, **kwargs)
            run = functools.partial(original, input_ids, positions, forward_batch, *args, **kwargs)
            return around(run, input_ids, positions, forward_batch)

        self._forward = module.forward = forward

    def remove(self) -> None:
        # Somebody else may have wrapped the module since.
        if vars(self._module).get("forward") is self._forward:
            del self._module.forward


class _Capture:
    """The target's side of a trace: which states a prefill captures, and who gets them.

    Every rank captures alike, also those that record nothing: on some releases capturing is a
    collective operation.
    """

    def __init__(
        self,
        model: Any,
        wired: States,
        traced: States,
        captures_embedding: bool,
        writer: _Writer,
    ) -> None:
        last = len(model.layers)
        hooked = {last} if captures_embedding else {0, last}
        self._model = model
        self._wired = wired
        self._hooked = hooked & set(traced)
        self._captured = tuple(sorted({*wired, *traced} - hooked))
        extra = len(self._captured) + len(self._hooked) - len(wired)
        self._most_rows = _most_rows(model, extra + 2 * len(wired)) if extra else _ANY_NUMBER
        self._writer = writer

    def forward(self, run: Any, input_ids: Any, positions: Any, batch: Any) -> Any:
        """Run a prefill of the target; record it if it is to be recorded."""
        writer = self._writer
        lengths = _lengths(batch)
        rows = writer.take(0 if all(_health_checks(batch)) else sum(lengths))
        if not rows:
            return run()
        if getattr(batch, "can_run_tbo", False):
            # Layers that are run by two-batch overlap capture nothing.
            writer.passed_over("a prefill in two overlapping batches")
            return run()
        if sum(lengths) > self._most_rows:
            writer.passed_over(
                f"a prefill of {sum(lengths)} tokens: GPU memory for {self._most_rows}",
                "Lower --chunked-prefill-size, or trace fewer states.",
            )
            return run()
        hooked: dict[State, Any] = {}
        with self._capturing(hooked):
            hidden, captured = run()
        states = self._split(captured)
        if self._captured != self._wired:
            captured = self._drafters(captured)
        tokens = batch.input_ids if input_ids is None else input_ids
        writer.target(rows, lengths, tokens, positions, batch, {**states, **hooked})
        return hidden, captured

    def draft_forward(self, run: Any, input_ids: Any, positions: Any, batch: Any) -> Any:
        """Run a prefill of the draft model; record what it is given if its target's was."""
        self._writer.draft(input_ids, getattr(batch.spec_info, "hidden_states", None))
        return run()

    @contextmanager
    def _capturing(self, hooked: dict[State, Any]) -> Iterator[None]:
        """Make the model capture every traced state, for one forward."""
        model, own, last = self._model, self._model.layers_to_capture, len(self._model.layers)

        def entering(_layer: Any, args: Any) -> None:
            hooked[0] = args[1].clone()

        def leaving(_norm: Any, args: Any, result: Any) -> None:
            # The norm returns the sum of its two inputs beside the normed one.
            hooked[last] = (result[1] if isinstance(result, tuple) else args[0]).clone()

        hooks = []
        try:
            if self._captured != self._wired:
                model.layers_to_capture = list(self._captured)
            if 0 in self._hooked:
                hooks.append(model.layers[0].register_forward_pre_hook(entering))
            if last in self._hooked:
                hooks.append(model.norm.register_forward_hook(leaving))
            yield
        finally:
            model.layers_to_capture = own
            for hook in hooks:
                hook.remove()

    def _split(self, captured: Any) -> dict[State, Any]:
        """Return the captured states by k; nothing is copied."""
        parts = captured
        if not isinstance(captured, list):
            parts = captured.chunk(len(self._captured), dim=-1)
        return dict(zip(self._captured, parts, strict=True))

    def _drafters(self, captured: Any) -> Any:
        """Return what the model would have captured for the drafter alone."""
        states = self._split(captured)
        own = [states[k] for k in self._wired]
        if isinstance(captured, list):
            return own
        import torch

        return torch.cat(own, dim=-1)


class _Writer:
    """Writes the files of one process, and knows when enough is written.

    Nothing that goes wrong here may reach the server.
    """

    def __init__(self, facts: Facts, request: TraceRequest) -> None:
        self.facts = facts
        self.records = request.every_rank or facts.rank == 0
        self.when_complete: Callable[[], None] = lambda: None
        self._request = request
        self._process = secrets.token_hex(4)
        self._left = request.tokens
        self._files = 0
        self._warned = False
        self._pending: tuple[dict[str, torch.Tensor], tuple[Piece, ...]] | None = None
        self._names = _Names(self._process)

    def take(self, tokens: int) -> int:
        """Return how many of the ``tokens`` of a new forward are recorded; 0 for none."""
        self.flush()
        if self._left <= 0:
            self._finish()
        return min(tokens, self._left)

    def target(
        self,
        rows: int,
        lengths: list[int],
        tokens: Any,
        positions: Any,
        batch: Any,
        states: dict[State, Any],
    ) -> None:
        """Keep the first ``rows`` of a prefill of the target until its draft has run."""
        self._left -= rows
        if not self.records:
            return
        try:
            short = [k for k, state in states.items() if state.shape[0] < rows]
            if short:
                # Context parallelism gives each rank a share of the rows.
                self.passed_over(f"a prefill of which this rank has no whole {show(short)}")
                return
            kept = {"tokens": _long(tokens, rows), "positions": _long(positions, rows)}
            kept |= {f"h.{k}": _kept(state, rows) for k, state in states.items()}
            self._pending = (kept, self._names.pieces(batch, lengths, rows))
        except Exception as error:
            self._stop(error)

    def draft(self, tokens: Any, fed: Any) -> None:
        """Add what the draft model is given after the pending prefill, and write both."""
        if self._pending is not None:
            try:
                kept, _ = self._pending
                rows = len(kept["tokens"])
                width = len(self.facts.wired) * self.facts.hidden_size
                if fed is not None and fed.shape[0] >= rows and fed.shape[-1] == width:
                    kept |= {"fed": _kept(fed, rows), "fed_tokens": _long(tokens, rows)}
            except Exception as error:
                self._stop(error)
            self.flush()
        if self._left <= 0:
            self._finish()

    def flush(self) -> None:
        """Write what is pending."""
        if self._pending is None:
            return
        (tensors, pieces), self._pending = self._pending, None
        facts = msgspec.structs.replace(self.facts, order=self._files, pieces=pieces)
        name = f"{self._files:05}-rank{facts.rank}-{self._process}{SUFFIX}"
        try:
            write_file(self._request.folder / name, tensors, facts)
            self._files += 1
        except Exception as error:
            self._stop(error)
            return
        if self._left <= 0:
            log.info(
                "sglang-kimi-eagle: the trace of rank %d is complete: %d tokens in %d files in %s",
                facts.rank,
                self._request.tokens - self._left,
                self._files,
                self._request.folder,
            )

    def passed_over(self, seen: str, mend: str = "") -> None:
        """Warn, once, about a prefill that is not recorded."""
        if self.records and not self._warned:
            self._warned = True
            _warn(self._request, "A prefill is not recorded.", seen, mend)

    def _stop(self, error: Exception) -> None:
        """Record nothing more; the wrappers stay, so that every rank captures alike."""
        self.records, self._pending = False, None
        _warn(self._request, "Tracing has stopped.", f"{type(error).__name__}: {error}", "")

    def _finish(self) -> None:
        done, self.when_complete = self.when_complete, lambda: None
        done()


class _Names:
    """Names the sequences of a batch, so that the chunks of a prompt share a name."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._count = 0
        self._unfinished: dict[int, str] = {}

    def pieces(self, batch: Any, lengths: list[int], rows: int) -> tuple[Piece, ...]:
        """Return the pieces of the first ``rows`` of a prefill."""
        names = getattr(batch, "rids", None) or self._of_slots(batch, lengths)
        found, row = [], 0
        for name, length, check in zip(names, lengths, _health_checks(batch), strict=True):
            taken = min(length, rows - row)
            if taken > 0 and not check:
                found.append(Piece(f"{self._process}/{name[:_LONGEST_NAME]}", row, taken))
            row += length
        return tuple(found)

    def _of_slots(self, batch: Any, lengths: list[int]) -> list[str]:
        """Make names where the batch has no request ids (0.5.9): by slot, until the prompt ends."""
        names = []
        slots, wholes = batch.req_pool_indices.tolist(), batch.orig_seq_lens.tolist()
        for slot, whole, before, length in zip(
            slots, wholes, batch.extend_prefix_lens_cpu, lengths, strict=True
        ):
            name = self._unfinished.pop(slot, None)
            if name is None:
                name = f"prompt-{self._count}"
                self._count += 1
            if before + length < whole:
                self._unfinished[slot] = name
            names.append(name)
        return names


def place(model: str) -> str:
    """Return where a model is for a reader that was started elsewhere: a path, or its hub id."""
    path = Path(model)
    return str(path.absolute()) if path.exists() else model


def _prefill_graphs(runner: Any) -> Iterator[Diagnostic]:
    """Find that prefill runs from graphs.

    ``ModelRunner`` has a ``piecewise_cuda_graph_runner`` up to 0.5.13.post1 and a
    ``prefill_cuda_graph_runner`` later, where its eager runner stands in for none.
    """
    for name in ("piecewise_cuda_graph_runner", "prefill_cuda_graph_runner"):
        graphs = getattr(runner, name, None)
        if graphs is not None and graphs is not getattr(runner, "eager_runner", None):
            yield graph_finding(
                f"{name} is {type(graphs).__name__}",
                "Pass --cuda-graph-backend-prefill disabled (--disable-piecewise-cuda-graph up to "
                "0.5.13.post1).",
            )


def _most_rows(model: Any, states: int) -> int:
    """Return how many rows can be captured in half of the GPU memory that is free on every rank."""
    import torch

    weight = model.norm.weight
    if weight.device.type != "cuda":
        return _ANY_NUMBER
    from sglang.srt.distributed import parallel_state

    free = torch.cuda.mem_get_info()[0]
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    group = parallel_state.get_tp_group()
    lowest = torch.tensor(free, dtype=torch.int64)
    if group.world_size > 1:
        reduce = torch.distributed.ReduceOp.MIN
        torch.distributed.all_reduce(lowest, reduce, group=group.cpu_group)
    row: int = states * weight.numel() * weight.element_size()
    return int(lowest) // 2 // row


def _health_checks(batch: Any) -> list[bool]:
    """Tell which requests of a prefill are SGLang's own: one token that nobody asked about."""
    names = getattr(batch, "rids", None)
    if names:
        return [name.startswith("HEALTH_CHECK") for name in names]
    wholes = getattr(batch, "orig_seq_lens", None)
    if wholes is None:
        return [False] * len(_lengths(batch))
    return [whole == 1 for whole in wholes.tolist()]


def _lengths(batch: Any) -> list[int]:
    """Return how many rows each request of a prefill has."""
    lengths = batch.extend_seq_lens_cpu
    if lengths is None:
        lengths = batch.extend_seq_lens
    return [int(length) for length in lengths]


def _kept(tensor: Any, rows: int) -> torch.Tensor:
    """Copy the first rows to the CPU: the model goes on writing to its own."""
    kept: torch.Tensor = tensor.detach()[:rows].to("cpu", copy=True).contiguous()
    return kept


def _long(tensor: Any, rows: int) -> torch.Tensor:
    return _kept(tensor, rows).long()


def _warn(request: TraceRequest, message: str, seen: str, mend: str) -> None:
    finding: Diagnostic = TRACE_STOPPED.found(
        message,
        where=str(request.folder),
        seen=seen,
        leads_to="The server goes on; the trace lacks what is not recorded.",
        mend=mend,
    )
    log.warning("sglang-kimi-eagle: %s", finding.render())
