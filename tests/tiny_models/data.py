"""Training batches: windows of the tokenized corpus."""

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tiny_models.corpus import texts
from tiny_models.tokenizer import EOS_ID, encode, render

WINDOW = 256
BATCH = 4
HeldOut = tuple[str, ...]
"""Beginnings of texts that are not trained on."""


class Batches:
    """An endless stream of batches [BATCH, WINDOW + 1]; windows start with a text."""

    def __init__(self, tokenizer: Tokenizer, count: int, seed: int, held_out: HeldOut) -> None:
        """``count`` texts, each followed by the EOS token; none has a held-out start."""
        ids: list[int] = []
        starts: list[int] = []
        for rendered in map(render, texts(count, seed)):
            if not rendered.startswith(held_out):
                starts.append(len(ids))
                ids += [*encode(tokenizer, rendered), EOS_ID]
        self.ids = torch.tensor(ids)
        self.starts = torch.tensor([s for s in starts if s + WINDOW < len(ids)])
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> Tensor:
        """The next batch."""
        picks = torch.randint(len(self.starts), (BATCH,), generator=self.generator)
        return self.ids[self.starts[picks, None] + torch.arange(WINDOW + 1)]
