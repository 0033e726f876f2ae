"""Traces of the shipped target as its twin computes it, in the files that a server writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sglang_kimi_eagle.probing.prompts import Asked, write_prompts
from sglang_kimi_eagle.tracing.trace_file import SUFFIX, Facts, Piece, write_file
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET, DrafterRecipe
from tiny_models.prompt_file import load_prompts

NEW_TOKENS = 64
LAYERS = 8


@lru_cache(maxsize=1)
def target() -> Any:
    from tiny_models.export import load_target

    return load_target(CHECKPOINTS / TARGET)


@lru_cache(maxsize=1)
def conversations() -> tuple[Asked, ...]:
    """The shipped prompts with the twin's greedy continuations."""
    return tuple(
        Asked(prompt.kind, len(prompt.ids), (*prompt.ids, *target().greedy(prompt.ids, NEW_TOKENS)))
        for prompt in load_prompts(CHECKPOINTS)
    )


@lru_cache(maxsize=64)
def states_of(tokens: tuple[int, ...]) -> tuple[Any, ...]:
    """h[0] ... h[8], each [tokens, hidden size]."""
    import torch

    with torch.no_grad():
        _, states = target()(torch.tensor([tokens]))
    return tuple(state[0].contiguous() for state in states)


@dataclass
class TwinTrace:
    """What a traced server would have written; fields can be changed before `write`."""

    asked: Sequence[Asked]
    wired: tuple[int, ...] = (2, 4, 6)
    states: Sequence[int] = range(LAYERS + 1)
    sglang: str = "0.5.23"
    target: str = str(CHECKPOINTS / TARGET)
    recipe: DrafterRecipe = LLAMA
    prompts_file: bool = True
    hidden_size: int = 128
    start: int = 0
    fed: Sequence[int] | None = None
    """What the draft model was given; None is what it was wired to."""
    partial: tuple[int, ...] = ()
    damage: Mapping[int, float] = field(default_factory=dict)
    """A number that one row of a state has in it."""

    def write(self, folder: Path) -> Path:
        import torch

        folder.mkdir(parents=True, exist_ok=True)
        for order, asked in enumerate(self.asked):
            states, count = states_of(asked.tokens), len(asked.tokens)
            states = tuple(state[:, : self.hidden_size].contiguous() for state in states)
            tensors = {f"h.{k}": states[k].clone() for k in self.states}
            for k, value in self.damage.items():
                tensors[f"h.{k}"][count // 2, 1] = value
            tensors["tokens"] = torch.tensor(asked.tokens)
            tensors["positions"] = torch.arange(self.start, self.start + count)
            tensors["fed"] = torch.cat([states[k] for k in self.fed or self.wired], dim=-1)
            tensors["fed_tokens"] = torch.tensor([*asked.tokens[1:], 0])
            facts = Facts(
                plugin="0.1.0",
                sglang=self.sglang,
                mode="EXTEND",
                rank=0,
                tp_size=1,
                order=order,
                target=self.target,
                drafter=str(CHECKPOINTS / self.recipe.folder),
                num_layers=LAYERS,
                hidden_size=self.hidden_size,
                wired=self.wired,
                reason="a test",
                partial=self.partial,
                pieces=(Piece(sequence=str(order), row=0, rows=count),),
            )
            write_file(folder / f"0-{order:06}{SUFFIX}", tensors, facts)
        if self.prompts_file:
            write_prompts(folder, list(self.asked))
        return folder
