"""What `watch` can find, and the exception that ends it."""

from __future__ import annotations

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

WIRING_SUSPECT = rule(
    "KE851",
    "watched-wiring-suspect",
    Severity.WARNING,
    "Fewer drafts are accepted than expected, and nothing proves that the drafter is fed the "
    "states it was trained on. Output tokens stay right under a wrong wiring: acceptance is all "
    "that suffers.",
    example="ids `[2, 30, 58]` without a declaration, an acceptance length of 1.6 where another "
    "release reached 3.1.",
)
ACCEPTANCE_LOW = rule(
    "KE852",
    "watched-acceptance-low",
    Severity.WARNING,
    "Fewer drafts are accepted than expected, but the wiring is known and unchanged. A weak "
    "drafter, or traffic unlike its training data, looks like this: on published drafters the "
    "acceptance length differs by 0.6 between chat and code.",
    example="A pinned drafter at acceptance length 1.5.",
)
NOTHING_ACCEPTED = rule(
    "KE853",
    "watched-nothing-accepted",
    Severity.WARNING,
    "Next to no draft is accepted. Neighbouring states rarely do that much harm alone: weights "
    "that were skipped, a vocabulary map, the algorithm, or a quantisation that the drafter "
    "inherited are as likely as the wiring.",
    example="An acceptance length of 1.00: `--speculative-algorithm EAGLE` with an EAGLE-3 "
    "drafter.",
)
SLOWER_THAN_PLAIN = rule(
    "KE854",
    "watched-slower-than-plain",
    Severity.WARNING,
    "The server generates fewer tokens per second than it did without speculation, by the figure "
    "given with `--plain-rate`.",
    example="54 tokens per second with a drafter, 88 without.",
)
TOO_FEW_STEPS = rule(
    "KE855",
    "watched-too-few-steps",
    Severity.WARNING,
    "Too few verify steps were seen to tell a low acceptance from chance. SGLang updates its "
    "averages every `--decode-log-interval` (40) decode steps, and nothing while it is idle.",
    example="sglang-kimi-eagle watch http://localhost:30000 --once, right after the start",
)
RESTARTED = rule(
    "KE856",
    "watched-restart",
    Severity.NOTE,
    "The server's counters went back, or its launch changed: it was started again. What was "
    "seen before does not count any more.",
    example="A server that was restarted while it was watched.",
)
FIGURES_MISSING = rule(
    "KE857",
    "watched-figures-missing",
    Severity.NOTE,
    "This server does not publish some figures. They are left out, not estimated.",
    example="SGLang before 0.5.17 without `--enable-metrics`: averages since the start only.",
)
BAD_ADDRESS = rule(
    "KE860",
    "watched-bad-address",
    Severity.ERROR,
    "The address is no http or https address of a server.",
    example="sglang-kimi-eagle watch localhost:30000",
)
UNREACHABLE = rule(
    "KE861",
    "watched-unreachable",
    Severity.ERROR,
    "The server does not answer, or not as a server that has started.",
    example="sglang-kimi-eagle watch http://localhost:1",
)
NOT_SGLANG = rule(
    "KE862",
    "watched-not-sglang",
    Severity.ERROR,
    "What answers is not an SGLang server: `/server_info` is missing, or is not its JSON. A router "
    "in front of several servers does not have it either.",
    example="sglang-kimi-eagle watch http://example.org",
)
REDIRECTED = rule(
    "KE863",
    "watched-redirected",
    Severity.ERROR,
    "The server answers with a redirection. It is not followed, so that figures of another server, "
    "or an API key sent to it, are never taken for those of this one.",
    example="sglang-kimi-eagle watch http://gateway, which sends everybody to https",
)
UNBOUNDED = rule(
    "KE864",
    "watched-reply-unbounded",
    Severity.ERROR,
    "A reply is larger, or takes longer, than that of any SGLang server.",
    example="A server that sends one byte a second.",
)
KEY_REFUSED = rule(
    "KE865",
    "watched-key-refused",
    Severity.ERROR,
    "The server wants an API key, or another one.",
    example="A server launched with `--api-key`, watched without `--api-key-env`.",
)
NOT_SPECULATING = rule(
    "KE866",
    "watched-not-speculating",
    Severity.ERROR,
    "There is no acceptance to watch: the server runs without speculative decoding, or it names an "
    "algorithm and neither a number of draft steps nor one of draft tokens.",
    example="A server launched without `--speculative-algorithm`.",
)
BAD_BASELINE = rule(
    "KE867",
    "watched-bad-baseline",
    Severity.ERROR,
    "The baseline cannot be read, or holds no acceptance length.",
    example="sglang-kimi-eagle watch URL --baseline a file that is no JSON",
)
OTHER_BASELINE = rule(
    "KE868",
    "watched-other-baseline",
    Severity.NOTE,
    "The baseline was measured with other draft settings that it cannot be converted from, so it "
    "is not compared with.",
    example="A baseline of a chain of three drafts, and a server that drafts a tree.",
)
BASELINE_NOT_SAVED = rule(
    "KE869",
    "watched-baseline-not-saved",
    Severity.WARNING,
    "No baseline was written: it would have been measured on a server that looks wrong or has "
    "seen too little traffic, or the file could not be written.",
    example="sglang-kimi-eagle watch URL --once --save-baseline FILE, on an idle server",
)


class WatchFailed(Exception):
    """The server, or a file, cannot be used; `finding` says why."""

    def __init__(self, finding: Diagnostic) -> None:
        super().__init__(finding.message)
        self.finding = finding
