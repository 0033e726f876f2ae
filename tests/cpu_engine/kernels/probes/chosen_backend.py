"""A GPU on which SGLang chooses ``trtllm_mla`` for an MLA target, as it does on SM100."""

from typing import Any

from redirections.after_import import after_import

_CHOSEN = {
    "attention_backend": "trtllm_mla",
    "prefill_attention_backend": None,
    "decode_attention_backend": None,
}


def register() -> None:
    after_import("sglang.srt.server_args", _choose_in_the_record)
    after_import("sglang.srt.arg_groups.pipeline", _choose_beside_the_record)


def _choose_in_the_record(module: Any) -> None:
    """Up to 0.5.18 the record itself is changed, in ``__post_init__``."""
    cls = module.ServerArgs
    if hasattr(cls, "resolve_once"):
        return
    last = cls._handle_other_validations

    def choose(server_args: Any) -> None:
        last(server_args)
        for name, value in _CHOSEN.items():
            setattr(server_args, name, value)

    cls._handle_other_validations = choose


def _choose_beside_the_record(module: Any) -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution

    pipeline = module.run_resolution_pipeline

    def choose(server_args: Any) -> None:
        pipeline(server_args)
        declare_resolution(server_args, "probe", **_CHOSEN)

    module.run_resolution_pipeline = choose
