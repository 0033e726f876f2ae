"""Training of the tiny Kimi-K3 and of its drafter."""

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from tiny_models.data import Batches, HeldOut
from tiny_models.k3_drafter import K3Drafter, drafter_config
from tiny_models.k3_target import K3TargetModel, K3TextConfig
from tiny_models.layers import init_weights
from tiny_models.training import TEXTS, likeness, optimize, train_drafter

TARGET_SEED, DRAFTER_SEED = 21, 22


def train_k3_target(tokenizer: Tokenizer, held_out: HeldOut, steps: int) -> K3TargetModel:
    """Next-token loss plus `likeness`, as with the tiny Kimi-K2.5."""
    model = K3TargetModel(K3TextConfig())
    init_weights(model, torch.Generator().manual_seed(4))
    batches = Batches(tokenizer, TEXTS, TARGET_SEED, held_out)

    def loss() -> tuple[Tensor, str]:
        ids = batches.next()
        logits, states = model(ids[:, :-1])
        text = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        like = likeness(states)
        return text + like, f"text {text.item():.4f} likeness {like.item():.4f}"

    optimize(model.parameters(), loss, steps, 3e-3, "Kimi-K3")
    return model.eval().requires_grad_(False)


def train_k3_drafter(
    target: K3TargetModel,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    layers: tuple[int, ...],
    steps: int,
) -> K3Drafter:
    """A drafter that reads h[k] for k in ``layers``."""
    drafter = K3Drafter(drafter_config(target.config), len(layers))
    batches = Batches(tokenizer, TEXTS, DRAFTER_SEED, held_out)
    train_drafter(drafter, target, batches, layers, steps, seed=5)
    return drafter
