"""What one SGLang server says of itself, whatever the release.

Read in the sources of 0.5.9 - 0.5.23:

- ``/server_info`` (``srt/entrypoints/http_server.py``): the launch's arguments, ``version``, and
  ``internal_states``, one for each data-parallel rank, with ``avg_spec_accept_length`` (tokens per
  verify step since the start, the target's own included; missing until ``decode_log_interval``
  decode steps are done) and ``last_gen_throughput``.
- ``/metrics``, only with ``--enable-metrics``: gauges ``sglang:spec_accept_length`` (the last log
  interval), ``sglang:gen_throughput``, ``sglang:num_running_reqs``, ``sglang:spec_num_steps`` and
  ``sglang:spec_num_draft_tokens`` (0.5.13 and later), and the counter
  ``sglang:realtime_tokens_total{mode="decode"}``, which goes on at every decode step.
  ``sglang:spec_accept_rate`` is not used: up to 0.5.10.post1 it counts the target's own tokens.
- ``/v1/loads``: requests that run, and from 0.5.17 on ``decode_moments``, whose second and sixth
  numbers count verify steps and their tokens.  Up to 0.5.12.post1 it fails with status 500 when
  metrics are on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sglang_kimi_eagle.diagnostics import printable
from sglang_kimi_eagle.watching import exposition
from sglang_kimi_eagle.watching.client import Client, Reply
from sglang_kimi_eagle.watching.exposition import Sample
from sglang_kimi_eagle.watching.findings import NOT_SGLANG, UNREACHABLE, WatchFailed

LOG_INTERVAL = 40
"""SGLang's own ``decode_log_interval``, in decode steps."""
_HUGE = 1e15
_MAX_RANKS = 4096

_LENGTH = "sglang:spec_accept_length"
_THROUGHPUT = "sglang:gen_throughput"
_RUNNING = "sglang:num_running_reqs"
_STEPS = "sglang:spec_num_steps"
_DRAFTS = "sglang:spec_num_draft_tokens"
_TOKENS = "sglang:realtime_tokens_total"
_ORDER = ("priority", "pp_rank", "tp_rank", "moe_ep_rank")
"""Labels of which the lowest values are taken: all priorities, and the first rank."""
_WANTED = frozenset({_LENGTH, _THROUGHPUT, _RUNNING, _STEPS, _DRAFTS, _TOKENS})


@dataclass(frozen=True)
class Draft:
    """The shape of a server's speculation."""

    num_steps: int
    """Draft steps, so that a verify step yields at most one token more."""
    topk: int
    num_draft_tokens: int
    """Tokens of one verify step, the last accepted one included."""

    @property
    def ceiling(self) -> int:
        """The largest acceptance length."""
        return self.num_steps + 1

    def rate(self, length: float) -> float | None:
        """Return accepted drafts over drafted tokens at an acceptance length."""
        drafted = self.num_draft_tokens - 1
        return (length - 1) / drafted if drafted > 0 else None


@dataclass(frozen=True)
class Counts:
    """Verify steps of single requests, and the tokens they yielded, since some beginning."""

    steps: float
    tokens: float


@dataclass(frozen=True)
class Reading:
    """What a server said at one moment; None where it says nothing."""

    at: float
    """Seconds of the monotonic clock."""
    version: str
    algorithm: str
    """In capitals; empty without speculation."""
    target: str
    drafter: str
    drafter_revision: str | None
    draft: Draft | None
    tp_size: int
    graphs: bool
    """Decode steps may be replayed from CUDA graphs."""
    log_interval: int
    lengths: tuple[float | None, ...]
    """Acceptance length of each data-parallel rank since its start."""
    recent_length: float | None
    """Acceptance length of the last log interval, a mean over ranks; needs metrics."""
    counts: Counts | None
    """Exact counts, all ranks together; 0.5.17 and later."""
    decode_tokens: float | None
    """Tokens of all decode steps of all ranks; needs metrics."""
    throughput: float | None
    """Tokens per second of all ranks as the server says it; old while it is idle."""
    running: float | None
    """Requests that are running."""
    metrics: bool
    """The server publishes ``/metrics``."""

    @property
    def length(self) -> float | None:
        """The mean acceptance length of the ranks that have one, since the start."""
        known = [length for length in self.lengths if length is not None]
        return sum(known) / len(known) if known else None

    @property
    def steps_at_least(self) -> float:
        """Verify steps behind `length`: an estimate from counters, else a lower bound."""
        known = [length for length in self.lengths if length is not None]
        if not known:
            return 0.0
        if self.counts is not None:
            return self.counts.steps
        if self.decode_tokens is not None and self.length:
            return self.decode_tokens / self.length
        # Each average is a fraction of whole numbers: there were as many steps as its denominator.
        return sum(max(denominator_of(length), self.log_interval) for length in known)


def denominator_of(average: float) -> int:
    """Return the smallest denominator of a fraction that is exactly this float."""
    for bound in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        fraction = Fraction(average).limit_denominator(bound)
        if float(fraction) == average:
            return fraction.denominator
    return 1


def read_server(client: Client) -> Reading:
    """Ask a server for everything that is watched.

    Raises:
        WatchFailed: it cannot be reached, or is no SGLang server.
    """
    info = _server_info(client)
    states = [state for state in info["internal_states"][:_MAX_RANKS] if isinstance(state, dict)]
    settings: Mapping[str, Any] = {**info, **states[0]} if states else info
    samples = _metrics(client)
    loads = _loads(client)
    tokens = [s for s in samples if s.name == _TOKENS and s.labels.get("mode") == "decode"]
    lengths = [value for value in _values(samples, _LENGTH) if value >= 1]
    running = _values(samples, _RUNNING) or _known(load.get("num_running_reqs") for load in loads)
    throughput = _values(samples, _THROUGHPUT) or _known(
        state.get("last_gen_throughput") for state in states
    )
    algorithm = text_of(settings.get("speculative_algorithm")).upper()
    return Reading(
        at=time.monotonic(),
        version=text_of(info.get("version")),
        algorithm="" if algorithm == "NONE" else algorithm,
        target=text_of(settings.get("model_path")),
        drafter=text_of(settings.get("speculative_draft_model_path")),
        drafter_revision=text_of(settings.get("speculative_draft_model_revision")) or None,
        draft=_draft(settings, samples),
        tp_size=_whole(settings.get("tp_size")) or 1,
        graphs=not settings.get("disable_cuda_graph"),
        log_interval=_whole(settings.get("decode_log_interval")) or LOG_INTERVAL,
        lengths=tuple(_length(state) for state in states),
        recent_length=sum(lengths) / len(lengths) if lengths else None,
        counts=_counts(loads),
        decode_tokens=sum(_of_first_ranks(tokens)) if tokens else None,
        throughput=sum(throughput) if throughput else None,
        running=sum(running) if running else None,
        metrics=bool(samples),
    )


def number_of(value: object) -> float | None:
    """Return a JSON value as a number that is finite, not negative and not absurd, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < _HUGE and math.isfinite(value) else None


def text_of(value: object) -> str:
    """Return a JSON string, made printable and clipped; empty for anything else."""
    return printable(value) if isinstance(value, str) else ""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON of an unknown hand.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _server_info(client: Client) -> dict[str, Any]:
    path = "/server_info"
    reply = client.get(path)
    if reply.status == 404:
        path = "/get_server_info"
        reply = client.get(path)
    where = f"{client.address}{path}"
    if reply.status >= 500:
        raise WatchFailed(
            UNREACHABLE.found(
                "The server answers with an error.",
                where=where,
                seen=f"status {reply.status}",
                leads_to="Nothing is known about it.",
                mend="Wait until it has started; otherwise look into its log.",
            )
        )
    why = f"status {reply.status}"
    if reply.status == 200:
        try:
            info = parse_json(reply.body)
        except ValueError:
            why = f"no JSON: {reply.body[:60]!r}"
        else:
            if isinstance(info, dict) and isinstance(info.get("internal_states"), list):
                if text_of(info.get("version")):
                    return info
                why = "JSON without a version"
            else:
                why = "JSON without internal_states"
    raise WatchFailed(
        NOT_SGLANG.found(
            "This is not an SGLang server.",
            where=where,
            seen=why,
            leads_to="Nothing is known about its speculation.",
            mend="Give the address that sglang.launch_server listens on, not that of a router.",
        )
    )


def _metrics(client: Client) -> list[Sample]:
    reply = client.get("/metrics")
    if reply.status != 200:
        return []
    return exposition.parse(reply.body.decode("utf-8", "replace"), _WANTED)


def _loads(client: Client) -> list[Mapping[str, Any]]:
    reply: Reply = client.get("/v1/loads")
    if reply.status != 200:
        return []
    try:
        answer = parse_json(reply.body)
    except ValueError:
        return []
    loads = answer.get("loads") if isinstance(answer, dict) else None
    if not isinstance(loads, list):
        return []
    return [load for load in loads[:_MAX_RANKS] if isinstance(load, dict)]


def _counts(loads: Sequence[Mapping[str, Any]]) -> Counts | None:
    steps = tokens = 0.0
    for load in loads:
        moments = load.get("decode_moments")
        if not isinstance(moments, list) or len(moments) < 6:
            continue
        own_steps, own_tokens = number_of(moments[1]), number_of(moments[5])
        if own_steps is None or own_tokens is None:
            return None
        steps += own_steps
        tokens += own_tokens
    return Counts(steps, tokens) if steps > 0 else None


def _draft(settings: Mapping[str, Any], samples: Sequence[Sample]) -> Draft | None:
    steps = _whole(settings.get("speculative_num_steps"))
    tokens = _whole(settings.get("speculative_num_draft_tokens"))
    # Adaptive speculation changes both while it serves.
    active_steps, active_tokens = (max(_values(samples, n), default=0) for n in (_STEPS, _DRAFTS))
    steps, tokens = int(active_steps) or steps, int(active_tokens) or tokens
    if steps is None and tokens is None:
        return None
    topk = _whole(settings.get("speculative_eagle_topk")) or 1
    steps = steps or max((tokens or 2) - 1, 1)
    return Draft(steps, topk, tokens or steps + 1)


def _length(state: Mapping[str, Any]) -> float | None:
    length = number_of(state.get("avg_spec_accept_length"))
    return length if length is not None and 1 <= length <= 1000 else None


def _whole(value: object) -> int | None:
    number = number_of(value)
    return int(number) if number and number == int(number) and number < 1_000_000 else None


def _known(values: Any) -> list[float]:
    return [number for value in values if (number := number_of(value)) is not None]


def _values(samples: Sequence[Sample], name: str) -> list[float]:
    return _of_first_ranks([sample for sample in samples if sample.name == name])


def _of_first_ranks(samples: Sequence[Sample]) -> list[float]:
    """Take one value of each data-parallel rank: its tensor-parallel ranks say the same."""
    by_rank: dict[str, tuple[tuple[str, ...], float]] = {}
    for sample in samples:
        order = tuple(sample.labels.get(name, "") for name in _ORDER)
        rank = sample.labels.get("dp_rank", "")
        if 0 <= sample.value < _HUGE and (rank not in by_rank or order < by_rank[rank][0]):
            by_rank[rank] = (order, sample.value)
    return [value for _, value in by_rank.values()]
