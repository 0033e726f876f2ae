"""The target model as its ``config.json`` describes it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_kimi_eagle import extending
from sglang_kimi_eagle.adapters.base import Adapter, text_config
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter import UnreadableDrafter, read_config
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.values import token_ids, whole

TARGET_SHAPE = rule(
    "KE118",
    "target-config-shape",
    Severity.ERROR,
    "The target's config does not say how many layers it has, how wide it is, or how large its "
    "vocabulary is, so no drafter can be compared with it.",
    example='{"architectures": ["KimiK25ForConditionalGeneration"], "text_config": null}',
)


class UnreadableTarget(Exception):
    """The target's config cannot be read; `findings` say why."""

    def __init__(self, findings: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(finding.render() for finding in findings))
        self.findings = tuple(findings)


@dataclass(frozen=True)
class Target:
    """What is known of a target from its config."""

    location: str
    config: dict[str, Any]
    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    bos_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    context_length: int | None
    """``max_position_embeddings``."""
    dtype: str | None
    """``dtype`` or ``torch_dtype`` of the config, e.g. ``bfloat16``."""
    revision: str | None = None
    """Of the hub, as the user gave it."""

    @property
    def adapter(self) -> Adapter | None:
        """The registered adapter that serves it; None when it is none of the plugin's targets."""
        return extending.adapters().get(self.architecture)


def read_target(location: str, revision: str | None = None) -> Target:
    """Read the config of the target at ``location`` (a folder, or a hub id in the cache).

    Raises:
        UnreadableTarget: it cannot be read, or lacks the sizes.
    """
    try:
        config = read_config(location, revision)
    except UnreadableDrafter as problem:
        raise UnreadableTarget(problem.findings) from problem
    return dataclasses.replace(target_of(config, location), revision=revision)


def target_of(config: dict[str, Any], location: str) -> Target:
    """Interpret a target's config; raises as `read_target`."""
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    architecture = names[0] if names and isinstance(names[0], str) else ""
    adapter = extending.adapters().get(architecture)
    text = text_config(config)
    if adapter is not None:
        # An adapter that fails here is reported when the launch is judged.
        with contextlib.suppress(Exception):
            text = dict(adapter.text_config(config))
    sizes = [whole(text, key) for key in ("num_hidden_layers", "hidden_size", "vocab_size")]
    num_layers, hidden_size, vocab_size = sizes
    if num_layers is None or hidden_size is None or vocab_size is None:
        finding = TARGET_SHAPE.found(
            "The target's config lacks its number of layers, its width or its vocabulary.",
            where=f"{location}, config.json, text_config",
            seen=f"num_hidden_layers {brief(text.get('num_hidden_layers'), 40)}, "
            f"hidden_size {brief(text.get('hidden_size'), 40)}, "
            f"vocab_size {brief(text.get('vocab_size'), 40)}",
            leads_to="The drafter cannot be checked against it.",
            mend="Give the folder of the target itself.",
        )
        raise UnreadableTarget([finding])
    return Target(
        location=location,
        config=config,
        architecture=architecture,
        model_type=str(config.get("model_type", "")),
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        bos_token_ids=token_ids(config, "bos_token_id") | token_ids(text, "bos_token_id"),
        eos_token_ids=token_ids(config, "eos_token_id") | token_ids(text, "eos_token_id"),
        context_length=whole(text, "max_position_embeddings"),
        dtype=dtype_of(text) or dtype_of(config),
    )


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the dtype a config names, without ``torch.``."""
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        if isinstance(value, str) and value:
            return value.removeprefix("torch.")
    return None
