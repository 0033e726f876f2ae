"""Have a traced server say what it will, and then trace its states of just that.

Two passes: each calibration prompt is continued greedily; then prompt and continuation are sent as
one prompt, with the prefix cache empty, so that one prefill runs - and traces - all of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_kimi_eagle.probing.calibration import PROMPTS, Prompt
from sglang_kimi_eagle.probing.client import Client
from sglang_kimi_eagle.probing.findings import NO_ROOM, NOT_TRACED, ProbeRefused
from sglang_kimi_eagle.probing.prompts import Asked, write_prompts
from sglang_kimi_eagle.states import States
from sglang_kimi_eagle.target import Target
from sglang_kimi_eagle.tracing.trace_file import UnreadableTrace, read_trace

NEW_TOKENS = 96
_TRACE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_CHARACTERS_A_TOKEN = 3
"""A guess, for the room on the disk only."""


@dataclass(frozen=True)
class Plan:
    """What will be recorded."""

    prompts: Sequence[Prompt] = PROMPTS
    new_tokens: int = NEW_TOKENS

    @property
    def tokens(self) -> int:
        """About how many tokens will be traced: prompts twice or, on old releases, three times."""
        characters = sum(prompt.characters for prompt in self.prompts)
        templated = characters // _CHARACTERS_A_TOKEN + 16 * len(self.prompts)
        return 3 * templated + self.new_tokens * len(self.prompts)

    @property
    def limit(self) -> int:
        """Tokens that the trace may have: for tokenizers that cut finer than guessed."""
        return 4 * self.tokens


def check_room(folder: Path, plan: Plan, target: Target, states: States | None) -> None:
    """Refuse to record what would not fit.

    Args:
        folder: where to; it exists.
        plan: what will be recorded.
        target: of the launch.
        states: those asked for; None is all of them.

    Raises:
        ProbeRefused: the disk has too little room.
    """
    count = target.num_layers + 1 if states is None else len(states)
    # The states, and those of the drafter once more as it was fed them.
    needed = plan.tokens * (count + 3) * target.hidden_size * 2
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ProbeRefused(
            NO_ROOM.found(
                "The trace would not fit on the disk.",
                where=str(folder),
                seen=f"about {needed / 1e9:.1f} GB for {count} states of {plan.tokens} tokens, "
                f"{free / 1e9:.1f} GB free",
                mend="Name a folder on another disk with --trace, or fewer states with --states.",
            )
        )


def record(
    client: Client, folder: Path, plan: Plan, done: Callable[[int], None] = lambda _done: None
) -> tuple[Asked, ...]:
    """Record the plan's prompts into the trace in ``folder``, and write its `prompts.FILE`.

    Args:
        client: of the traced server, which is ready.
        folder: that it traces to.
        plan: what to record.
        done: told how many of the two passes' requests are answered.

    Raises:
        ProbeRefused: a request failed, or left no trace.
    """
    prompts = []
    for number, prompt in enumerate(plan.prompts, start=1):
        prompts.append(client.tokenize(prompt.messages) or _templated(client, folder, prompt))
        done(number)
    completions = client.generate(prompts, plan.new_tokens)
    asked = []
    for prompt, tokens, completion in zip(plan.prompts, prompts, completions, strict=True):
        whole = (*tokens, *completion.tokens)
        verifies = completion.verifies or None
        asked.append(Asked(prompt.kind, len(tokens), whole, verifies))
    for number, item in enumerate(asked, start=len(prompts) + 1):
        # Templates begin alike: what one prompt leaves in the cache, the next one would not run.
        client.flush()
        client.generate([item.tokens], 1)
        done(number)
    _wait(folder, {item.tokens for item in asked})
    write_prompts(folder, asked)
    return tuple(asked)


def _templated(client: Client, folder: Path, prompt: Prompt) -> tuple[int, ...]:
    """Return a prompt's tokens on a release that does not tell them: read back from the trace."""
    client.flush()
    before = _traced(folder)
    client.chat(prompt.messages)
    end = time.monotonic() + _TRACE_SECONDS
    while not (new := _traced(folder)[len(before) :]):
        if time.monotonic() > end:
            raise _not_traced(folder, "a conversation left no trace")
        time.sleep(_POLL_SECONDS)
    return new[-1]


def _wait(folder: Path, wanted: set[tuple[int, ...]]) -> None:
    """Wait until the last file is written."""
    end = time.monotonic() + _TRACE_SECONDS
    while missing := wanted - set(_traced(folder)):
        if time.monotonic() > end:
            if len(missing) == len(wanted):
                raise _not_traced(folder, f"none of {len(wanted)} prompts is in it")
            return
        time.sleep(_POLL_SECONDS)


def _traced(folder: Path) -> list[tuple[int, ...]]:
    try:
        return [sequence.tokens for sequence in read_trace(folder).sequences]
    except UnreadableTrace:
        # There is no file yet.
        return []


def _not_traced(folder: Path, seen: str) -> ProbeRefused:
    return ProbeRefused(
        NOT_TRACED.found(
            "The server wrote no trace of what it was asked.",
            where=str(folder),
            seen=seen,
            leads_to="There is nothing to score.",
            mend="See what the plugin says in the server's log (the line that begins with "
            "sglang-kimi-eagle), and that the launch is an EAGLE-3 one of a Kimi-K2.5.",
        )
    )
