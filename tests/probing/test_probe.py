"""The verdict of a probe on traces of the shipped target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.probing.findings import ProbeRefused
from sglang_kimi_eagle.probing.prompts import Asked
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, TARGET, DrafterRecipe

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]


def judge(
    folder: Path,
    asked: Sequence[Asked],
    recipe: DrafterRecipe = LLAMA,
    *,
    search: bool = False,
    limit: int | None = None,
    seed: int = 0,
    target: str | None = None,
    drafter: Path | None = None,
    **trace: Any,
) -> Any:
    """Write a trace and probe the drafter with it."""
    from sglang_kimi_eagle.probing.probe import Options, run_probe
    from twin_traces import TwinTrace

    TwinTrace(asked, recipe=recipe, **trace).write(folder)
    options = Options(target=target, search=search, limit=limit, seed=seed)
    return run_probe(read_drafter(str(drafter or CHECKPOINTS / recipe.folder)), folder, options)


def asked(*numbers: int) -> list[Asked]:
    from twin_traces import conversations

    return [conversations()[number] for number in numbers]


def codes(report: Any) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.fixture(scope="module", params=[LLAMA, MLA], ids=["llama", "mla"])
def recipe(request: Any) -> DrafterRecipe:
    recipe: DrafterRecipe = request.param
    return recipe


def test_the_states_it_was_trained_on_win(recipe: DrafterRecipe, tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(*range(16)), recipe)
    assert report.clear and report.best.states == recipe.trained_on
    # As serving it in a real engine gives (tests/checkpoints/README.md).
    assert report.best.length == pytest.approx({LLAMA: 3.556, MLA: 3.593}[recipe], abs=0.005)
    assert report.generated and report.embedding == "target"
    expected = (1, ["KE837"]) if recipe is LLAMA else (0, [])
    assert (report.status, codes(report)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_any_sample_of_prompts_and_of_lengths_finds_them(
    recipe: DrafterRecipe, seed: int, tmp_path: Path
) -> None:
    """Half of the prompts, in any order, and of each continuation the first half or more."""
    chance = random.Random(seed)
    chosen = []
    for item in asked(*chance.sample(range(16), 8)):
        kept = chance.randint(32, len(item.tokens) - item.prompt)
        chosen.append(Asked(item.kind, item.prompt, item.tokens[: item.prompt + kept]))
    report = judge(tmp_path / "trace", chosen, recipe)
    assert report.clear and report.best.states == recipe.trained_on


def test_a_search_tries_all_combinations(tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(0, 5, 9, 12), search=True)
    assert report.searched.exhaustive and report.searched.possible == 84
    assert report.searched.best[0].states == LLAMA.trained_on == report.best.states


def test_a_search_climbs_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_kimi_eagle.probing import search

    monkeypatch.setattr(search, "EXHAUSTIVE", 10)
    report = judge(tmp_path / "trace", asked(0, 5), search=True, wired=(0, 1, 2))
    assert report.searched.best[0].states == LLAMA.trained_on
    assert report.searched.tried < report.searched.possible


def test_missing_states_are_named(tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(0, 9), states=(2, 3, 4, 5, 6, 7))
    assert "KE834" in codes(report) and report.best.states == LLAMA.trained_on
    assert {states for _, lacking in report.missing for states in lacking} == {1, 8}
    assert "states=1,2,3,4,5,6,7,8" in report.findings[0].mend


def test_a_trace_of_the_running_wiring_alone_cannot_tell(tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(0, 9), states=(2, 4, 6))
    # Other orders of the same states are candidates too.
    assert report.best.states == (2, 4, 6) and "KE834" in codes(report)


def test_states_that_are_of_no_candidate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        judge(tmp_path / "trace", asked(0), states=(0, 8))
    assert [finding.code for finding in refusal.value.findings] == ["KE833", "KE834"]


def test_states_that_may_be_partial_are_not_scored(tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(0, 9), partial=(3, 5, 7))
    assert LLAMA.trained_on not in [one.states for one in report.scored]
    assert "KE834" in codes(report)


def test_few_tokens_cannot_tell(tmp_path: Path) -> None:
    (item,) = asked(3)
    short = Asked(item.kind, item.prompt, item.tokens[: item.prompt + 20])
    report = judge(tmp_path / "trace", [short])
    assert not report.clear and report.status == 1 and "KE836" in codes(report)


def test_without_prompts_agreement_is_with_the_text(tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(*range(16)), prompts_file=False)
    assert not report.generated and "KE835" in codes(report)
    assert report.best.states == LLAMA.trained_on


def test_a_drafter_that_drafts_nothing_is_not_recommended(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    source = CHECKPOINTS / LLAMA.folder
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    shuffled = torch.randperm(384, generator=torch.Generator().manual_seed(1))
    tensors["lm_head.weight"] = tensors["lm_head.weight"][shuffled]
    save_file(tensors, folder / "model.safetensors")
    report = judge(tmp_path / "trace", asked(0, 9), drafter=folder)
    assert not report.clear and report.status == 1 and "KE845" in codes(report)


def test_what_was_fed_is_compared_with_the_wiring(tmp_path: Path) -> None:
    report = judge(tmp_path / "trace", asked(0), fed=(2, 4, 5))
    assert "KE846" in codes(report)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("search", [False, True])
def test_a_traced_state_that_is_not_finite_is_refused(
    tmp_path: Path, value: float, search: bool
) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        judge(tmp_path / "trace", asked(0, 9), damage={5: value}, search=search)
    (finding,) = refusal.value.findings
    assert finding.code == "KE807" and "h[5] has NaN or infinity in 1 of" in finding.seen
    assert finding.where == str(tmp_path / "trace" / "0-000000.safetensors")


def test_a_partial_state_that_is_not_finite_is_not_fed_otherwise(tmp_path: Path) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        judge(tmp_path / "trace", asked(0), partial=(2,), damage={2: float("nan")})
    assert [finding.code for finding in refusal.value.findings] == ["KE807"]


def test_a_weight_of_the_target_that_is_not_finite_is_named(tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    target = tmp_path / "target"
    shutil.copytree(CHECKPOINTS / TARGET, target)
    for file in target.glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if name.endswith("embed_tokens.weight"):
                tensors[name][:] = float("inf")
        save_file(tensors, file)
    with pytest.raises(ProbeRefused) as refusal:
        judge(tmp_path / "trace", asked(0), target=str(target))
    (finding,) = refusal.value.findings
    assert finding.code == "KE849" and "embed_tokens.weight" in finding.seen
    assert finding.where.startswith(str(target))


@pytest.mark.parametrize(
    ("trace", "code"),
    [({"hidden_size": 64}, "KE832"), ({"start": 3}, "KE833"), ({"target": "nowhere"}, "KE840")],
    ids=["another-width", "behind-a-prefix", "no-target"],
)
def test_what_cannot_be_scored_is_refused(tmp_path: Path, trace: dict[str, Any], code: str) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        judge(tmp_path / "trace", asked(0), **trace)
    assert [finding.code for finding in refusal.value.findings] == [code]


def test_no_trace_is_refused(tmp_path: Path) -> None:
    from sglang_kimi_eagle.probing.probe import Options, run_probe

    with pytest.raises(ProbeRefused) as refusal:
        run_probe(read_drafter(str(CHECKPOINTS / LLAMA.folder)), tmp_path, Options())
    assert [finding.code for finding in refusal.value.findings] == ["KE801"]
