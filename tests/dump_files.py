"""Dumps as the trainers write them, and traces of the shipped target, from its twin's states."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sglang_kimi_eagle.tracing.trace_file import SUFFIX, Facts, Piece, write_file
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET
from tiny_models.prompt_file import load_prompts

LAYERS = 8
HIDDEN = 128
TOKENS = 64
CAPTURED = (3, 5, 7)
NORM = f"final norm of h[{LAYERS}]"
Tokens = tuple[int, ...]


@lru_cache(maxsize=1)
def texts() -> tuple[Tokens, ...]:
    """The shipped prompts of at least 64 tokens, cut to 64."""
    return tuple(
        tuple(prompt.ids[:TOKENS])
        for prompt in load_prompts(CHECKPOINTS)
        if len(prompt.ids) >= TOKENS
    )


@lru_cache(maxsize=2)
def twin(seed: int | None = None) -> Any:
    """The shipped target in plain torch; with a seed, one of the same shape and other weights."""
    import torch

    from tiny_models.export import load_target
    from tiny_models.layers import init_weights

    model = load_target(CHECKPOINTS / TARGET)
    if seed is not None:
        init_weights(model, torch.Generator().manual_seed(seed))
    return model


@lru_cache(maxsize=64)
def states_of(tokens: Tokens, seed: int | None = None) -> tuple[Any, ...]:
    """h[0] ... h[8] of a text, each float32 [tokens, hidden size]."""
    import torch

    with torch.no_grad():
        _, states = twin(seed)(torch.tensor([tokens]))
    return tuple(state[0].contiguous() for state in states)


def normed(tokens: Tokens, seed: int | None = None) -> Any:
    """What the final norm makes of h[8]."""
    import torch

    with torch.no_grad():
        return twin(seed).model.norm(states_of(tokens, seed)[LAYERS])


def noisy(state: Any, level: float = 2.0**-8, seed: int = 0) -> Any:
    """A state as a bfloat16 engine has it: with relative noise of this level, and rounded."""
    import torch

    noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(seed))
    size = state.square().mean(-1, keepdim=True).sqrt()
    return (state + level * size * noise).bfloat16()


def write_trace(
    folder: Path,
    prompts: Sequence[Tokens],
    states: Sequence[int] = range(LAYERS + 1),
    *,
    chunk: int = 1 << 20,
    target: str = str(CHECKPOINTS / TARGET),
    values: Callable[[Tokens], Sequence[Any]] = states_of,
    wired: Sequence[int] = (2, 4, 6),
    fed: bool = False,
    **changes: Any,
) -> Path:
    """Write what a traced server writes, its prompts in chunks of prefill."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    order = 0
    for number, tokens in enumerate(prompts):
        known = values(tokens)
        for start in range(0, len(tokens), chunk):
            rows = slice(start, min(start + chunk, len(tokens)))
            tensors = {f"h.{k}": known[k][rows].bfloat16().contiguous() for k in states}
            tensors["tokens"] = torch.tensor(tokens[rows])
            tensors["positions"] = torch.arange(rows.start, rows.stop)
            if fed:
                tensors["fed"] = torch.cat([known[k][rows].bfloat16() for k in wired], dim=-1)
                tensors["fed_tokens"] = torch.tensor(tokens[rows])
            facts: dict[str, Any] = {
                "plugin": "0.1.0",
                "sglang": "0.5.23",
                "mode": "EXTEND",
                "rank": 0,
                "tp_size": 1,
                "order": order,
                "target": target,
                "drafter": LLAMA.folder,
                "num_layers": len(known) - 1,
                "hidden_size": known[0].shape[1],
                "wired": tuple(wired),
                "reason": "a test",
                "pieces": (Piece(str(number), 0, rows.stop - rows.start),),
            }
            write_file(folder / f"{order:05}{SUFFIX}", tensors, Facts(**facts | changes))
            order += 1
    return folder


@dataclass(frozen=True)
class Dumped:
    """What a trainer has of one text: captured states, and the last one after the final norm."""

    tokens: Tokens
    aux: tuple[Any, ...]
    last: Any

    @property
    def rows(self) -> int:
        return int(self.last.shape[0])


def dumped(
    tokens: Tokens,
    captured: Sequence[int] = CAPTURED,
    seed: int | None = None,
    level: float = 2.0**-8,
) -> Dumped:
    """What a dump of this text holds."""
    states = states_of(tokens, seed)
    aux = tuple(noisy(states[k], level, seed=k) for k in captured)
    return Dumped(tokens, aux, noisy(normed(tokens, seed), level, seed=99))


def specforge(path: Path, sample: Dumped) -> None:
    import torch

    torch.save(_specforge(sample), path)


def specforge_gz(path: Path, sample: Dumped) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save(_specforge(sample), buffer)
    path.write_bytes(gzip.compress(buffer.getvalue()))


def several_samples(path: Path, sample: Dumped) -> None:
    import torch

    torch.save([_specforge(sample)], path)


def model_optimizer(path: Path, sample: Dumped) -> None:
    import torch

    content = {
        "input_ids": torch.tensor(sample.tokens),
        "hidden_states": sample.last,
        "aux_hidden_states": torch.cat(sample.aux, dim=-1),
        "loss_mask": torch.ones(sample.rows),
        "conversation_id": "a conversation",
    }
    torch.save(content, path)


def speculators(path: Path, sample: Dumped) -> None:
    import torch
    from safetensors.torch import save_file

    content = {
        "token_ids": torch.tensor(sample.tokens),
        "hidden_states": torch.stack((*sample.aux, sample.last), dim=1),
    }
    save_file(content, path)


def bald_eagle(path: Path, sample: Dumped) -> None:
    import torch

    content = {
        "input_ids": torch.tensor(sample.tokens),
        "loss_mask": torch.ones(sample.rows),
        "hidden_state": torch.stack(sample.aux),
    }
    torch.save(content, path)


def bald_eagle_wide(path: Path, sample: Dumped) -> None:
    import torch

    content = {
        "input_ids": torch.tensor([sample.tokens]),
        "hidden_state": torch.cat(sample.aux, dim=-1)[None],
    }
    torch.save(content, path)


def story(path: Path, sample: Dumped) -> None:
    import torch

    torch.save([*sample.aux, sample.last], path)


def story_with_tokens(path: Path, sample: Dumped) -> None:
    import torch

    content = {"input_ids": list(sample.tokens), "hidden_states": (*sample.aux, sample.last)}
    torch.save(content, path)


def story_names(path: Path, sample: Dumped) -> None:
    import torch

    states = (*sample.aux, sample.last)
    content = {f"hs[{index}]": state for index, state in enumerate(states)}
    torch.save({"input_ids": torch.tensor(sample.tokens)} | content, path)


def _specforge(sample: Dumped) -> dict[str, Any]:
    import torch

    return {
        "input_ids": torch.tensor(sample.tokens),
        "loss_mask": torch.ones(1, len(sample.tokens)),
        "hidden_state": sample.last[None],
        "aux_hidden_state": torch.cat(sample.aux, dim=-1)[None],
    }


Write = Callable[[Path, Dumped], None]
_AUX = {f"aux_hidden_state[{i}]": f"h[{k}]" for i, k in enumerate(CAPTURED)}


def _numbered(name: str, *, last: bool) -> dict[str, str]:
    found = {f"{name}[{i}]": f"h[{k}]" for i, k in enumerate(CAPTURED)}
    return found | ({f"{name}[{len(CAPTURED)}]": NORM} if last else {})


FORMATS: Mapping[str, tuple[Write, Mapping[str, str]]] = {
    "SpecForge": (specforge, {"hidden_state": NORM, **_AUX}),
    "SpecForge, gzip": (specforge_gz, {"hidden_state": NORM, **_AUX}),
    "several samples": (several_samples, {"hidden_state": NORM, **_AUX}),
    "Model-Optimizer": (
        model_optimizer,
        {"hidden_states": NORM, **_numbered("aux_hidden_states", last=False)},
    ),
    "speculators": (speculators, _numbered("hidden_states", last=True)),
    "BaldEagle": (bald_eagle, _numbered("hidden_state", last=False)),
    "BaldEagle, wide": (bald_eagle_wide, _numbered("hidden_state", last=False)),
    "story": (story, _numbered("", last=True)),
    "story, tokens": (story_with_tokens, _numbered("hidden_states", last=True)),
    "story, names": (story_names, _numbered("hs", last=True)),
}
"""How each trainer writes a sample, and what each tensor of it is."""
