"""The server arguments that matter for a drafter, whatever the release spells around them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sglang_kimi_eagle.launch_config import BadLaunchConfig, expand_config

ALLOW_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
UNQUANT = "unquant"
"""The value of ``--speculative-draft-model-quantization`` that inherits nothing."""


class BadCommandLine(ValueError):
    """The words are no launch command line."""


@dataclass(frozen=True)
class ServerArguments:
    """A launch, as far as it concerns a drafter; None where the user left the choice to SGLang."""

    model_path: str = ""
    revision: str | None = None
    speculative_algorithm: str | None = None
    draft_model_path: str | None = None
    draft_model_revision: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    adaptive: bool = False
    """``--speculative-adaptive``, 0.5.11 and later: SGLang chooses what is not given."""
    token_map: str | None = None
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    draft_attention_backend: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    """What the user asked for the drafter; None inherits ``quantization``."""
    dtype: str = "auto"
    context_length: int | None = None
    page_size: int | None = None
    pp_size: int = 1
    dcp_size: int = 1
    """Decode context parallelism, 0.5.17 and later."""
    enable_dp_attention: bool = False
    enable_two_batch_overlap: bool = False
    enable_return_hidden_states: bool = False
    allow_longer_context: bool = False
    """``SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1``."""

    @property
    def algorithm(self) -> str:
        """The speculative algorithm in capitals; empty without one."""
        return (self.speculative_algorithm or "").upper()

    @classmethod
    def from_sglang(
        cls, server_args: Any, environ: Mapping[str, str] | None = None
    ) -> ServerArguments:
        """Take the arguments from SGLang's ``ServerArgs`` of any release, resolved or not."""
        values = {
            name: getattr(server_args, attribute, None) for name, attribute in _ATTRIBUTES.items()
        }
        if _resolved(server_args) and values["draft_quantization"] is None:
            # Resolution has turned "unquant" into None, and None into the target's method.
            values["draft_quantization"] = UNQUANT
        return _of(values | _chosen_backends(server_args), environ)

    @classmethod
    def from_command_line(
        cls, words: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> ServerArguments:
        """Parse the words of a launch command; those that do not matter here are passed over.

        ``--config FILE`` is read as SGLang does it (`launch_config`).

        Raises:
            BadCommandLine: a value is missing or is no number, or the file cannot be read.
        """
        import argparse

        class Parser(argparse.ArgumentParser):
            def error(self, message: str) -> NoReturn:
                raise BadCommandLine(message)

        parser = Parser(add_help=False)
        for name, (flags, kind) in _FLAGS.items():
            if kind is bool:
                parser.add_argument(*flags, dest=name, action="store_true", default=None)
            else:
                parser.add_argument(*flags, dest=name, type=kind)
        booleans = {flag for flags, kind in _FLAGS.values() if kind is bool for flag in flags}
        valued = {flag for flags, kind in _FLAGS.values() if kind is not bool for flag in flags}
        try:
            expanded = expand_config(list(words), booleans=booleans, valued=valued)
        except BadLaunchConfig as problem:
            raise BadCommandLine(str(problem)) from problem
        namespace, _ = parser.parse_known_args(expanded)
        return _of(vars(namespace), environ)


def _of(values: Mapping[str, Any], environ: Mapping[str, str] | None) -> ServerArguments:
    environ = os.environ if environ is None else environ
    allowed = environ.get(ALLOW_LONGER_CONTEXT, "").strip().lower() in ("1", "true", "yes", "y")
    given = {name: value for name, value in values.items() if value is not None}
    return dataclasses.replace(ServerArguments(), **given, allow_longer_context=allowed)


def _resolved(server_args: Any) -> bool:
    """Tell whether SGLang has filled in what the user left open.

    Up to 0.5.18 it overwrites its own record (``_handle_missing_default_values``); later releases
    keep the user's values in it.
    """
    names = ("tokenizer_path", "served_model_name", "random_seed")
    return all(getattr(server_args, name, None) is not None for name in names)


def _chosen_backends(server_args: Any) -> dict[str, Any]:
    """Return the attention backends that SGLang has chosen beside a record that stays the user's.

    0.5.19 and later keep the result of ``resolve_once`` apart (``resolved_dict``); before, and on
    older releases always, the record itself is all there is.
    """
    if not getattr(server_args, "_resolution_finished", False):
        return {}
    resolved: Mapping[str, Any] = getattr(server_args, "resolved_dict", dict)()
    names = [name for name in _ATTRIBUTES if name.endswith("attention_backend")]
    return {name: resolved[_ATTRIBUTES[name]] for name in names if _ATTRIBUTES[name] in resolved}


_ATTRIBUTES = {
    "model_path": "model_path",
    "revision": "revision",
    "speculative_algorithm": "speculative_algorithm",
    "draft_model_path": "speculative_draft_model_path",
    "draft_model_revision": "speculative_draft_model_revision",
    "num_steps": "speculative_num_steps",
    "eagle_topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens",
    "adaptive": "speculative_adaptive",
    "token_map": "speculative_token_map",
    "attention_backend": "attention_backend",
    "prefill_attention_backend": "prefill_attention_backend",
    "decode_attention_backend": "decode_attention_backend",
    "draft_attention_backend": "speculative_draft_attention_backend",
    "quantization": "quantization",
    "draft_quantization": "speculative_draft_model_quantization",
    "dtype": "dtype",
    "context_length": "context_length",
    "page_size": "page_size",
    "pp_size": "pp_size",
    "dcp_size": "dcp_size",
    "enable_dp_attention": "enable_dp_attention",
    "enable_two_batch_overlap": "enable_two_batch_overlap",
    "enable_return_hidden_states": "enable_return_hidden_states",
}
"""Field -> attribute of ``ServerArgs``: the same in every release 0.5.9 - 0.5.23 that has it."""

_FLAGS: dict[str, tuple[tuple[str, ...], type]] = {
    "model_path": (("--model-path", "--model"), str),
    "revision": (("--revision",), str),
    "speculative_algorithm": (("--speculative-algorithm", "--speculative-algo"), str),
    "draft_model_path": (("--speculative-draft-model-path", "--speculative-draft-model"), str),
    "draft_model_revision": (("--speculative-draft-model-revision",), str),
    "num_steps": (("--speculative-num-steps",), int),
    "eagle_topk": (("--speculative-eagle-topk",), int),
    "num_draft_tokens": (("--speculative-num-draft-tokens",), int),
    "adaptive": (("--speculative-adaptive",), bool),
    "token_map": (("--speculative-token-map",), str),
    "attention_backend": (("--attention-backend",), str),
    "prefill_attention_backend": (("--prefill-attention-backend",), str),
    "decode_attention_backend": (("--decode-attention-backend",), str),
    "draft_attention_backend": (("--speculative-draft-attention-backend",), str),
    "quantization": (("--quantization",), str),
    "draft_quantization": (("--speculative-draft-model-quantization",), str),
    "dtype": (("--dtype",), str),
    "context_length": (("--context-length",), int),
    "page_size": (("--page-size",), int),
    "pp_size": (("--pipeline-parallel-size", "--pp-size"), int),
    "dcp_size": (("--decode-context-parallel-size", "--dcp-size"), int),
    "enable_dp_attention": (("--enable-dp-attention",), bool),
    "enable_two_batch_overlap": (("--enable-two-batch-overlap",), bool),
    "enable_return_hidden_states": (("--enable-return-hidden-states",), bool),
}
