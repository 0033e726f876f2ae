"""The main job: an EAGLE-3 drafter on a Kimi-K2.5 target, served by unmodified SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from cpu_engine.server import ServerFailed
from engine_tools import (
    MAIN_RELEASES,
    RECORDS,
    Drafters,
    Engines,
    acceptance_length,
    records_of,
    served,
    states_fed,
    tokens,
)
from sglang_kimi_eagle.releases import RELEASES
from tiny_models.paths import CHECKPOINTS, LLAMA, DrafterRecipe
from tiny_models.prompt_file import load_prompts

TREE = ("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8")
TOKENS = 48


def check_drafter(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
) -> None:
    """The draft is fed its states, and the tokens are the target's own."""
    folder = engines.records_folder()
    # Prompts longer than a chunk are prefilled in pieces.
    with engines.server(
        release,
        drafters.pinned(recipe),
        args=("--chunked-prefill-size", "32"),
        environ={RECORDS: str(folder)},
    ) as server:
        first = server.generate(prompts, TOKENS)
        again = server.generate(prompts[:2], TOKENS)
    expected = engines.plain_tokens(release, prompts, TOKENS)
    assert tokens(first) == expected
    assert tokens(again) == expected[:2]
    assert all(done.meta["cached_tokens"] > 0 for done in again), "no radix-cache hit"
    assert 2.0 <= acceptance_length(first) < 4.0, "drafts must be accepted, and rejected"
    records = records_of(folder)
    assert states_fed(records) == {recipe.trained_on}
    modes = {record.target.mode for record in records if record.target}
    assert {"EXTEND", "TARGET_VERIFY"} <= modes


@pytest.mark.engine
@pytest.mark.parametrize(("release", "recipe"), served(MAIN_RELEASES))
def test_the_draft_is_fed_its_states_and_the_tokens_are_the_targets(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
) -> None:
    check_drafter(engines, drafters, prompts, release, recipe)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("release", "recipe"), served([r for r in RELEASES if r not in MAIN_RELEASES])
)
def test_so_it_is_on_every_release(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
) -> None:
    check_drafter(engines, drafters, prompts, release, recipe)


@pytest.mark.engine
@pytest.mark.parametrize("release", MAIN_RELEASES)
class TestEachRelease:
    def test_a_tree_of_drafts_is_fed_the_same_states(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
    ) -> None:
        folder = engines.records_folder()
        with engines.server(
            release, drafters.pinned(LLAMA), args=TREE, environ={RECORDS: str(folder)}
        ) as server:
            completions = server.generate(prompts, TOKENS)
        assert tokens(completions) == engines.plain_tokens(release, prompts, TOKENS)
        assert acceptance_length(completions) >= 2.0
        assert states_fed(records_of(folder)) == {LLAMA.trained_on}

    def test_the_right_states_are_worth_it(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
    ) -> None:
        lengths = {}
        for states in (LLAMA.trained_on, (2, 4, 6)):
            with engines.server(release, drafters.pinned(LLAMA, states)) as server:
                lengths[states] = acceptance_length(server.generate(prompts, TOKENS))
        assert lengths[LLAMA.trained_on] >= 2.0
        assert lengths[LLAMA.trained_on] - lengths[2, 4, 6] >= 0.7

    def test_one_log_line_says_what_was_done(
        self, engines: Engines, drafters: Drafters, release: str
    ) -> None:
        with engines.server(release, drafters.pinned(LLAMA)) as server:
            (line,) = [
                line for line in server.log_text.splitlines() if "sglang-kimi-eagle 0." in line
            ]
        assert f"sglang {release};" in line
        assert "captures h[3], h[5], h[7] (declaration: " in line
        row = RELEASES[release]
        assert ("added set_eagle3" in line) is not row.wrapper_methods
        assert ("partial sums" in line) is row.partial_sums
        assert ("default ids" in line) is row.graphs_reset_ids

    def test_the_installed_sglang_is_untouched(self, engines: Engines, release: str) -> None:
        assert engines.environment(release).record_mismatches() == []


@pytest.mark.engine
def test_stock_0_5_9_fails_after_loading_the_weights(engines: Engines, drafters: Drafters) -> None:
    with (
        pytest.raises(ServerFailed) as failure,
        engines.server("0.5.9", drafters.shipped(LLAMA), plugin=False),
    ):
        pass
    assert "has no attribute 'set_eagle3_layers_to_capture'" in failure.value.log


@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_the_launch_command_of_the_readme_serves_chats(
    engines: Engines, drafters: Drafters, release: str
) -> None:
    """Nothing is warm here: ``python -m sglang.launch_server``, and the official client."""
    chats = [prompt.messages for prompt in load_prompts(CHECKPOINTS) if prompt.messages][:2]

    def answers(server_url: str) -> Sequence[str]:
        client = OpenAI(base_url=f"{server_url}/v1", api_key="none")

        def ask(messages: object, stream: bool = False) -> str:
            answer = client.chat.completions.create(
                model="kimi-tiny",
                messages=messages,  # type: ignore[call-overload]
                temperature=0,
                max_tokens=40,
                stream=stream,
            )
            if stream:
                return "".join(c.choices[0].delta.content or "" for c in answer if c.choices)
            return str(answer.choices[0].message.content)

        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(ask, chats), ask(chats[0], stream=True)]

    with engines.server(release, drafters.pinned(LLAMA), cold=True) as server:
        speculated = answers(server.base_url)
    with engines.server(release, plugin=False) as server:
        plain = answers(server.base_url)
    assert speculated == plain
    assert speculated[0] == speculated[2] != ""
