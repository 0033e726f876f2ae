"""Build the reference draft model from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_kimi_eagle.checks import Context, run_checks
from sglang_kimi_eagle.checks.layout import (
    canonical,
    layout_of,
    needs_embedding,
    ties_head,
)
from sglang_kimi_eagle.diagnostics import Diagnostic, errors
from sglang_kimi_eagle.drafter import Drafter, UnreadableDrafter
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.values import number, whole
from sglang_kimi_eagle.loaders import draft_loader
from sglang_kimi_eagle.probing.findings import TARGET_NEEDED, UNSUPPORTED, ProbeRefused
from sglang_kimi_eagle.probing.reference import (
    Attention,
    GroupedAttention,
    Head,
    LatentAttention,
    Reference,
)
from sglang_kimi_eagle.probing.rope import UnknownRope, llama_rope, mla_rope
from sglang_kimi_eagle.probing.weights import FLOATS, Checkpoint, find, target_checkpoint
from sglang_kimi_eagle.releases import NEWEST, RELEASES
from sglang_kimi_eagle.settings import Settings

if TYPE_CHECKING:
    import torch

_EPS = 1e-6
"""``rms_norm_eps`` of transformers' Llama and DeepSeek-V3 configs."""
_EMBEDDINGS = ("language_model.model.embed_tokens.weight", "model.embed_tokens.weight")
_HEADS = ("language_model.lm_head.weight", "lm_head.weight")


@dataclass(frozen=True)
class Embedding:
    """The embeddings of some tokens."""

    ids: torch.Tensor
    """Ascending token ids, int64 [n]."""
    rows: torch.Tensor
    """[n, C] float32."""

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed tokens that are all among `ids`: int64 [T] -> [T, C]."""
        import torch

        return self.rows[torch.searchsorted(self.ids, tokens)]


@dataclass(frozen=True)
class Loaded:
    """A drafter ready to be scored."""

    reference: Reference
    embedding: Embedding
    embedding_from: str
    """``target`` or ``drafter``."""


def load(
    drafter: Drafter,
    target: str,
    tokens: Iterable[int],
    *,
    release: str = NEWEST,
    device: str = "cpu",
    named: bool = False,
) -> Loaded:
    """Read a drafter and what the engine gives it from the target.

    Args:
        drafter: its config and headers.
        target: folder or hub id of the target, for its embedding (and head).
        tokens: those that will be embedded.
        release: of the engine to agree with, where releases differ.
        device: of torch.
        named: the user named the target, so the drafter's own embedding is no substitute.

    Raises:
        ProbeRefused: it has something that the reference does not know, or that is missing.
    """
    try:
        return _Loader(drafter, target, release, device, named).load(sorted(set(tokens)))
    except UnreadableDrafter as problem:
        raise ProbeRefused(*problem.findings) from problem
    except UnknownRope as problem:
        raise ProbeRefused(_unsupported(drafter, "its rope", str(problem))) from problem


def check_target(location: str) -> None:
    """See that a target that the user named can be read, whether it is needed or not.

    Raises:
        ProbeRefused: it is not on this machine, or has neither embedding nor head.
    """
    try:
        found = target_checkpoint(location).headers
    except UnreadableDrafter as problem:
        raise ProbeRefused(_no_target(location, problem.findings[0].message)) from problem
    if not found:
        raise ProbeRefused(_no_target(location, "it has neither embedding nor head"))


class _Loader:
    def __init__(
        self, drafter: Drafter, target: str, release: str, device: str, named: bool
    ) -> None:
        self.drafter, self.target, self.device, self.named = drafter, target, device, named
        self.loader = draft_loader(RELEASES.get(release, RELEASES[NEWEST]))
        # The newest release knows every step that any release does.
        self.context = Context(drafter, None, None, RELEASES[NEWEST])
        self.config = drafter.config
        self._targets: Checkpoint | None = None

    def load(self, tokens: Sequence[int]) -> Loaded:
        self._refuse_the_unknown()
        layout, names = layout_of(self.context), {}
        for name in self.drafter.tensors:
            names[canonical(name, self.context)] = name
        own = Checkpoint.of(self.drafter)
        weights: dict[str, torch.Tensor] = {}
        for parameter in layout.shapes:
            if parameter in names and parameter not in ("embed_tokens.weight", "lm_head.weight"):
                weights[_short(parameter)] = own.tensor(names[parameter]).to(self.device)
        states, width = self.context.num_states, self.context.target_hidden_size
        assert states is not None and width is not None
        embedding, source = self._embedding(own, names, tokens)
        reference = Reference(
            attention=self._attention(weights),
            weights=weights,
            head=self._head(own, names),
            num_states=states,
            width=width,
            eps=self._eps,
            norm_output=bool(self.config.get("norm_output", False)),
            ahead=int(self.loader.chain_positions_ahead),
        )
        return Loaded(reference, embedding, source)

    @property
    def _eps(self) -> float:
        return number(self.config.get("rms_norm_eps", _EPS)) or _EPS

    def _refuse_the_unknown(self) -> None:
        found = errors(run_checks(self.context, Settings()))
        wrong = [finding for finding in found if finding.code[:3] in ("KE1", "KE3", "KE4")]
        if wrong:
            raise ProbeRefused(*wrong)
        config = self.config
        dtypes = {header.dtype for name, header in self.drafter.tensors.items() if _counts(name)}
        if self.context.quantisation is not None:
            raise ProbeRefused(self._unsupported("quantised weights", self.context.quantisation[0]))
        if not dtypes <= FLOATS.keys():
            raise ProbeRefused(self._unsupported("its dtype", brief(sorted(dtypes))))
        for key, known in (
            ("num_hidden_layers", (1,)),
            ("hidden_act", ("silu",)),
            ("n_routed_experts", (None, 0)),
        ):
            # A key that is missing is what the class takes for granted; hidden_act never is.
            if key in config and config[key] not in known:
                raise ProbeRefused(self._unsupported(f"its {key}", brief(config[key], 60)))
        if not self.context.uses_states:
            raise ProbeRefused(
                self._unsupported("no intermediate states", "use_aux_hidden_state false")
            )

    def _attention(self, weights: dict[str, torch.Tensor]) -> Attention:
        config = self.config
        heads = _size(config, "num_attention_heads")
        if self.context.is_mla:
            return LatentAttention(
                weights,
                mla_rope(config, _size(config, "qk_rope_head_dim")),
                heads,
                _size(config, "qk_nope_head_dim"),
                _size(config, "v_head_dim"),
                self._eps,
            )
        size = whole(config, "head_dim") or _size(config, "hidden_size") // heads
        rope = llama_rope(config, size, yarn_mscale=self.loader.llama_yarn_mscale)
        return GroupedAttention(weights, rope, heads, whole(config, "num_key_value_heads") or heads)

    def _embedding(
        self, own: Checkpoint, names: dict[str, str], tokens: Sequence[int]
    ) -> tuple[Embedding, str]:
        """Read the rows that the engine has: the target's, unless the widths differ."""
        import torch

        mine = names.get("embed_tokens.weight")
        checkpoint, name, source = own, mine, "drafter"
        if not needs_embedding(self.context):
            try:
                targets = self._target()
                theirs = find(targets, *_EMBEDDINGS)
                if theirs is None:
                    raise ProbeRefused(self._target_needed("it has no embedding of floats"))
                checkpoint, name, source = targets, theirs, "target"
            except ProbeRefused:
                # A drafter's own copy was the target's when it was trained.
                if mine is None or self.named:
                    raise
        assert name is not None
        vocabulary, width = checkpoint.headers[name].shape
        if width != _size(self.config, "hidden_size") or (tokens and tokens[-1] >= vocabulary):
            raise ProbeRefused(
                self._target_needed(
                    f"its embedding is [{vocabulary}, {width}], the drafter is "
                    f"{_size(self.config, 'hidden_size')} wide"
                )
            )
        rows = checkpoint.rows(name, tokens).to(self.device).float()
        return Embedding(torch.tensor(tokens, device=self.device), rows), source

    def _head(self, own: Checkpoint, names: dict[str, str]) -> Head:
        import torch

        name, checkpoint = names.get("lm_head.weight"), own
        if ties_head(self.context):
            name = names.get("embed_tokens.weight")
            if name is None:
                checkpoint, name = self._target(), find(self._target(), *_EMBEDDINGS)
        elif self.config.get("draft_vocab_size") is None and self.context.is_llama:
            # The worker replaces the drafter's own head, if it has one.
            checkpoint, name = self._target(), find(self._target(), *_HEADS)
        elif name is None:
            checkpoint, name = self._target(), find(self._target(), *_HEADS)
        if name is None:
            raise ProbeRefused(self._target_needed("it has no head of floats"))
        weight = checkpoint.tensor(name).to(self.device)
        targets = None
        d2t = next((key for key in self.drafter.tensors if key.split(".")[-1] == "d2t"), None)
        if d2t is not None:
            moved = torch.tensor(self.drafter.read_tensor(d2t).tolist(), dtype=torch.int64)
            targets = (moved + torch.arange(len(moved))).to(self.device)
        return Head(weight, targets)

    def _target(self) -> Checkpoint:
        if self._targets is None:
            try:
                self._targets = target_checkpoint(self.target)
            except UnreadableDrafter as problem:
                raise ProbeRefused(self._target_needed(problem.findings[0].message)) from problem
        return self._targets

    def _target_needed(self, seen: str) -> Diagnostic:
        return TARGET_NEEDED.found(
            "The drafter needs the target's embedding or head, and they cannot be read.",
            where=self.target,
            seen=seen,
            leads_to="The drafter cannot be run as the engine runs it.",
            mend="Give the folder or hub id of the target's checkpoint: --target TARGET.",
        )

    def _unsupported(self, what: str, seen: str) -> Diagnostic:
        return _unsupported(self.drafter, what, seen)


def _no_target(location: str, seen: str) -> Diagnostic:
    return TARGET_NEEDED.found(
        "The target that --target names cannot be read.",
        where=location,
        seen=seen,
        leads_to="The drafter is not run with another target's embedding than the one asked for.",
        mend="Give the folder or hub id of the target's checkpoint, or leave --target out.",
    )


def _unsupported(drafter: Drafter, what: str, seen: str) -> Diagnostic:
    return UNSUPPORTED.found(
        f"The reference draft model does not know {what}.",
        where=drafter.config_path,
        seen=seen,
        leads_to="The drafter is not scored, rather than scored as another one.",
        mend="Probe the unquantised drafter that it was made from, or compare acceptance lengths "
        "of a server with each wiring.",
    )


def _short(parameter: str) -> str:
    """``layers.0.self_attn.q_proj.weight`` -> ``q_proj``; biases keep their suffix."""
    name = parameter.removesuffix(".weight")
    for prefix in ("layers.0.", "midlayer."):
        name = name.removeprefix(prefix)
    return name.removeprefix("self_attn.").removeprefix("mlp.")


def _counts(name: str) -> bool:
    return name.split(".")[-1] not in ("d2t", "t2d", "inv_freq")


def _size(config: Any, key: str) -> int:
    value = whole(config, key)
    assert value is not None, key  # checked by KE304
    return value
