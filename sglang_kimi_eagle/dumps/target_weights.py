"""What of the target's weights makes or follows a state: embedding rows and the final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kimi_eagle.drafter import TensorHeader, UnreadableDrafter
from sglang_kimi_eagle.drafter.headers import read_headers
from sglang_kimi_eagle.drafter.index import find_shards
from sglang_kimi_eagle.drafter.location import locate
from sglang_kimi_eagle.drafter.values import number
from sglang_kimi_eagle.probing.weights import Checkpoint, find
from sglang_kimi_eagle.target import UnreadableTarget, read_target

if TYPE_CHECKING:
    import torch

_EMBEDDING = ("language_model.model.embed_tokens.weight", "model.embed_tokens.weight")
_NORM = ("language_model.model.norm.weight", "model.norm.weight")
_EPS = 1e-6
_MAX_SHARDS = 512


@dataclass(frozen=True)
class TargetWeights:
    """A target's checkpoint, of which a few rows are read."""

    checkpoint: Checkpoint
    hidden_size: int
    norm: torch.Tensor | None
    """Weight of the final norm, float32 [hidden size]."""
    eps: float

    @property
    def has_embedding(self) -> bool:
        """Whether `embedding` can be asked for."""
        name = find(self.checkpoint, *_EMBEDDING)
        return name is not None and self.checkpoint.headers[name].shape[1:] == (self.hidden_size,)

    def embedding(self, tokens: Sequence[int]) -> torch.Tensor:
        """Read h[0] of tokens: [len(tokens), hidden size]; zeros for ids beyond the vocabulary."""
        import torch

        name = find(self.checkpoint, *_EMBEDDING)
        assert name is not None
        count = self.checkpoint.headers[name].shape[0]
        distinct = sorted({token for token in tokens if 0 <= token < count})
        place = {token: index for index, token in enumerate(distinct)}
        rows = self.checkpoint.rows(name, distinct)
        rows = torch.cat((rows, torch.zeros(1, self.hidden_size, dtype=rows.dtype)))
        return rows[torch.tensor([place.get(token, len(distinct)) for token in tokens])]

    def final_norm(self, states: torch.Tensor) -> torch.Tensor:
        """Return RMSNorm of h[n]: float32, shaped as ``states``."""
        assert self.norm is not None
        scale = (states.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return states * scale * self.norm


def read_weights(location: str, hidden_size: int, num_layers: int) -> TargetWeights | None:
    """Read the final norm's weight of the target at ``location``, and where the embedding is.

    None when it is not on this machine, cannot be read, or is of other sizes than the trace: the
    comparison goes on without it.
    """
    try:
        target = read_target(location)
        if (target.hidden_size, target.num_layers) != (hidden_size, num_layers):
            return None
        folder = locate(location)
        shards = find_shards(folder)
        wanted = {shards.placed[name] for name in (*_EMBEDDING, *_NORM) if name in shards.placed}
        headers: dict[str, TensorHeader] = {}
        for file in sorted(wanted) if shards.placed else shards.files[:_MAX_SHARDS]:
            headers |= read_headers(folder, file)
        checkpoint = Checkpoint(folder, headers)
        name = find(checkpoint, *_NORM)
        norm = None
        if name is not None and headers[name].shape == (hidden_size,):
            norm = checkpoint.tensor(name).float()
    except (UnreadableDrafter, UnreadableTarget):
        return None
    text = target.config.get("text_config")
    config = text if isinstance(text, dict) else target.config
    return TargetWeights(checkpoint, hidden_size, norm, number(config.get("rms_norm_eps")) or _EPS)
