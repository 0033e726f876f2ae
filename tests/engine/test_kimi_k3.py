"""Kimi-K3 on unmodified SGLang: the prefix is captured, and a drafter of it is accepted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.launch import KERNELS
from cpu_engine.releases import since
from cpu_engine.server import Completion, Server, ServerFailed
from engine_tools import RECORDS, Drafters, Engines, acceptance_length, records_of, tokens
from k3_checkpoints import WRAPPED, Captured, compare, text_only
from sglang_kimi_eagle.adapters.kimi_k3 import PROVED
from sglang_kimi_eagle.patching.diffs import parse
from sglang_kimi_eagle.patching.shipped import folder as patches
from tiny_models.paths import K3

RELEASES = ("0.5.17", "0.5.23")
OTHERS = tuple(release for release in PROVED if release not in RELEASES)
NEWEST_FIRST = [pytest.param("0.5.17", marks=pytest.mark.matrix), "0.5.23"]
"""What `make test` runs on the newest release, and `make test-matrix` on the oldest as well."""
ARGS = ("--disable-radix-cache",)
TOKENS = 32
CLOSE = 1e-4
BLOCK = 3
"""Layers in a block of the tiny target: h[3] and h[6] end one."""


@pytest.fixture(scope="session")
def text_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_only(tmp_path_factory.mktemp("k3") / "text")


def alone(server: Server, prompts: list[list[int]]) -> list[Completion]:
    """Complete the prompts one after the other, so that a forward is one request's."""
    return [server.generate([prompt], TOKENS)[0] for prompt in prompts]


def plain(engines: Engines, release: str, target: Path, prompts: list[list[int]]) -> object:
    """What unmodified SGLang generates without speculation."""
    with engines.server(release, target=target, plugin=False, args=ARGS) as server:
        return tokens(alone(server, prompts))


def captured(
    engines: Engines, release: str, records: Path, sequences: list[list[int]], states: Sequence[int]
) -> dict[int, Captured]:
    """Compare with the twin; prefills and verifies must both be among what is compared."""
    found, modes = compare(engines.environment(release), records, sequences, states)
    assert {"EXTEND", "TARGET_VERIFY"} <= modes
    assert all(state.rows > 100 for state in found.values())
    return found


def check_target(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str, target: Path
) -> None:
    """The drafter is fed the prefix it was trained on, and the tokens are the target's own."""
    prompts = prompts[:3]
    records = engines.records_folder()
    with engines.server(
        release,
        drafters.pinned(K3),
        target=target,
        # Prompts longer than a chunk are prefilled in pieces.
        args=(*ARGS, "--chunked-prefill-size", "32"),
        environ={RECORDS: str(records)},
    ) as server:
        completions = alone(server, prompts)
    assert tokens(completions) == plain(engines, release, target, prompts)
    assert 2.0 <= acceptance_length(completions) < 4.0, "drafts must be accepted, and rejected"
    sequences = [[*p, *c.output_ids] for p, c in zip(prompts, completions, strict=True)]
    assert {k % BLOCK == 0 for k in K3.trained_on} == {True, False}
    for state in captured(engines, release, records, sequences, K3.trained_on).values():
        assert state.difference <= CLOSE
        # The mixture that DSPARK drafters are fed is another tensor, and not what was captured.
        assert state.cosine < 0.99
        assert state.to_mixture > 1.0
    drafts = [record for record in records_of(records) if record.kind == "draft"]
    assert drafts
    for record in drafts:
        assert record.target is not None
        assert set(record.captured) <= set(record.target.captured)


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
def test_the_drafter_is_fed_the_prefix_and_the_tokens_are_the_targets(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
) -> None:
    check_target(engines, drafters, prompts, release, WRAPPED)


@pytest.mark.engine
def test_so_it_is_with_the_language_model_alone(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], text_target: Path
) -> None:
    check_target(engines, drafters, prompts, "0.5.23", text_target)


@pytest.mark.matrix
@pytest.mark.parametrize("release", OTHERS)
def test_so_it_is_on_every_release(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str, text_target: Path
) -> None:
    check_target(engines, drafters, prompts, release, WRAPPED)
    # SGLang registers the class of the language model since 0.5.19.
    if since(release, "0.5.19"):
        check_target(engines, drafters, prompts, release, text_target)


@pytest.mark.engine
@pytest.mark.parametrize("release", NEWEST_FIRST)
@pytest.mark.parametrize("states", [(1, 3, 8), (2, 5, 6)])
def test_any_state_can_be_captured_and_wrong_ones_cost(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    states: tuple[int, ...],
) -> None:
    records = engines.records_folder()
    with engines.server(
        release,
        drafters.pinned(K3, states),
        target=WRAPPED,
        args=ARGS,
        environ={RECORDS: str(records)},
    ) as server:
        completions = alone(server, prompts[:2])
    sequences = [[*p, *c.output_ids] for p, c in zip(prompts[:2], completions, strict=True)]
    for state in captured(engines, release, records, sequences, states).values():
        assert state.difference <= CLOSE
    assert acceptance_length(completions) < 2.6


@pytest.mark.engine
@pytest.mark.parametrize("release", NEWEST_FIRST)
def test_dspark_drafters_are_fed_the_mixture_as_before(
    engines: Engines, prompts: list[list[int]], release: str
) -> None:
    states, captures = (4, 6, 7), []
    for plugin in (False, True):
        records = engines.records_folder()
        with engines.server(
            release,
            target=WRAPPED,
            plugin=plugin,
            args=ARGS,
            environ={RECORDS: str(records), "CPU_ENGINE_DSPARK_LAYERS": "3,5,6"},
            probes="dspark_capture",
        ) as server:
            completions = alone(server, prompts[:1])
        captures.append([record.captured for record in records_of(records)])
    assert captures[0] == captures[1]
    sequences = [[*prompts[0], *completions[0].output_ids]]
    found, _ = compare(engines.environment(release), records, sequences, states)
    for state in found.values():
        assert state.to_mixture <= CLOSE
        assert state.difference > 1.0


@pytest.mark.engine
def test_ranks_of_tensor_parallelism_capture_whole_sums(
    engines: Engines, drafters: Drafters, prompts: list[list[int]]
) -> None:
    records = engines.records_folder()
    with engines.server(
        "0.5.23",
        drafters.pinned(K3),
        target=WRAPPED,
        args=ARGS,
        environ={RECORDS: str(records)},
        tp_size=2,
    ) as server:
        completions = alone(server, prompts[:1])
    sequences = [[*prompts[0], *completions[0].output_ids]]
    found, _ = compare(engines.environment("0.5.23"), records, sequences, K3.trained_on)
    for state in found.values():
        assert state.difference <= CLOSE
    assert acceptance_length(completions) >= 2.0


@pytest.mark.engine
@pytest.mark.parametrize(
    ("args", "code"), [(("--dcp-size", "2"), "KE891"), (("--pp-size", "2"), "KE520")]
)
def test_what_was_never_proved_is_refused(
    engines: Engines, drafters: Drafters, args: tuple[str, ...], code: str
) -> None:
    with (
        pytest.raises(ServerFailed) as failure,
        engines.server("0.5.23", drafters.pinned(K3), target=WRAPPED, args=(*ARGS, *args)),
    ):
        pass
    assert failure.value.returncode == 3
    assert f"{code} error" in failure.value.log
    assert "Load weight begin" not in failure.value.log


@pytest.mark.engine
def test_the_unmodified_release_fails_after_loading_the_weights(
    engines: Engines, drafters: Drafters
) -> None:
    with (
        pytest.raises(ServerFailed) as failure,
        engines.server("0.5.23", drafters.shipped(K3), target=WRAPPED, plugin=False, args=ARGS),
    ):
        pass
    assert "get_embed_and_head" in failure.value.log


def outputs_before(config: Any) -> None:
    ids = [state - 1 for state in K3.trained_on]
    config["eagle_config"] |= {
        "eagle_aux_hidden_state_layer_ids": ids,
        "layer_id_convention": "layer_output",
    }


@pytest.mark.engine
@pytest.mark.parametrize("release", NEWEST_FIRST)
@pytest.mark.parametrize("plugin", [False, True])
def test_a_patched_release_feeds_the_same(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    plugin: bool,
    tmp_path: Path,
) -> None:
    environment = engines.environment(release, plugin=plugin)
    copy = tmp_path / "sglang"
    shutil.copytree(environment.site_packages / "sglang", copy)
    (file,) = parse((patches() / "kimi-k3" / f"sglang-{release}.patch").read_text()).files
    content = file.apply((copy / file.path).read_bytes())
    assert content is not None
    (copy / file.path).write_bytes(content)
    records = engines.records_folder()
    with Server(
        environment,
        WRAPPED,
        # The patched setter reads ids as states.  These are the states, or outputs of the layers
        # before, as the config says and only the plugin knows.
        drafters.with_eagle_config(K3, outputs_before) if plugin else drafters.shipped(K3),
        args=ARGS,
        log=tmp_path / "log",
        environ={RECORDS: str(records), "PYTHONPATH": f"{tmp_path}:{KERNELS}"},
    ) as server:
        completions = alone(server, prompts[:2])
        log = server.log_text
    assert ("the methods already there" in log) is plugin
    assert acceptance_length(completions) >= 2.0
    sequences = [[*p, *c.output_ids] for p, c in zip(prompts[:2], completions, strict=True)]
    for state in captured(engines, release, records, sequences, K3.trained_on).values():
        assert state.difference <= CLOSE
