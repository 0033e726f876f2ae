"""Rotary embeddings as SGLang computes them for the two draft classes.

SGLang 0.5.9 - 0.5.23, ``layers/rotary_embedding`` (``factory.get_rope``) and
``models/deepseek_v2.py`` ``DeepseekV2AttentionMLA``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_kimi_eagle.drafter.values import number

if TYPE_CHECKING:
    import torch

Tables = tuple["torch.Tensor", "torch.Tensor"]
"""Cosines and sines, each [T, size / 2] float32."""
DEFAULT_THETA = 10000.0
"""Of transformers' Llama and DeepSeek-V3 configs."""


class UnknownRope(ValueError):
    """The config asks for a rope that is not computed here; the message says which."""


@dataclass(frozen=True)
class Rope:
    """The rotation of heads of ``size`` channels."""

    size: int
    theta: float
    interleaved: bool
    """Rotates (x0, x1), (x2, x3), ...; otherwise (x0, x[size / 2]), ..."""
    kind: str = "default"
    """default, linear, llama3 or yarn."""
    factor: float = 1.0
    original: float = 8192.0
    """``original_max_position_embeddings``."""
    low: float = 1.0
    """llama3: ``low_freq_factor``; yarn: ``beta_slow``."""
    high: float = 4.0
    """llama3: ``high_freq_factor``; yarn: ``beta_fast``."""
    truncate: bool = True
    extrapolation: float = 1.0
    magnitude: float = 1.0
    """Cosines and sines are multiplied by it."""
    score_scale: float = 1.0
    """Attention scores are multiplied by it (MLA's ``mscale_all_dim``)."""

    def tables(self, positions: torch.Tensor) -> Tables:
        """Return the tables of ``positions`` [T]."""
        angles = positions.float()[:, None] * self.frequencies().to(positions.device)
        return angles.cos() * self.magnitude, angles.sin() * self.magnitude

    def frequencies(self) -> torch.Tensor:
        """Return the angle of each pair of channels at position 1: [size / 2] float32."""
        import torch

        exponents = torch.arange(0, self.size, 2, dtype=torch.float32) / self.size
        plain = 1.0 / self.theta**exponents
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            turns = self.original * plain / (2 * math.pi)
            spread = self.high - self.low
            share = ((turns - self.low) / spread).clamp(0, 1) if spread else turns > self.high
            share = share.float()
            return plain * (share + (1 - share) / self.factor)
        if self.kind == "yarn":
            first, last = self._corrected(self.high), self._corrected(self.low)
            if self.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, self.size - 1)
            last += 0.001 if first == last else 0
            ramp = (torch.arange(self.size // 2, dtype=torch.float32) - first) / (last - first)
            kept = (1 - ramp.clamp(0, 1)) * self.extrapolation
            return plain * (kept + (1 - kept) / self.factor)
        return plain

    def rotate(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """Rotate ``x`` [..., T, size]."""
        import torch

        cos, sin = tables
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def _corrected(self, rotations: float) -> float:
        """Return the channel that turns ``rotations`` times over the original positions."""
        turns = self.original / (rotations * 2 * math.pi)
        return self.size * math.log(turns) / (2 * math.log(self.theta))


def llama_rope(config: Mapping[str, Any], size: int, *, yarn_mscale: bool) -> Rope:
    """Return the rope of ``LlamaForCausalLMEagle3``.

    Args:
        config: the drafter's.
        size: channels of a head.
        yarn_mscale: the release honours ``mscale`` and ``mscale_all_dim`` of YaRN.

    Raises:
        UnknownRope: it is of a kind not computed here.
    """
    if config.get("partial_rotary_factor", 1) != 1:
        raise UnknownRope(f"partial_rotary_factor {config['partial_rotary_factor']!r}")
    interleaved = not config.get("rope_is_neox_style", True)
    kind, scaling, theta = _scaling(config)
    common: dict[str, Any] = {"size": size, "theta": theta, "interleaved": interleaved}
    if kind == "default":
        return Rope(**common)
    positions = number(config.get("original_max_position_embeddings"))
    original = positions or _value(
        scaling, "original_max_position_embeddings", config.get("max_position_embeddings", 8192)
    )
    common |= {"kind": kind, "factor": _value(scaling, "factor", 1.0), "original": original}
    if kind == "linear":
        return Rope(**common)
    if kind == "llama3":
        low, high = (
            _value(scaling, "low_freq_factor", 1.0),
            _value(scaling, "high_freq_factor", 4.0),
        )
        return Rope(**common, low=low, high=high)
    if kind == "yarn":
        magnitude = _mscale(common["factor"], 1.0)
        if yarn_mscale and {"mscale", "mscale_all_dim"} <= scaling.keys():
            magnitude = _ratio(common["factor"], scaling)
        return Rope(
            **common,
            **_yarn(scaling),
            truncate=bool(scaling.get("truncate", True)),
            magnitude=magnitude * _value(scaling, "attn_factor", 1.0),
        )
    raise UnknownRope(f"rope of type {kind!r}")


def mla_rope(config: Mapping[str, Any], size: int) -> Rope:
    """Return the rope of ``Eagle3DeepseekV2ForCausalLM``; raises as `llama_rope`."""
    kind, scaling, theta = _scaling(config)
    interleaved = bool(config.get("rope_interleave", True))
    if kind == "default":
        return Rope(size, theta, interleaved)
    if kind not in ("yarn", "deepseek_yarn"):
        raise UnknownRope(f"rope of type {kind!r}")
    if not scaling.get("apply_yarn_scaling", True) or not scaling.get("apply_scale", True):
        # Releases differ in what they make of these keys.
        raise UnknownRope("apply_yarn_scaling or apply_scale false")
    factor = _value(scaling, "factor", 1.0)
    all_dim = _zero_or_more(scaling, "mscale_all_dim", 0.0)
    return Rope(
        size,
        theta,
        interleaved,
        kind="yarn",
        factor=factor,
        original=_value(
            scaling, "original_max_position_embeddings", config.get("max_position_embeddings")
        ),
        **_yarn(scaling),
        magnitude=_ratio(factor, scaling) * _value(scaling, "attn_factor", 1.0),
        score_scale=_mscale(factor, all_dim) ** 2,
    )


def _scaling(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], float]:
    """Return the kind of scaling, its parameters and theta, in either spelling of the config."""
    given = config.get("rope_parameters")
    if given is None:
        given = config.get("rope_scaling")
    if given is not None and not isinstance(given, dict):
        raise UnknownRope("rope_scaling that is no object")
    scaling: Mapping[str, Any] = given or {}
    theta = number(scaling.get("rope_theta", config.get("rope_theta", DEFAULT_THETA)))
    if theta is None or theta <= 1:
        raise UnknownRope("a rope_theta that is no number above 1")
    if not scaling:
        return "default", {}, theta
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if "mrope_section" in scaling or scaling.get("use_fope"):
        raise UnknownRope("rope of several sections")
    return str(kind)[:40], scaling, theta


def _yarn(scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "low": _value(scaling, "beta_slow", 1.0),
        "high": _value(scaling, "beta_fast", 32.0),
        "extrapolation": _value(scaling, "extrapolation_factor", 1.0),
    }


def _ratio(factor: float, scaling: Mapping[str, Any]) -> float:
    one, all_dim = (
        _zero_or_more(scaling, "mscale", 1.0),
        _zero_or_more(scaling, "mscale_all_dim", 0.0),
    )
    return _mscale(factor, one) / _mscale(factor, all_dim)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _zero_or_more(scaling: Mapping[str, Any], key: str, default: float) -> float:
    return 0.0 if scaling.get(key) == 0 else _value(scaling, key, default)


def _value(scaling: Mapping[str, Any], key: str, default: object) -> float:
    value = number(scaling.get(key, default))
    if value is None:
        raise UnknownRope(f"{key} that is no positive number")
    return value
