"""What can go wrong with a probe, and the exception that carries it to the command."""

from __future__ import annotations

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

UNSUPPORTED = rule(
    "KE831",
    "probe-drafter-unsupported",
    Severity.ERROR,
    "The drafter uses something that the reference draft model does not compute: quantised "
    "weights, several layers, an unknown kind of rope or activation. A guess would be scored as if "
    "it were the drafter, so it is refused.",
    example='{"quantization_config": {"quant_method": "quark"}}',
)
MISMATCH = rule(
    "KE832",
    "probe-trace-mismatch",
    Severity.ERROR,
    "The trace is of a target that the drafter is not made for: its states have another width, or "
    "its tokens are not in the drafter's vocabulary.",
    example="A drafter with target_hidden_size 4096, and a trace of a target of width 7168",
)
NOTHING_TO_SCORE = rule(
    "KE833",
    "probe-nothing-to-score",
    Severity.ERROR,
    "The trace has no sequence that a chain of drafts can be compared with: each one is too short, "
    "or its beginning came from the prefix cache and was not run, so that its states are missing.",
    example="A trace of one prompt that the server had in its cache",
)
STATES_MISSING = rule(
    "KE834",
    "probe-states-missing",
    Severity.WARNING,
    "Some candidates need states that the trace does not have. They are not scored, and the right "
    "wiring may be one of them.",
    example="SGLANG_KIMI_EAGLE_TRACE=FOLDER without states=all, which records the running wiring",
)
NOT_THE_TARGETS = rule(
    "KE835",
    "probe-text-only",
    Severity.NOTE,
    "No `prompts.json` beside the trace says which tokens the target chose itself. All of them are "
    "scored, so that agreement is with the text of the prompts and not with the target: the "
    "numbers are lower than in serving, but compare wirings all the same.",
    example="A trace of ordinary traffic",
)
CANNOT_TELL = rule(
    "KE836",
    "probe-cannot-tell",
    Severity.WARNING,
    "No candidate is better than the others beyond chance. Nothing is recommended, and nothing is "
    "written.",
    example="sglang-kimi-eagle probe DRAFTER --trace a trace of 40 tokens",
)
DIFFERS = rule(
    "KE837",
    "probe-wiring-differs",
    Severity.WARNING,
    "The drafter drafts best from other states than the traced server feeds it.",
    example="ids [2, 30, 58] of a drafter trained on h[3], h[31], h[59], on SGLang 0.5.13 or later",
)
NOT_WRITTEN = rule(
    "KE838",
    "probe-nothing-to-write",
    Severity.ERROR,
    "`--write` was given, and there is nothing that can be written: no clear verdict, or states "
    "that no SGLang release captures in that order.",
    example="sglang-kimi-eagle probe DRAFTER --trace TRACE --write, with too few tokens",
)
BAD_PROMPTS = rule(
    "KE839",
    "probe-prompts-unreadable",
    Severity.ERROR,
    "`prompts.json` beside the trace is not what a probe writes there.",
    example="A file of the same name from somewhere else",
)
TARGET_NEEDED = rule(
    "KE840",
    "probe-target-needed",
    Severity.ERROR,
    "SGLang gives the drafter the target's embedding (and its head, where the drafter has none). "
    "They are read from the target's checkpoint, a few rows at a time, and it is not here. A "
    "target that `--target` names has to be readable even where the drafter could do without it.",
    example="A drafter without `embed_tokens`, and a trace made on another machine",
)
NO_MEMORY = rule(
    "KE841",
    "probe-out-of-memory",
    Severity.ERROR,
    "The device has too little free memory for the drafter.",
    example="sglang-kimi-eagle probe --device cuda beside a server that holds the whole GPU",
)
SERVER_FAILED = rule(
    "KE842",
    "probe-server-failed",
    Severity.ERROR,
    "The server that the probe started ended, or was not ready in time. The last lines of its log "
    "are shown.",
    example="sglang-kimi-eagle probe DRAFTER --launch -- --model-path a-missing-folder",
)
REQUEST_FAILED = rule(
    "KE843",
    "probe-request-failed",
    Severity.ERROR,
    "The server did not answer a calibration request as an SGLang server does.",
    example="--max-total-tokens smaller than a calibration prompt",
)
NOT_TRACED = rule(
    "KE844",
    "probe-not-traced",
    Severity.ERROR,
    "The server answered, and wrote no trace of what it was asked. The plugin was off, failed, or "
    "had nothing to capture.",
    example="sglang-kimi-eagle probe DRAFTER --launch -- arguments without --speculative-algorithm",
)
WEAK = rule(
    "KE845",
    "probe-drafts-little",
    Severity.WARNING,
    "Even the best candidate drafts hardly a token that the target accepts. Either the states that "
    "the drafter was trained on are not among the candidates, or it is not a drafter for this "
    "target.",
    example="A drafter of another target of the same width",
)
FED_OTHERWISE = rule(
    "KE846",
    "probe-fed-otherwise",
    Severity.WARNING,
    "The trace says which states the server was wired to, and what it fed the draft model is not, "
    "bit for bit, those states.",
    example="Another plugin that replaces the captured states",
)
NO_CHART = rule(
    "KE847",
    "probe-no-chart",
    Severity.ERROR,
    "`--chart` needs matplotlib, and a file that can be written. Both are looked at before "
    "anything is scored.",
    example="sglang-kimi-eagle probe DRAFTER --trace TRACE --chart CHART.png, without matplotlib",
)
NO_ROOM = rule(
    "KE848",
    "probe-no-room",
    Severity.ERROR,
    "The traced states would not fit on the disk, or the folder for them cannot be made. Of "
    "Kimi-K2.5 all states of a token are 0.9 MB.",
    example="sglang-kimi-eagle probe DRAFTER --launch --trace FOLDER, with 1 GB free",
)


NOT_FINITE = rule(
    "KE849",
    "probe-weights-not-finite",
    Severity.ERROR,
    "A tensor that the drafter computes with, its own or one that it gets from the target, holds "
    "NaN or infinity. A drafter of such weights drafts nothing, whatever states it is fed: its "
    "training diverged, or the file was damaged.",
    example="fc.weight of a training whose loss became NaN",
)


class ProbeRefused(Exception):
    """A probe that cannot be done; `findings` say why."""

    def __init__(self, *findings: Diagnostic) -> None:
        super().__init__(findings[0].message)
        self.findings = findings
