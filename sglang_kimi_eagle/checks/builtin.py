"""The checks of this package, in the order of their codes."""

from __future__ import annotations

from sglang_kimi_eagle.checks import (
    architecture,
    config_shape,
    launch,
    pairing,
    tensors,
    tokenizer,
    vocabulary,
)

CHECKS = (
    config_shape.check_eagle_config,
    config_shape.check_flags,
    architecture.check_architecture,
    architecture.check_model_type,
    architecture.check_sizes,
    architecture.check_layer_count,
    tensors.check_tensors,
    tensors.check_flags_taken,
    vocabulary.check_head,
    vocabulary.check_maps,
    launch.check_algorithm,
    launch.check_backend,
    launch.check_speculation,
    launch.check_parallelism,
    launch.check_images,
    pairing.check_target,
    tokenizer.check_tokenizer,
    pairing.check_dtype,
    pairing.check_quantisation,
    pairing.check_rope,
    pairing.check_context_length,
)
