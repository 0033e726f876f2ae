"""Training of the target and of the drafters, counted in steps and seeded."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from tiny_models.data import Batches, HeldOut
from tiny_models.drafters import (
    Drafter,
    LlamaDrafter,
    LlamaDrafterConfig,
    MLADrafter,
)
from tiny_models.layers import init_weights
from tiny_models.target import TargetModel, TextConfig

TEXTS = 20000
TARGET_SEED, LLAMA_SEED, MLA_SEED = 11, 12, 13
UNROLL = 3
BIAS_RATE = 0.002
Loss = Callable[[], tuple[Tensor, str]]


def make_deterministic() -> None:
    """One thread and deterministic kernels: the same machine gives the same bytes."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def optimize(
    parameters: Iterable[nn.Parameter], loss: Loss, steps: int, rate: float, label: str
) -> None:
    """AdamW; the rate rises over 5 % of the steps and falls to zero on a cosine."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.01)
    warm_up, start = max(1, steps // 20), time.perf_counter()
    for step in range(steps):
        fall = 0.5 * (1.0 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * fall * min(1.0, (step + 1) / warm_up)
        value, note = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            seconds = time.perf_counter() - start
            print(f"{label} step {step} {seconds:.0f} s: {note}", flush=True)


def likeness(states: list[Tensor]) -> Tensor:
    """Mean squared cosine between h[k] and h[k + 1] over all k."""
    cosines = [F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(states)]
    return torch.stack(cosines).square().mean()


def balance_experts(model: TargetModel) -> None:
    """Nudge the selection bias of each expert towards equal load."""
    for block in model.mixtures():
        load = block.load.float()
        block.gate.e_score_correction_bias += BIAS_RATE * (load.mean() - load).sign()


def train_target(tokenizer: Tokenizer, held_out: HeldOut, steps: int) -> TargetModel:
    """Next-token loss plus ``likeness``.

    The layers of so small a network change the residual stream little, so that reading
    a neighbouring layer would go unnoticed; the second term makes every layer rewrite
    the stream.
    """
    model = TargetModel(TextConfig())
    init_weights(model, torch.Generator().manual_seed(0))
    batches = Batches(tokenizer, TEXTS, TARGET_SEED, held_out)

    def loss() -> tuple[Tensor, str]:
        ids = batches.next()
        logits, states = model(ids[:, :-1])
        balance_experts(model)
        text = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        like = likeness(states)
        return text + like, f"text {text.item():.4f} likeness {like.item():.4f}"

    optimize(model.parameters(), loss, steps, 3e-3, "target")
    return model.eval()


def frequent_tokens(batches: Batches, count: int, vocab_size: int) -> Tensor:
    """The ``count`` most frequent ids of the corpus, ascending."""
    seen = Counter(batches.ids.tolist())
    ranked = sorted(range(vocab_size), key=lambda token: (-seen[token], token))
    return torch.tensor(sorted(ranked[:count]))


def train_llama_drafter(
    target: TargetModel,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    layers: tuple[int, ...],
    steps: int,
) -> LlamaDrafter:
    """A drafter of the Llama kind that reads h[k] for k in ``layers``."""
    config = LlamaDrafterConfig()
    batches = Batches(tokenizer, TEXTS, LLAMA_SEED, held_out)
    vocabulary = frequent_tokens(batches, config.draft_vocab_size, config.vocab_size)
    drafter = LlamaDrafter(config, vocabulary)
    train_drafter(drafter, target, batches, layers, steps, seed=1)
    return drafter


def train_mla_drafter(
    target: TargetModel,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    layers: tuple[int, ...],
    steps: int,
) -> MLADrafter:
    """A drafter of the latent-attention kind that reads h[k] for k in ``layers``."""
    drafter = MLADrafter(target.config)
    batches = Batches(tokenizer, TEXTS, MLA_SEED, held_out)
    train_drafter(drafter, target, batches, layers, steps, seed=2)
    return drafter


def train_drafter(
    drafter: Drafter,
    target: TargetModel,
    batches: Batches,
    layers: tuple[int, ...],
    steps: int,
    seed: int,
) -> None:
    """Cross-entropy with the target's greedy choice over ``UNROLL`` self-fed steps.

    The head and the norm before it start as the target's.
    """
    init_weights(drafter, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        rows = drafter.to_target(torch.arange(drafter.lm_head.out_features))
        drafter.lm_head.weight.copy_(target.lm_head.weight[rows])
        drafter.norm.weight.copy_(target.model.norm.weight)

    def loss() -> tuple[Tensor, str]:
        ids = batches.next()
        with torch.no_grad():
            logits, states = target(ids)
            aux = torch.cat([states[k] for k in layers], dim=-1)[:, :-2]
            embeds = target.model.embed_tokens(ids[:, 1:-1])
            labels = drafter.from_target(logits[:, 1:-1].argmax(-1))
        total, rates = torch.zeros(()), []
        for step, rows in enumerate(drafter.unroll(embeds, aux, UNROLL)):
            rows, wanted = rows[:, step:].flatten(0, 1), labels[:, step:].flatten()
            total = total + F.cross_entropy(rows, wanted, ignore_index=-1)
            rates.append((rows.argmax(-1) == wanted).float().mean().item())
        return total, " ".join(f"{rate:.3f}" for rate in rates)

    optimize(drafter.parameters(), loss, steps, 3e-3, type(drafter).__name__)
    drafter.eval()
