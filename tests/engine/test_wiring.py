"""From a draft config to the states in the running engine, on every release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cpu_engine.server import ServerFailed
from engine_tools import MAIN_RELEASES, RECORDS, Drafters, Engines, records_of, states_fed
from sglang_kimi_eagle.releases import RELEASES
from tiny_models.paths import LLAMA, MLA, DrafterRecipe

IDS = "eagle_aux_hidden_state_layer_ids"
DEFAULT = (2, 4, 5)


def nested(**keys: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts these keys below eagle_config; None removes one."""

    def change(config: dict[str, Any]) -> None:
        for key, value in keys.items():
            if value is ...:
                config["eagle_config"].pop(key, None)
            else:
                config["eagle_config"][key] = value

    return change


def top_level_only(config: dict[str, Any]) -> None:
    config[IDS] = [3, 5, 7]
    del config["eagle_config"]


def no_eagle_config(config: dict[str, Any]) -> None:
    del config["eagle_config"]


CASES: dict[str, tuple[Callable[[dict[str, Any]], None], tuple[int, ...]]] = {
    "2xy-layer-output": (nested(layer_id_convention="layer_output"), (3, 5, 7)),
    "2xy-layer-input": (nested(layer_id_convention="layer_input"), (2, 4, 6)),
    "1xy": (nested(**{IDS: [1, 3, 5]}), (2, 4, 6)),
    "1xy-layer-input": (
        nested(**{IDS: [1, 3, 5], "layer_id_convention": "layer_input"}),
        (1, 3, 5),
    ),
    "no-ids": (nested(**{IDS: ...}), DEFAULT),
    "no-eagle-config": (no_eagle_config, DEFAULT),
    "top-level-only": (top_level_only, DEFAULT),
    "null-ids": (nested(**{IDS: None}), DEFAULT),
}

REPRESENTATIVE = ["2xy-layer-output", "2xy-layer-input", "1xy-layer-input", "no-ids"]


def fed(
    engines: Engines, release: str, draft: Any, prompts: list[list[int]], **options: Any
) -> set[tuple[int | None, ...]]:
    """Serve the drafter, and return the states that reached it."""
    folder = engines.records_folder()
    environ = {RECORDS: str(folder), **options.pop("environ", {})}
    with engines.server(release, draft, environ=environ, **options) as server:
        server.generate(prompts[:1], 6)
    return states_fed(records_of(folder))


def check(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
    case: str,
) -> None:
    change, states = CASES[case]
    draft = drafters.with_eagle_config(recipe, change)
    if recipe is MLA and not RELEASES[release].mla_drafter:
        with pytest.raises(ServerFailed) as failure, engines.server(release, draft):
            pass
        assert failure.value.returncode == 3
        assert "Eagle3DeepseekV2ForCausalLM" in failure.value.log
        return
    assert fed(engines, release, draft, prompts) == {states}


@pytest.mark.matrix
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("recipe", [LLAMA, MLA], ids=["llama", "mla"])
@pytest.mark.parametrize("case", CASES)
def test_every_release_feeds_what_the_config_means(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
    case: str,
) -> None:
    check(engines, drafters, prompts, release, recipe, case)


@pytest.mark.engine
@pytest.mark.parametrize("release", MAIN_RELEASES)
@pytest.mark.parametrize(
    "case", ["2xy-layer-output", "2xy-layer-input", "1xy-layer-input", "no-ids"]
)
def test_the_main_releases_feed_what_the_config_means(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str, case: str
) -> None:
    check(engines, drafters, prompts, release, LLAMA, case)


@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.13.post1", "0.5.23"])
class TestUndeclared:
    """The plugin never makes a drafter that works worse: it keeps the release's reading."""

    def test_stock_and_plugin_feed_the_same_states(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
    ) -> None:
        draft = drafters.shipped(LLAMA)
        expected = {RELEASES[release].stock_states([2, 4, 6], 8)}
        assert fed(engines, release, draft, prompts, plugin=False) == expected
        assert fed(engines, release, draft, prompts) == expected

    def test_the_warning_is_logged_once(
        self, engines: Engines, drafters: Drafters, release: str
    ) -> None:
        with engines.server(release, drafters.shipped(LLAMA)) as server:
            assert server.log_text.count("KE210 warning") == 1

    def test_strict_refuses_it(self, engines: Engines, drafters: Drafters, release: str) -> None:
        strict = {"SGLANG_KIMI_EAGLE_STRICT": "1"}
        with (
            pytest.raises(ServerFailed) as failure,
            engines.server(release, drafters.shipped(LLAMA), environ=strict),
        ):
            pass
        assert failure.value.returncode == 3
        assert "KE210 error" in failure.value.log
        assert "Load weight" not in failure.value.log

    def test_the_override_wires_a_checkpoint_that_cannot_be_written(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
    ) -> None:
        override = {"SGLANG_KIMI_EAGLE_STATES": "3,5,7"}
        draft = drafters.shipped(LLAMA)
        assert fed(engines, release, draft, prompts, environ=override) == {(3, 5, 7)}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "specifier"), [("0.5.12.post1", "<0.5.13"), ("0.5.23", ">=0.5.13")]
)
def test_a_drafter_pinned_for_stock_needs_no_plugin(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    specifier: str,
) -> None:
    from packaging.specifiers import SpecifierSet

    from sglang_kimi_eagle.pinning import pin_for_stock

    pin = pin_for_stock(LLAMA.trained_on, SpecifierSet(specifier), 8)
    draft = drafters.with_eagle_config(LLAMA, nested(**{IDS: list(pin.ids)}))
    assert fed(engines, release, draft, prompts, plugin=False) == {LLAMA.trained_on}


@pytest.mark.engine
def test_the_embedding_is_captured_where_the_release_can(
    engines: Engines, drafters: Drafters, prompts: list[list[int]]
) -> None:
    draft = drafters.pinned(LLAMA, (0, 4, 6))
    assert fed(engines, "0.5.23", draft, prompts) == {(0, 4, 6)}
    with pytest.raises(ServerFailed) as failure, engines.server("0.5.13.post1", draft):
        pass
    assert failure.value.returncode == 3 and "KE206" in failure.value.log
