"""What the engine tests share: servers of any release, drafters, and what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.environments import Environment, ensure
from cpu_engine.records import Record, captured_states, read_records
from cpu_engine.server import Completion, Server
from cpu_engine.warm import WarmEngine
from sglang_kimi_eagle.pinning import pin_states, write_copy
from sglang_kimi_eagle.releases import RELEASES
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, TARGET, DrafterRecipe

MAIN_RELEASES = ("0.5.9", "0.5.12.post1", "0.5.13.post1", "0.5.23")
TARGET_FOLDER = CHECKPOINTS / TARGET
PROBES = "CPU_ENGINE_PROBES"
RECORDS = "CPU_ENGINE_RECORDS"


@dataclass
class Engines:
    """Starts servers of any release; keeps the warm processes of the last environment used."""

    folder: Path
    say: Callable[[str], None]
    _warm: dict[tuple[str, bool, str], WarmEngine] = field(default_factory=dict)
    _plain: dict[str, list[list[int]]] = field(default_factory=dict)
    _environments: dict[tuple[str, bool], Environment] = field(default_factory=dict)
    _count: int = 0

    def environment(self, release: str, *, plugin: bool = True) -> Environment:
        """Build the environment of a release if necessary, once a session."""
        key = (release, plugin)
        if key not in self._environments:
            self._environments[key] = ensure(release, plugin=plugin, progress=self.say)
        return self._environments[key]

    def server(
        self,
        release: str,
        draft: Path | None = None,
        *,
        plugin: bool = True,
        args: Sequence[str] = (),
        environ: Mapping[str, str] = {},
        probes: str = "",
        tp_size: int = 1,
        target: Path = TARGET_FOLDER,
        cold: bool = False,
    ) -> Server:
        """Return a server to be started with ``with``."""
        self._count += 1
        environment = self.environment(release, plugin=plugin)
        return Server(
            environment,
            target,
            draft,
            args=args,
            environ=environ,
            tp_size=tp_size,
            log=self.folder / f"{self._count:03}-{environment.root.name}.log",
            progress=self.say,
            warm=None if cold else self._warm_engine(environment, plugin, probes),
        )

    def records_folder(self) -> Path:
        """Return a new folder for records."""
        self._count += 1
        folder = self.folder / f"{self._count:03}-records"
        folder.mkdir()
        return folder

    def plain_tokens(self, release: str, prompts: Sequence[Sequence[int]], count: int) -> Any:
        """Return what the release generates without speculation and without the plugin."""
        key = json.dumps([release, [list(prompt) for prompt in prompts], count])
        if key not in self._plain:
            with self.server(release, plugin=False) as server:
                self._plain[key] = tokens(server.generate(prompts, count))
        return self._plain[key]

    def close(self) -> None:
        """End the warm processes."""
        for warm in self._warm.values():
            warm.__exit__(None, None, None)
        self._warm.clear()

    def _warm_engine(self, environment: Environment, plugin: bool, probes: str) -> WarmEngine:
        key = (environment.release, plugin, probes)
        if key not in self._warm:
            if any(release != environment.release for release, _, _ in self._warm):
                self.close()
            self._count += 1
            warm = WarmEngine(
                environment,
                log=self.folder / f"{self._count:03}-warm-{environment.root.name}.log",
                # A recorder is loaded; it writes once a server names a folder.
                environ={PROBES: probes, RECORDS: ""},
            )
            self._warm[key] = warm.__enter__()
        return self._warm[key]


@dataclass
class Drafters:
    """The shipped drafters, and variants of them that differ in their config alone."""

    folder: Path
    _count: int = 0

    def shipped(self, recipe: DrafterRecipe) -> Path:
        """Return the drafter as it ships: ids [2, 4, 6] and no declaration."""
        return CHECKPOINTS / recipe.folder

    def pinned(self, recipe: DrafterRecipe, states: Sequence[int] | None = None) -> Path:
        """Return a copy that declares ``states`` (default: those it was trained on)."""
        source = self.shipped(recipe)
        pin = pin_states(tuple(states or recipe.trained_on), recipe.layer_ids)
        config = json.loads((source / "config.json").read_text())
        return self._write(source, pin.applied_to(config))

    def with_eagle_config(self, recipe: DrafterRecipe, change: Callable[[Any], None]) -> Path:
        """Return a copy with ``change`` applied to its decoded config."""
        source = self.shipped(recipe)
        config = json.loads((source / "config.json").read_text())
        change(config)
        return self._write(source, config)

    def _write(self, source: Path, config: Any) -> Path:
        self._count += 1
        output = self.folder / f"{source.name}-{self._count}"
        write_copy(source, output, config)
        return output


def served(releases: Sequence[str]) -> list[Any]:
    """Return parameters for tests: each release with each drafter whose class it registers."""
    return [
        pytest.param(release, recipe, id=f"{release}-{recipe.folder}")
        for release in releases
        for recipe in (LLAMA, MLA)
        if recipe is LLAMA or RELEASES[release].mla_drafter
    ]


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    """Return the generated ids."""
    return [completion.output_ids for completion in completions]


def acceptance_length(completions: Sequence[Completion]) -> float:
    """Tokens per verify step over all completions, bonus token included."""
    verified = sum(done.meta["spec_verify_ct"] for done in completions)
    return sum(done.meta["completion_tokens"] for done in completions) / verified


def records_of(folder: Path) -> list[Record]:
    """Read the records of a server that has answered."""
    records = read_records(folder)
    assert records, "the engine recorded nothing"
    return records


def states_fed(records: Sequence[Record]) -> set[tuple[int | None, ...]]:
    """Return the states found, bit for bit, in each tensor that reached the draft model."""
    return {
        tuple(captured_states(record))
        for record in records
        if record.kind == "draft" and record.captured
    }
