"""Kimi-K3 captures the prefix for EAGLE3 draft models, the mixture for DSPARK ones."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

from sglang.srt.models import kimi_k3
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

LAYERS = 93


class Language:
    """As much of the language model as its setter needs."""

    set_eagle3_layers_to_capture = (
        kimi_k3.KimiK3LinearForCausalLM.set_eagle3_layers_to_capture
    )
    set_dspark_layers_to_capture = (
        kimi_k3.KimiK3LinearForCausalLM.set_dspark_layers_to_capture
    )
    get_embed_and_head = kimi_k3.KimiK3LinearForCausalLM.get_embed_and_head
    set_embed_and_head = kimi_k3.KimiK3LinearForCausalLM.set_embed_and_head

    def __init__(self, pp_size=1):
        self.config = SimpleNamespace(num_hidden_layers=LAYERS)
        self.pp_group = SimpleNamespace(world_size=pp_size, is_last_rank=True)
        self.model = SimpleNamespace(
            dspark_layers_to_capture=None,
            carries_bank_slices=False,
            captures_prefix=False,
            embed_tokens=SimpleNamespace(weight="embed"),
        )
        self.lm_head = SimpleNamespace(weight="head")
        self.capture_aux_hidden_states = False


class Wrapper:
    """The wrapper around a language model, without its vision tower."""

    set_eagle3_layers_to_capture = (
        kimi_k3.KimiK3ForConditionalGeneration.set_eagle3_layers_to_capture
    )
    get_embed_and_head = kimi_k3.KimiK3ForConditionalGeneration.get_embed_and_head
    set_embed_and_head = kimi_k3.KimiK3ForConditionalGeneration.set_embed_and_head

    def __init__(self, language_model):
        self.language_model = language_model


class TestKimiK3Eagle3Prefix(CustomTestCase):
    def test_ids_count_completed_layers(self):
        language = Language()
        Wrapper(language).set_eagle3_layers_to_capture([2, 46, LAYERS])
        self.assertEqual(language.model.dspark_layers_to_capture, [1, 45, LAYERS - 1])
        self.assertTrue(language.model.captures_prefix)
        self.assertTrue(language.capture_aux_hidden_states)

    def test_default_ids(self):
        language = Language()
        Wrapper(language).set_eagle3_layers_to_capture()
        self.assertEqual(language.model.dspark_layers_to_capture, [1, 45, 89])

    def test_other_ids_are_refused(self):
        for ids in ([0, 2], [2, LAYERS + 1], [46, 2], [2, 2]):
            with self.subTest(ids=ids), self.assertRaises(ValueError):
                Language().set_eagle3_layers_to_capture(ids)
        with self.assertRaises(NotImplementedError):
            Language(pp_size=2).set_eagle3_layers_to_capture([2])

    def test_embedding_and_head(self):
        language = Language()
        self.assertEqual(Wrapper(language).get_embed_and_head(), ("embed", "head"))
        Wrapper(language).set_embed_and_head("new embed", "new head")
        self.assertEqual(Wrapper(language).get_embed_and_head(), ("new embed", "new head"))

    def test_encoder_only(self):
        encoder = Wrapper(None)
        for call in (
            encoder.set_eagle3_layers_to_capture,
            encoder.get_embed_and_head,
            lambda: encoder.set_embed_and_head(None, None),
        ):
            with self.assertRaisesRegex(AttributeError, "encoder-only"):
                call()

    def test_what_is_captured(self):
        capture = kimi_k3.KimiK3LinearModel._dspark_capture_stream
        layer = SimpleNamespace(
            self_attention_res_proj=None,
            self_attention_res_norm=None,
            prev_valid_blocks=1,
        )
        bank = SimpleNamespace(require=lambda: SimpleNamespace(block_residual=None))
        for marked, expected in ((True, "prefix"), (False, "mixture")):
            model = SimpleNamespace(
                captures_prefix=marked, end_layer=2, layers=[layer, layer], attn_bank=bank
            )
            with (
                self.subTest(marked=marked),
                patch.object(
                    kimi_k3.residual_batch, "snapshot", return_value="prefix"
                ),
                patch.object(kimi_k3, "aggregate_stream", return_value="mixture"),
            ):
                self.assertEqual(capture(model, 0, None, None), expected)


if __name__ == "__main__":
    unittest.main()
