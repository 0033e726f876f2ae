"""What a check looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sglang_kimi_eagle.drafter import Drafter
from sglang_kimi_eagle.drafter.checkpoint import QUANTISED, QUANTISER
from sglang_kimi_eagle.drafter.document import clip
from sglang_kimi_eagle.drafter.values import whole
from sglang_kimi_eagle.loaders import LLAMA, MLA, DraftLoader, draft_loader
from sglang_kimi_eagle.releases import Release
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.states import IDS_KEY
from sglang_kimi_eagle.target import Target


@dataclass(frozen=True)
class Context:
    """A drafter about to be served; None is what is not known."""

    drafter: Drafter | None
    target: Target | None
    arguments: ServerArguments | None
    release: Release

    @cached_property
    def loader(self) -> DraftLoader:
        """What the draft classes of the release do."""
        return draft_loader(self.release)

    @property
    def config(self) -> Mapping[str, Any]:
        """The drafter's config; empty without a drafter."""
        return self.drafter.config if self.drafter is not None else {}

    @property
    def where(self) -> str:
        """The path of the drafter's config, for messages."""
        return self.drafter.config_path if self.drafter is not None else "config.json"

    def place(self, tensor: str) -> str:
        """Return the file and name of one of the drafter's tensors, for messages."""
        assert self.drafter is not None
        header = self.drafter.tensors[tensor]
        return f"{self.drafter.folder / header.file}, tensor {clip(tensor)}"

    @property
    def running(self) -> str:
        """The release, for messages."""
        return f"SGLang {self.release.version}"

    @property
    def architecture(self) -> str:
        """The first of the drafter's architectures; empty when there is none."""
        names = self.config.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        return name if isinstance(name, str) else ""

    @property
    def is_llama(self) -> bool:
        """Whether the drafter is of SGLang's Llama class."""
        return self.architecture == LLAMA

    @property
    def is_mla(self) -> bool:
        """Whether the drafter is of SGLang's class with DeepSeek attention."""
        return self.architecture == MLA

    @property
    def served(self) -> bool:
        """Whether the release has the drafter's class."""
        return self.is_llama or (self.is_mla and self.release.mla_drafter)

    @property
    def other_algorithm(self) -> bool:
        """Whether the launch speculates in another way, with a drafter of that way."""
        arguments = self.arguments
        if arguments is None or arguments.algorithm in ("", "EAGLE3"):
            return False
        return not (self.is_llama or self.is_mla)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        """``eagle_config``; empty when it is missing or no object."""
        nested = self.config.get("eagle_config")
        return nested if isinstance(nested, dict) else {}

    @property
    def uses_states(self) -> bool:
        """Whether the engine captures states for the drafter at all."""
        return bool(self.eagle_config.get("use_aux_hidden_state", True))

    @property
    def target_hidden_size(self) -> int | None:
        """The width that the drafter expects of each state."""
        return whole(self.config, "target_hidden_size") or whole(self.config, "hidden_size")

    @property
    def quantisation(self) -> tuple[str, object] | None:
        """The name of what declares the drafter's quantisation, and what it says; or None."""
        for key in QUANTISED:
            if self.config.get(key) is not None:
                return key, self.config[key]
        if self.drafter is not None and self.drafter.quantiser is not None:
            return QUANTISER, self.drafter.quantiser
        return None

    @property
    def draft_vocab_size(self) -> int | None:
        """The size of the drafter's own head, as SGLang builds it."""
        if self.config.get("draft_vocab_size") is None:
            return whole(self.config, "vocab_size")
        return whole(self.config, "draft_vocab_size")

    @property
    def num_states(self) -> int | None:
        """How many states the release's class concatenates for ``fc``; None when unclear."""
        if self.is_llama and not self.loader.layer_stack:
            return 3
        if self.is_llama and self.config.get("num_aux_hidden_states") is not None:
            return whole(self.config, "num_aux_hidden_states")
        ids = self.eagle_config.get(IDS_KEY)
        if ids is None and self.is_mla:
            ids = self.config.get(IDS_KEY)
        if ids is None:
            return 3
        return len(ids) if isinstance(ids, list) and ids else None
