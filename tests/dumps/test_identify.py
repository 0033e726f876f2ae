"""What the states of the shipped target are named, in every format and disorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dump_files import (
    CAPTURED,
    FORMATS,
    HIDDEN,
    LAYERS,
    NORM,
    TOKENS,
    Dumped,
    Tokens,
    dumped,
    normed,
    speculators,
    states_of,
    story,
    texts,
    write_trace,
)
from sglang_kimi_eagle.dumps.findings import DumpRefused
from sglang_kimi_eagle.dumps.identify import Identification, identify
from sglang_kimi_eagle.dumps.report import (
    as_dict,
    name_candidate,
    naming_of,
    states_of_dump,
)
from sglang_kimi_eagle.dumps.verdict import Outcome
from sglang_kimi_eagle.states import Convention
from sglang_kimi_eagle.tracing.trace_file import read_trace

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]

STRANGE = "/no/such/target"


@pytest.fixture(scope="module")
def trace(torch_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace"), texts())


@pytest.fixture(scope="module")
def trace_without_target(torch_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace"), texts(), target=STRANGE)


def named(found: Identification) -> dict[str, str]:
    """Return what every tensor was named; what could not be told is the outcome."""
    layers = found.trace.facts.num_layers
    return {
        slot.name: name_candidate(slot.decision.candidate, layers)
        if slot.decision is not None and slot.decision.outcome is Outcome.IDENTIFIED
        else (slot.decision.outcome.value if slot.decision is not None else "nothing")
        for slot in found.slots
    }


def codes(found: Identification) -> set[str]:
    return {finding.code for finding in found.findings}


def refused(dump: Path, trace: Path) -> DumpRefused:
    with pytest.raises(DumpRefused) as refusal:
        identify(dump, read_trace(trace))
    return refusal.value


def cut(sample: Dumped, rows: Sequence[int], tokens: Sequence[int] | None = None) -> Dumped:
    """The sample with some of its rows, in this order."""
    kept = list(rows)
    of_tokens = tuple(sample.tokens[row] for row in kept) if tokens is None else tuple(tokens)
    return Dumped(of_tokens, tuple(state[kept] for state in sample.aux), sample.last[kept])


@pytest.mark.parametrize("name", FORMATS)
def test_64_tokens_at_bfloat16_noise_name_every_state(
    name: str, trace: Path, tmp_path: Path
) -> None:
    write, expected = FORMATS[name]
    write(tmp_path / "whatever", dumped(texts()[0]))
    found = identify(tmp_path / "whatever", read_trace(trace))
    assert named(found) == expected
    assert states_of_dump(found) == CAPTURED
    naming = naming_of(found)
    assert naming is not None
    assert naming.by_convention[Convention.LAYER_OUTPUT] == (2, 4, 6)
    assert [group.ids for group in naming.stock] == [(2, 4, 6), (3, 5, 7)]
    assert {slot.rows.rows for slot in found.slots} == {TOKENS}
    assert all(finding.severity.value == "note" for finding in found.findings)


@pytest.mark.parametrize("k", range(LAYERS + 1))
@pytest.mark.parametrize("level", [0.0, 2.0**-8, 2.0**-6])
def test_every_state_is_named(k: int, level: float, trace: Path, tmp_path: Path) -> None:
    write_states(tmp_path / "dump", texts()[1], [dumped(texts()[1], (k,), level=level).aux[0]])
    found = identify(tmp_path / "dump", read_trace(trace))
    expected = "h[0] (embedding)" if k == 0 else f"h[{k}]"
    assert list(named(found).values()) == [expected]


def write_states(path: Path, tokens: Tokens, states: Sequence[Any]) -> None:
    import torch

    torch.save({"input_ids": torch.tensor(tokens), "hidden_states": list(states)}, path)


def test_files_in_another_order_are_found_by_their_tokens(trace: Path, tmp_path: Path) -> None:
    for number, tokens in enumerate(reversed(texts())):
        speculators(tmp_path / f"hs_{number}.safetensors", dumped(tokens))
    found = identify(tmp_path, read_trace(trace))
    assert states_of_dump(found) == CAPTURED
    assert found.used == len(texts()) and found.unmatched == 0


def test_samples_that_were_not_traced_are_passed_over(trace: Path, tmp_path: Path) -> None:
    for number in range(5):
        other = tuple(1000 + (token + number) % 24 for token in texts()[0])
        speculators(tmp_path / f"hs_{number}.safetensors", dumped(other))
    speculators(tmp_path / "hs_9.safetensors", dumped(texts()[0]))
    found = identify(tmp_path, read_trace(trace))
    assert states_of_dump(found) == CAPTURED and found.unmatched == 5


def test_truncated_dumps_are_compared_as_far_as_they_go(trace: Path, tmp_path: Path) -> None:
    sample = dumped(texts()[0])
    speculators(tmp_path / "both", cut(sample, range(24)))
    speculators(tmp_path / "states", cut(sample, range(24), sample.tokens))
    for name in ("both", "states"):
        found = identify(tmp_path / name, read_trace(trace))
        assert states_of_dump(found) == CAPTURED
        assert found.slots[0].rows.rows == 24


def test_a_truncated_trace_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", [texts()[0][:40]])
    speculators(tmp_path / "dump", dumped(texts()[0]))
    found = identify(tmp_path / "dump", read_trace(tmp_path / "trace"))
    assert states_of_dump(found) == CAPTURED and found.slots[0].rows.rows == 40


def test_a_dump_cut_at_its_beginning_is_found_by_a_run_of_tokens(
    trace: Path, tmp_path: Path
) -> None:
    speculators(tmp_path / "dump", cut(dumped(texts()[0]), range(20, TOKENS)))
    found = identify(tmp_path / "dump", read_trace(trace))
    assert states_of_dump(found) == CAPTURED
    assert as_dict(found)["matched_by"] == ["a run of tokens"]


@pytest.mark.parametrize("write", [speculators, story])
def test_shuffled_rows_are_found(
    write: Callable[[Path, Dumped], None], trace: Path, tmp_path: Path
) -> None:
    import torch

    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1)).tolist()
    write(tmp_path / "dump", cut(dumped(texts()[0]), order))
    found = identify(tmp_path / "dump", read_trace(trace))
    assert states_of_dump(found) == CAPTURED
    assert list(named(found).values())[-1] == NORM


def test_chunked_prefills_are_one_sequence(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", texts(), chunk=24)
    speculators(tmp_path / "dump", dumped(texts()[2]))
    found = identify(tmp_path / "dump", read_trace(tmp_path / "trace"))
    assert states_of_dump(found) == CAPTURED and found.slots[0].rows.rows == TOKENS


def test_a_trace_that_begins_after_a_cached_prefix_is_used(tmp_path: Path) -> None:
    import torch

    from sglang_kimi_eagle.tracing.trace_file import Facts, Piece, write_file

    whole = write_trace(tmp_path / "whole", [texts()[0]])
    facts = read_trace(whole).facts
    tokens, states, start = texts()[0], states_of(texts()[0]), 30
    tensors = {f"h.{k}": states[k][start:].contiguous() for k in range(LAYERS + 1)}
    tensors["tokens"] = torch.tensor(tokens[start:])
    tensors["positions"] = torch.arange(start, TOKENS)
    (tmp_path / "trace").mkdir()
    fields = {name: getattr(facts, name) for name in facts.__struct_fields__}
    fields["pieces"] = (Piece("a", 0, TOKENS - start),)
    write_file(tmp_path / "trace" / "0.safetensors", tensors, Facts(**fields))
    speculators(tmp_path / "dump", dumped(tokens))
    found = identify(tmp_path / "dump", read_trace(tmp_path / "trace"))
    assert states_of_dump(found) == CAPTURED
    assert found.slots[0].rows.rows == TOKENS - start


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["SpecForge", "speculators", "BaldEagle"])
def test_a_dump_of_other_weights_is_refused(
    seed: int, name: str, trace: Path, tmp_path: Path
) -> None:
    FORMATS[name][0](tmp_path / "dump", dumped(texts()[0], seed=seed))
    found = identify(tmp_path / "dump", read_trace(trace))
    assert set(named(found).values()) == {"not identified"}
    assert "KE824" in codes(found)


def test_a_dump_of_other_weights_without_tokens_is_refused(trace: Path, tmp_path: Path) -> None:
    story(tmp_path / "dump", dumped(texts()[0], seed=1))
    assert refused(tmp_path / "dump", trace).findings[0].code == "KE819"


def test_a_dump_of_another_width_is_refused(trace: Path, tmp_path: Path) -> None:
    import torch

    write_states(tmp_path / "dump", texts()[0], [torch.ones(TOKENS, HIDDEN + 8)])
    finding = refused(tmp_path / "dump", trace).findings[0]
    assert finding.code == "KE817" and "136" in finding.seen


def test_another_tokenisation_is_refused(trace: Path, tmp_path: Path) -> None:
    sample = dumped(texts()[0])
    other = tuple((token * 7 + 3) % 1024 for token in sample.tokens)
    speculators(tmp_path / "dump", replace(sample, tokens=other))
    assert refused(tmp_path / "dump", trace).findings[0].code == "KE819"


def test_a_token_more_at_the_beginning_is_named(trace: Path, tmp_path: Path) -> None:
    tokens = (0, *texts()[0])
    speculators(tmp_path / "dump", dumped(tokens))
    finding = refused(tmp_path / "dump", trace).findings[0]
    assert finding.code == "KE819" and "1 tokens more at its beginning" in finding.seen


def test_too_few_rows_are_no_evidence(trace: Path, tmp_path: Path) -> None:
    speculators(tmp_path / "dump", cut(dumped(texts()[0]), range(10)))
    finding = refused(tmp_path / "dump", trace).findings[0]
    assert finding.code == "KE820" and finding.message.startswith("10 rows")


@pytest.mark.parametrize("k", [3, LAYERS])
def test_a_norms_output_is_recognised_without_its_weight(
    k: int, trace_without_target: Path, tmp_path: Path
) -> None:
    import torch

    state = states_of(texts()[0])[k]
    gain = torch.rand(HIDDEN, generator=torch.Generator().manual_seed(k)) + 0.5
    rms = state.square().mean(-1, keepdim=True).sqrt()
    write_states(tmp_path / "dump", texts()[0], [(state / rms * gain).bfloat16()])
    found = identify(tmp_path / "dump", read_trace(trace_without_target))
    expected = NORM if k == LAYERS else f"a norm of h[{k}]"
    assert list(named(found).values()) == [expected]


def test_the_final_norm_is_told_from_the_last_state(
    trace_without_target: Path, trace: Path, tmp_path: Path
) -> None:
    last = states_of(texts()[0])[LAYERS].bfloat16()
    write_states(tmp_path / "dump", texts()[0], [last, normed(texts()[0]).bfloat16()])
    for folder in (trace, trace_without_target):
        found = identify(tmp_path / "dump", read_trace(folder))
        assert list(named(found).values()) == [f"h[{LAYERS}]", NORM]


def test_the_embedding_is_known_by_the_targets_weights(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", texts(), range(1, LAYERS + 1))
    write_states(tmp_path / "dump", texts()[0], [states_of(texts()[0])[0].bfloat16()])
    found = identify(tmp_path / "dump", read_trace(tmp_path / "trace"))
    assert list(named(found).values()) == ["h[0] (embedding)"]


def test_the_dump_of_the_story_held_no_embedding(trace: Path, tmp_path: Path) -> None:
    # What was believed of it: [embedding, h[3], h[5]]; what it held: h[3], h[5], h[7], the last.
    story(tmp_path / "dump", dumped(texts()[0]))
    found = identify(tmp_path / "dump", read_trace(trace))
    assert list(named(found).values()) == ["h[3]", "h[5]", "h[7]", NORM]
    naming = naming_of(found)
    assert naming is not None and naming.by_convention[Convention.LAYER_OUTPUT] == (2, 4, 6)
    assert {"KE821", "KE829"} <= codes(found)


def test_a_state_that_was_not_traced_is_not_named_after_its_neighbour(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", texts(), (2, 4, 6))
    speculators(tmp_path / "dump", dumped(texts()[0]))
    found = identify(tmp_path / "dump", read_trace(tmp_path / "trace"))
    assert set(named(found).values()) == {"not identified"}
    assert "states=all" in found.findings[0].mend


def test_what_the_drafter_was_fed_is_a_trace_too(tmp_path: Path) -> None:
    fed = write_trace(tmp_path / "fed", texts(), (), wired=CAPTURED, fed=True)
    speculators(tmp_path / "dump", dumped(texts()[0]))
    found = identify(tmp_path / "dump", read_trace(fed))
    assert list(named(found).values()) == ["h[3]", "h[5]", "h[7]", "not identified"]
    assert states_of_dump(found) == CAPTURED and "KE829" not in codes(found)
    nothing = write_trace(tmp_path / "nothing", texts(), ())
    assert refused(tmp_path / "dump", nothing).findings[0].code == "KE820"


def test_what_is_between_two_states_is_not_named(trace: Path, tmp_path: Path) -> None:
    states = states_of(texts()[0])
    between = (states[3] + states[4]) / 2
    write_states(tmp_path / "dump", texts()[0], [states[3].bfloat16(), between.bfloat16()])
    found = identify(tmp_path / "dump", read_trace(trace))
    assert list(named(found).values()) == ["h[3]", "not identified"]
    assert "KE822" in codes(found)


def near_states(tokens: Tokens, step: float) -> list[Any]:
    """States that differ from their neighbours by ``step``, as in a deep model."""
    import torch

    generator = torch.Generator().manual_seed(sum(tokens))
    states = [torch.randn(len(tokens), HIDDEN, generator=generator)]
    for _ in range(LAYERS):
        change = torch.randn(len(tokens), HIDDEN, generator=generator)
        states.append(states[-1] + step * change)
    return states


@pytest.mark.parametrize(
    ("step", "noise", "outcome"),
    [
        (0.1, 2.0**-8, "h[5]"),
        (0.03, 2.0**-8, "h[5]"),
        (0.002, 0.0, "ambiguous"),
        (0.03, 0.03, "ambiguous"),
        (0.1, 0.1, "ambiguous"),
        (0.3, 0.1, "h[5]"),
        (0.3, 0.5, "not identified"),
    ],
)
def test_neighbours_are_told_apart_only_beyond_the_noise(
    step: float, noise: float, outcome: str, tmp_path: Path
) -> None:
    from dump_files import noisy

    states = near_states(texts()[0], step)
    write_trace(tmp_path / "trace", [texts()[0]], values=lambda _: states, target=STRANGE)
    write_states(tmp_path / "dump", texts()[0], [noisy(states[5], noise)])
    found = identify(tmp_path / "dump", read_trace(tmp_path / "trace"))
    assert list(named(found).values()) == [outcome]
    assert ("KE825" in codes(found)) == (noise == 0.1 and outcome == "h[5]")


def test_an_untraced_neighbour_makes_a_noisy_state_ambiguous(tmp_path: Path) -> None:
    from dump_files import noisy

    states = near_states(texts()[0], 0.05)
    for name, traced in (("some", (2, 4, 6)), ("all", range(LAYERS + 1))):
        write_trace(tmp_path / name, [texts()[0]], traced, values=lambda _: states, target=STRANGE)
    write_states(tmp_path / "dump", texts()[0], [noisy(states[5], 0.01), noisy(states[4], 0.02)])
    some = identify(tmp_path / "dump", read_trace(tmp_path / "some"))
    assert set(named(some).values()) == {"ambiguous"} and codes(some) == {"KE823"}
    every = identify(tmp_path / "dump", read_trace(tmp_path / "all"))
    assert list(named(every).values()) == ["h[5]", "h[4]"]


def test_single_tokens_with_huge_activations_do_not_decide(trace: Path, tmp_path: Path) -> None:
    sample = dumped(texts()[0])
    for state in sample.aux:
        state[0] *= 1000
        state[5] = state[6]
    speculators(tmp_path / "dump", sample)
    assert states_of_dump(identify(tmp_path / "dump", read_trace(trace))) == CAPTURED


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_rows_without_numbers_are_left_out_and_reported(
    value: float, trace: Path, tmp_path: Path
) -> None:
    sample = dumped(texts()[0])
    sample.aux[1][:20] = value
    speculators(tmp_path / "dump", sample)
    found = identify(tmp_path / "dump", read_trace(trace))
    assert states_of_dump(found) == CAPTURED
    assert codes(found) == {"KE818", "KE829"}
    assert [slot.rows.rows for slot in found.slots] == [64, 44, 64, 64]


def test_a_dump_of_nothing_but_nan_is_refused(trace: Path, tmp_path: Path) -> None:
    import torch

    write_states(tmp_path / "dump", texts()[0], [torch.full((TOKENS, HIDDEN), float("nan"))])
    finding = refused(tmp_path / "dump", trace).findings[0]
    assert finding.code == "KE820" and "not finite" in finding.message


def broken_trace(
    folder: Path, broken: Sequence[int], rows: int = TOKENS // 2, **options: Any
) -> Path:
    """A trace whose first rows are not finite in some states."""

    def values(tokens: Tokens) -> list[Any]:
        found = [state.clone() for state in states_of(tokens)]
        for k in broken:
            found[k][:rows] = float("inf")
        return found

    return write_trace(folder, texts(), values=values, **options)


def test_a_state_of_the_trace_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    speculators(tmp_path / "dump", dumped(texts()[0]))
    for fed, states in ((False, range(LAYERS + 1)), (True, ())):
        trace = broken_trace(tmp_path / f"trace{fed}", [4], states=states, fed=fed)
        found = identify(tmp_path / "dump", read_trace(trace))
        (finding,) = [finding for finding in found.findings if finding.code == "KE807"]
        assert finding.where == str(trace) and "h[4]: NaN or infinity in up to 32" in finding.seen
        assert "KE818" not in codes(found)


def test_a_dump_is_not_another_models_for_a_trace_that_is_not_finite(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "trace",
        texts(),
        values=lambda tokens: [
            state * (float("nan") if k == 3 else 1) for k, state in enumerate(states_of(tokens))
        ],
    )
    write_states(tmp_path / "dump", texts()[0], [states_of(texts()[0])[3].bfloat16()])
    found = identify(tmp_path / "dump", read_trace(trace))
    assert "KE807" in codes(found) and "KE824" not in codes(found)
    assert list(named(found).values()) == ["not identified"]


def test_without_tokens_too_it_is_said_which_side_is_not_finite(
    trace: Path, tmp_path: Path
) -> None:
    bad = broken_trace(tmp_path / "trace", range(LAYERS + 1), TOKENS)
    story(tmp_path / "good", dumped(texts()[0]))
    assert [finding.code for finding in refused(tmp_path / "good", bad).findings] == ["KE807"]
    sample = dumped(texts()[0])
    nan = float("nan")
    story(tmp_path / "bad", Dumped(sample.tokens, (sample.aux[0] * nan,), sample.last * nan))
    finding = refused(tmp_path / "bad", trace).findings[0]
    assert finding.code == "KE820" and "of the dump" in finding.message


def test_where_both_sides_are_not_finite_both_are_named(tmp_path: Path) -> None:
    import torch

    bad = broken_trace(tmp_path / "trace", range(LAYERS + 1))
    write_states(tmp_path / "dump", texts()[0], [torch.full((TOKENS, HIDDEN), float("nan"))])
    found = refused(tmp_path / "dump", bad).findings
    assert [finding.code for finding in found] == ["KE820", "KE807"]


def test_a_trace_of_zeros_is_not_the_dumps_fault(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "trace",
        texts(),
        values=lambda tokens: [state * 0 for state in states_of(tokens)],
        target=STRANGE,
    )
    speculators(tmp_path / "dump", dumped(texts()[0]))
    finding = refused(tmp_path / "dump", trace).findings[0]
    assert (finding.code, finding.where) == ("KE820", str(trace))


@pytest.mark.parametrize(
    ("captured", "said"),
    [
        ((7, 5, 3), "h[3], h[5], h[7]"),
        ((3, 3, 7), "twice"),
        ((3, 5, LAYERS), "captured by no release"),
    ],
)
def test_states_that_sglang_cannot_feed_are_reported(
    captured: tuple[int, ...], said: str, trace: Path, tmp_path: Path
) -> None:
    FORMATS["SpecForge"][0](tmp_path / "dump", dumped(texts()[0], captured))
    found = identify(tmp_path / "dump", read_trace(trace))
    (finding,) = [finding for finding in found.findings if finding.code == "KE826"]
    assert said in finding.leads_to


def test_other_dtypes_are_compared(trace: Path, tmp_path: Path) -> None:
    import torch

    for dtype in (torch.float16, torch.float32, torch.float64):
        states = [states_of(texts()[0])[k].to(dtype) for k in CAPTURED]
        write_states(tmp_path / "dump", texts()[0], states)
        found = identify(tmp_path / "dump", read_trace(trace))
        assert states_of_dump(found) == CAPTURED


def test_an_8_bit_dump_is_named(trace: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    states = torch.stack([states_of(texts()[0])[k] for k in CAPTURED], dim=1)
    content = {
        "token_ids": torch.tensor(texts()[0]),
        "hidden_states": states.to(torch.float8_e4m3fn),
    }
    save_file(content, tmp_path / "dump")
    found = identify(tmp_path / "dump", read_trace(trace))
    assert list(named(found).values()) == ["h[3]", "h[5]", "h[7]"]
    assert {slot.rows.dtype for slot in found.slots} == {"float8_e4m3fn"}


def test_bad_files_among_good_ones_are_reported(trace: Path, tmp_path: Path) -> None:
    speculators(tmp_path / "hs_0.safetensors", dumped(texts()[0]))
    (tmp_path / "hs_1.safetensors").write_bytes(b"cut")
    (tmp_path / "hs_2.safetensors").symlink_to("/etc/hostname")
    found = identify(tmp_path, read_trace(trace))
    assert states_of_dump(found) == CAPTURED
    (finding,) = [finding for finding in found.findings if finding.code == "KE827"]
    assert finding.message.startswith("2 files")


def test_the_same_prefix_counts_once(trace: Path, tmp_path: Path) -> None:
    sample = dumped(texts()[0])
    for number in range(30):
        tokens = (*texts()[0][:4], *(900 + number,) * 12)
        speculators(tmp_path / f"hs_{number}.safetensors", cut(sample, range(16), tokens))
    finding = refused(tmp_path, trace).findings[0]
    assert finding.code == "KE820" and finding.message.startswith("4 rows")
