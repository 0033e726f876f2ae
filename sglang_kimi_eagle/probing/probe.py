"""Score every candidate wiring of a drafter on a trace, and judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter import Drafter
from sglang_kimi_eagle.drafter.values import whole
from sglang_kimi_eagle.launch import wiring_of
from sglang_kimi_eagle.measuring import all_finite
from sglang_kimi_eagle.probing.acceptance import Comparison, Difference, Tally, tally
from sglang_kimi_eagle.probing.candidates import Candidate, candidates, merged, orders
from sglang_kimi_eagle.probing.findings import (
    CANNOT_TELL,
    DIFFERS,
    FED_OTHERWISE,
    MISMATCH,
    NO_MEMORY,
    NOT_THE_TARGETS,
    NOTHING_TO_SCORE,
    STATES_MISSING,
    WEAK,
    ProbeRefused,
)
from sglang_kimi_eagle.probing.loading import Loaded, check_target, load
from sglang_kimi_eagle.probing.prompts import read_prompts
from sglang_kimi_eagle.probing.report import Report, Scored, counted, worst
from sglang_kimi_eagle.probing.samples import Sample, Samples, choose
from sglang_kimi_eagle.probing.scoring import score
from sglang_kimi_eagle.probing.search import Searched, search
from sglang_kimi_eagle.releases import NEWEST, RELEASES
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.states import States, show
from sglang_kimi_eagle.tracing.finite import finite_state
from sglang_kimi_eagle.tracing.request import VARIABLE
from sglang_kimi_eagle.tracing.trace_file import Trace, UnreadableTrace, read_trace
from sglang_kimi_eagle.wiring import read_ids

DEFAULT_STEPS = 3
LEAST_ROWS = 64
"""Fewer rows than that decide nothing."""
LEAST_LENGTH = 1.2
"""A best candidate below that acceptance length is no drafter's."""


@dataclass(frozen=True)
class Options:
    """What a user asks of a probe."""

    target: str | None = None
    """Folder or hub id of the target; None is the one of the trace."""
    steps: int = DEFAULT_STEPS
    search: bool = False
    limit: int | None = None
    """Rows to score, as whole sequences in random order; None for all."""
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Progress:
    """Told how far a probe is; the default says nothing."""

    begin: Callable[[str, int], None] = lambda _what, _total: None
    """A stage, and how many parts it has."""
    step: Callable[[int], None] = lambda _done: None
    """How many parts of it are done."""


def run_probe(
    drafter: Drafter, folder: Path, options: Options, progress: Progress | None = None
) -> Report:
    """Score the candidate wirings of ``drafter`` on the trace in ``folder``.

    Raises:
        ProbeRefused: it cannot be done; the findings say why.
    """
    try:
        if options.target is not None:
            check_target(options.target)
        trace = read_trace(folder)
        _check(drafter, trace)
        samples = choose(
            trace,
            read_prompts(folder),
            limit=options.limit,
            seed=options.seed,
            vocabulary=whole(drafter.config, "vocab_size"),
        )
        return _Probe(drafter, trace, samples, options, progress or Progress()).report()
    except UnreadableTrace as problem:
        raise ProbeRefused(problem.finding) from problem
    except MemoryError as problem:
        raise ProbeRefused(_no_memory(options, problem)) from problem
    except RuntimeError as problem:
        # torch.OutOfMemoryError, and CPU allocations, which fail with a plain RuntimeError.
        if "memory" not in str(problem):
            raise
        raise ProbeRefused(_no_memory(options, problem)) from problem


class _Probe:
    def __init__(
        self, drafter: Drafter, trace: Trace, samples: Samples, options: Options, told: Progress
    ) -> None:
        self.drafter, self.trace, self.samples = drafter, trace, samples
        self.options, self.told = options, told
        self.facts = trace.facts
        self.release = RELEASES.get(self.facts.sglang, RELEASES[NEWEST])
        self.target = options.target or self.facts.target
        self.running: States = tuple(self.facts.wired)
        # What may be one rank's share of a sum is no state.
        self.states = tuple(k for k in trace.states if k not in self.facts.partial)
        self.tallies: dict[States, Tally] = {}

    def report(self) -> Report:
        loaded = self._load()
        found = self._candidates(loaded.reference.num_states)
        scorable = [one for one in found if not self._lacks(one)]
        missing = tuple((one, self._lacks(one)) for one in found if self._lacks(one))
        searched = self._search(loaded, scorable) if self.options.search else None
        if searched is not None:
            scorable = merged(scorable, searched.best)
        if not scorable:
            raise ProbeRefused(*self._none(loaded.reference.num_states, missing))
        self._score(loaded, scorable, "scoring")
        scorable = merged(scorable, orders(self._ranked(scorable)[0]))
        self._score(loaded, scorable, "scoring other orders")
        ranked = self._ranked(scorable)
        comparison = Comparison([self.tallies[one.states] for one in ranked], self.samples.rows)
        scored = tuple(
            Scored(one, comparison.scores(index), self._reachable(one))
            for index, one in enumerate(ranked)
        )
        differences = [comparison.difference(0, other) for other in range(1, len(ranked))]
        clear = (
            bool(differences)
            and all(difference.settled for difference in differences)
            and self.samples.rows >= LEAST_ROWS
            and scored[0].length >= LEAST_LENGTH
        )
        report = Report(
            drafter=str(self.drafter.folder),
            trace=str(self.trace.folder),
            target=self.target,
            sglang=self.facts.sglang,
            running=self.running,
            steps=self.options.steps,
            sequences=len(self.samples.chosen),
            rows=self.samples.rows,
            generated=self.samples.generated,
            measured=self.samples.measured,
            embedding=loaded.embedding_from,
            scored=scored,
            missing=missing,
            difference=_closest(differences),
            clear=clear,
            searched=searched,
            findings=(),
        )
        return _with_findings(report, self._findings(report, missing))

    def _none(
        self, count: int, missing: Sequence[tuple[Candidate, States]]
    ) -> Iterator[Diagnostic]:
        yield NOTHING_TO_SCORE.found(
            f"No candidate of {count} states can be scored.",
            where=str(self.trace.folder),
            seen=f"traced {show(self.states)}; the server fed {show(self.running)}",
            leads_to="Nothing can be said about the drafter.",
            mend="Record all states (states=all), and add --search for a drafter whose config "
            "names none.",
        )
        if missing:
            yield _missing(self.trace, missing)

    def _load(self) -> Loaded:
        self.told.begin("reading the drafter", 1)
        loaded = load(
            self.drafter,
            self.target,
            self.samples.tokens,
            release=self.facts.sglang,
            device=self.options.device,
            named=self.options.target is not None,
        )
        self.told.step(1)
        return loaded

    def _candidates(self, count: int) -> list[Candidate]:
        resolved = wiring_of(self.drafter, self.facts.num_layers, self.release, Settings())
        return candidates(
            read_ids(self.drafter.config),
            self.running,
            resolved.states,
            self.facts.num_layers,
            count,
        )

    def _lacks(self, candidate: Candidate) -> States:
        return tuple(k for k in sorted(candidate.states) if k not in self.states)

    def _reachable(self, candidate: Candidate) -> bool:
        reachable = self.release.reachable(self.facts.num_layers)
        return candidate.ascending and all(k in reachable for k in candidate.states)

    def _score(self, loaded: Loaded, scorable: Sequence[Candidate], stage: str) -> None:
        new = [one for one in scorable if one.states not in self.tallies]
        chosen = self.samples.chosen
        self.told.begin(stage, len(new) * len(chosen))
        finished = 0

        def done(_sample: Sample) -> None:
            nonlocal finished
            finished += 1
            self.told.step(finished)

        for one in new:
            hits = score(loaded, self.trace, chosen, one.states, self.options.steps, done)
            self.tallies[one.states] = tally(hits)

    def _search(self, loaded: Loaded, scorable: Sequence[Candidate]) -> Searched:
        self.told.begin("searching", 1)
        total = 0

        def done(tried: int, expected: int) -> None:
            nonlocal total
            if expected != total:
                total = expected
                self.told.begin("searching", expected)
            self.told.step(tried)

        starts = [one.states for one in scorable]
        return search(loaded, self.trace, self.states, self.samples.chosen, starts, done)

    def _ranked(self, scorable: Sequence[Candidate]) -> list[Candidate]:
        """Order candidates by acceptance length, then by agreement at the first step."""

        def rank(candidate: Candidate) -> tuple[float, int]:
            found = self.tallies[candidate.states]
            return -found.length, -int(found.right[:, 0].sum())

        return sorted(scorable, key=rank)

    def _findings(
        self, report: Report, missing: Sequence[tuple[Candidate, States]]
    ) -> list[Diagnostic]:
        findings = []
        if missing:
            findings.append(_missing(self.trace, missing))
        if not self.samples.generated:
            findings.append(
                NOT_THE_TARGETS.found(
                    "The scored tokens are those of the traced text.",
                    where=str(self.trace.folder),
                    seen="no prompts.json",
                    leads_to="Acceptance lengths are lower than in serving.",
                    mend="sglang-kimi-eagle probe DRAFTER --launch -- ... records what the target "
                    "says itself.",
                )
            )
        findings += _fed_otherwise(self.trace, self.samples.chosen[0], self.running)
        if report.best.length < LEAST_LENGTH:
            findings.append(
                WEAK.found(
                    "No candidate drafts what the target says.",
                    where=report.drafter,
                    seen=f"expected acceptance length {report.best.length:.2f} with "
                    f"{show(report.best.states)}",
                    leads_to="None of them is recommended.",
                    mend="Record all states (states=all) and add --search; see that the drafter "
                    "is one for this target.",
                )
            )
        elif not report.clear:
            findings.append(
                CANNOT_TELL.found(
                    report.verdict,
                    where=report.trace,
                    seen=f"{counted(report.rows, 'row')} of "
                    f"{counted(report.sequences, 'sequence')}",
                    leads_to="Nothing is recommended.",
                    mend="Record more prompts, or longer ones.",
                )
            )
        elif report.best.states != self.running:
            findings.append(_differs(report))
        return worst(findings)


def _with_findings(report: Report, findings: Sequence[Diagnostic]) -> Report:
    from dataclasses import replace

    return replace(report, findings=tuple(findings))


def _closest(differences: Sequence[Difference]) -> Difference | None:
    return differences[0] if differences else None


def _check(drafter: Drafter, trace: Trace) -> None:
    config, facts = drafter.config, trace.facts
    width = config.get("target_hidden_size") or config.get("hidden_size")
    if width != facts.hidden_size:
        raise ProbeRefused(
            MISMATCH.found(
                "The drafter takes states of another width than the trace has.",
                where=drafter.config_path,
                seen=f"{width}, and {facts.hidden_size} in a trace of {facts.target}",
                leads_to="Nothing can be scored.",
                mend="Probe with a trace of the drafter's own target.",
            )
        )


def _missing(trace: Trace, missing: Sequence[tuple[Candidate, States]]) -> Diagnostic:
    states = sorted({k for _, lacking in missing for k in lacking})
    wanted = sorted({*trace.states, *states})
    return STATES_MISSING.found(
        f"{len(missing)} candidates need states that the trace does not have.",
        where=str(trace.folder),
        seen=f"{show(states)} missing; for "
        + "; ".join(show(candidate.states) for candidate, _ in missing[:4]),
        leads_to="They are not scored.",
        mend=f"Record again with {VARIABLE}='FOLDER?states={','.join(map(str, wanted))}' or "
        "states=all.",
    )


def _fed_otherwise(trace: Trace, sample: Sample, running: States) -> list[Diagnostic]:
    """Compare what the draft model was given with the states that it was wired to."""
    import torch

    if not trace.has_fed or not running or not set(running) <= set(trace.states):
        return []
    fed = trace.fed(sample.sequence)
    wired = torch.cat([finite_state(trace, sample.sequence, k) for k in running], dim=-1)
    if fed.shape == wired.shape and torch.equal(fed, wired):
        return []
    return [
        FED_OTHERWISE.found(
            "The draft model was given something else than the states it was wired to.",
            where=str(sample.sequence.pieces[0][0]),
            seen=f"tensor fed of shape {list(fed.shape)}"
            + ("" if all_finite(fed) else " with NaN or infinity in it")
            + f", wired to {show(running)}",
            leads_to="Serving can be worse than the numbers of the running wiring say.",
            mend="Look for another plugin or a patch that changes captured states: "
            "sglang-kimi-eagle doctor.",
        )
    ]


def _differs(report: Report) -> Diagnostic:
    states = ",".join(map(str, report.best.states))
    if report.best.reachable:
        mend = (
            f"sglang-kimi-eagle pin DRAFTER --states {states} --output COPY, or "
            f"SGLANG_KIMI_EAGLE_STATES={states} for a read-only checkpoint."
        )
    else:
        mend = (
            f"SGLang {report.sglang} cannot capture them so: the engine concatenates states in "
            "ascending order, and captures no last layer. Reorder the columns of fc.weight, or "
            "use another drafter."
        )
    return DIFFERS.found(
        f"The drafter drafts best from {show(report.best.states)}.",
        where=report.drafter,
        seen=f"the traced server fed it {show(report.running)}",
        leads_to=report.verdict,
        mend=mend,
    )


def _no_memory(options: Options, problem: Exception) -> Diagnostic:
    return NO_MEMORY.found(
        "The drafter does not fit.",
        where=options.device,
        seen=str(problem)[:300],
        leads_to="Nothing was scored.",
        mend="Add --device cpu, or stop what else uses the device.",
    )
