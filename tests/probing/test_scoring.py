"""What chains get right, and how far they get: the same as the twins' own simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_kimi_eagle.drafter import read_drafter
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, TARGET, DrafterRecipe

STEPS = 3

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]


@pytest.fixture(scope="module", params=[LLAMA, MLA], ids=["llama", "mla"])
def recipe(request: Any) -> DrafterRecipe:
    recipe: DrafterRecipe = request.param
    return recipe


def loaded(recipe: DrafterRecipe, samples: Any) -> Any:
    from sglang_kimi_eagle.probing.loading import load

    folder = CHECKPOINTS / recipe.folder
    return load(read_drafter(str(folder)), str(CHECKPOINTS / TARGET), samples.tokens)


@pytest.mark.parametrize("shift", [0, 1])
def test_hits_and_acceptance_are_those_of_the_twins(
    recipe: DrafterRecipe, shift: int, tmp_path: Path
) -> None:
    from sglang_kimi_eagle.probing.acceptance import simulate, tally
    from sglang_kimi_eagle.probing.samples import choose
    from sglang_kimi_eagle.probing.scoring import score
    from sglang_kimi_eagle.tracing.trace_file import read_trace
    from tiny_models import acceptance
    from tiny_models.export import load_drafter
    from twin_traces import TwinTrace, conversations, target

    asked = conversations()[6:10]
    trace = read_trace(TwinTrace(asked).write(tmp_path / "trace"))
    samples = choose(trace, asked)
    states = tuple(k - shift for k in recipe.trained_on)
    hits = score(loaded(recipe, samples), trace, samples.chosen, states, STEPS)
    twin = load_drafter(CHECKPOINTS / recipe.folder)
    total = acceptance.Acceptance()
    for item, found in zip(asked, hits, strict=True):
        tokens = list(item.tokens)
        expected = acceptance.chain_hits(target(), twin, states, tokens, STEPS)[item.prompt - 1 :]
        assert [
            [bool(right) for right, known in zip(*row, strict=True) if known]
            for row in zip(found.right, found.known, strict=True)
        ] == expected
        prompt, output = tokens[: item.prompt], tokens[item.prompt :]
        one = acceptance.simulate(target(), twin, states, prompt, output, STEPS)
        steps = simulate(found)
        assert (sum(count for _, count in steps), len(steps)) == (one.tokens, one.verifies)
        total += one
    assert tally(hits).length == pytest.approx(total.length)
