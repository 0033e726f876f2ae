"""Unit tests for the layer ids of EAGLE3 draft models, from config to captured layers."""

import unittest
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.model_runner_components import (
    attention_backend_setup,
    spec_aux_hidden_state,
)
from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM
from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.eagle_layer_ids import (
    get_layers_to_capture,
    resolve_layer_ids,
    set_layers_to_capture,
)

register_cpu_ci(est_time=30, suite="base-a-test-cpu")

NUM_LAYERS = 61
UNCONFIGURED = [2, NUM_LAYERS // 2, NUM_LAYERS - 3]


def make_deepseek(*, is_last_rank=True):
    """The attributes of a DeepSeek target that its setter touches, and the setter."""
    target = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=is_last_rank),
        config=SimpleNamespace(num_hidden_layers=NUM_LAYERS),
        model=SimpleNamespace(layers_to_capture=[]),
        capture_aux_hidden_states=False,
    )
    target.set_eagle3_layers_to_capture = (
        DeepseekV2ForCausalLM.set_eagle3_layers_to_capture.__get__(target)
    )
    return target


def make_kimi(language_model):
    wrapper = SimpleNamespace(language_model=language_model)
    wrapper.set_eagle3_layers_to_capture = (
        KimiK25ForConditionalGeneration.set_eagle3_layers_to_capture.__get__(wrapper)
    )
    return wrapper


class OtherTarget:
    """A target whose setter knows no convention, as those of most model files."""

    layer_ids = "never set"

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.layer_ids = layer_ids


def make_hf_config(**fields):
    return SimpleNamespace(**fields)


def resolve(hf_config):
    """Resolve the config of a draft model for an EAGLE3 target."""
    draft = SimpleNamespace(
        num_nextn_predict_layers=1,
        hf_config=hf_config,
        is_hybrid_swa=False,
        is_deepseek_v4_arch=False,
        swa_attention_layer_ids=[],
    )
    algorithm = MagicMock()
    algorithm.is_none.return_value = False
    algorithm.is_eagle.return_value = True
    algorithm.is_eagle3.return_value = True
    algorithm.is_dflash_family.return_value = False
    with (
        get_context().override_server_args(
            speculative_draft_model_path="draft",
            speculative_draft_model_revision=None,
        ),
        patch.object(
            spec_aux_hidden_state.ModelConfig, "from_server_args", return_value=draft
        ),
    ):
        return spec_aux_hidden_state.resolve_spec_aux_hidden_state_config(
            server_args=SimpleNamespace(),
            model_config=draft,
            spec_algorithm=algorithm,
            is_draft_worker=False,
        )


def configure(model, config):
    """Hand a resolved config to a model, as the model runner does."""
    runner = SimpleNamespace(model=model, spec_aux_config=config)
    # Everything after the capture needs a device.
    with patch.object(
        model_runner, "resolve_attention_backend_strs", side_effect=StopIteration
    ):
        try:
            model_runner.ModelRunner.init_attention_backends(runner)
        except StopIteration:
            pass


class TestReadingTheDraftConfig(CustomTestCase):
    def test_ids_and_convention_are_read(self):
        config = resolve(
            make_hf_config(
                eagle_config={
                    "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
                    "layer_id_convention": "layer_output",
                }
            )
        )
        self.assertTrue(config.eagle_use_aux_hidden_state)
        self.assertEqual(config.eagle_aux_hidden_state_layer_ids, [2, 30, 58])
        self.assertEqual(config.eagle_layer_id_convention, "layer_output")

    def test_a_config_that_says_nothing_keeps_the_defaults(self):
        for hf_config in (
            make_hf_config(),
            make_hf_config(eagle_config=None),
            make_hf_config(eagle_config={}),
            make_hf_config(eagle_config={"eagle_aux_hidden_state_layer_ids": None}),
            make_hf_config(eagle_aux_hidden_state_layer_ids=[3, 31, 59]),
        ):
            with self.subTest(hf_config=hf_config):
                config = resolve(hf_config)
                self.assertTrue(config.eagle_use_aux_hidden_state)
                self.assertIsNone(config.eagle_aux_hidden_state_layer_ids)
                self.assertIsNone(config.eagle_layer_id_convention)

    def test_use_aux_hidden_state_is_read(self):
        config = resolve(make_hf_config(eagle_config={"use_aux_hidden_state": False}))
        self.assertFalse(config.eagle_use_aux_hidden_state)

    def test_declared_ids_may_stand_at_the_top_level(self):
        config = resolve(
            make_hf_config(
                eagle_config={"layer_id_convention": "layer_input"},
                eagle_aux_hidden_state_layer_ids=[3, 31, 59],
            )
        )
        self.assertEqual(config.eagle_aux_hidden_state_layer_ids, [3, 31, 59])

    def test_an_unknown_convention_is_refused(self):
        for convention in ("output", "", 1, ["layer_output"]):
            with (
                self.subTest(convention=convention),
                self.assertRaisesRegex(ValueError, "'layer_output' or 'layer_input'"),
            ):
                resolve(
                    make_hf_config(eagle_config={"layer_id_convention": convention})
                )

    def test_an_eagle_config_that_is_no_object_is_refused(self):
        for eagle_config in (["layer_output"], "layer_output", 3):
            with (
                self.subTest(eagle_config=eagle_config),
                self.assertRaisesRegex(ValueError, "must be an object"),
            ):
                resolve(make_hf_config(eagle_config=eagle_config))

    def test_ids_that_are_no_integers_are_refused(self):
        for layer_ids in ("2,30,58", ["2", "30"], [2.0, 30.0], {"2": 30}, 2):
            with (
                self.subTest(layer_ids=layer_ids),
                self.assertRaisesRegex(ValueError, "must be integers"),
            ):
                resolve(
                    make_hf_config(
                        eagle_config={"eagle_aux_hidden_state_layer_ids": layer_ids}
                    )
                )

    def test_an_undeclared_list_is_returned_as_it_is(self):
        layer_ids = [2, 30, 58]
        self.assertEqual(
            resolve_layer_ids(make_hf_config(eagle_config=[]), layer_ids),
            (layer_ids, None),
        )


class TestLayersToCapture(CustomTestCase):
    def test_an_output_is_the_input_of_the_next_layer(self):
        within = range(NUM_LAYERS)
        for layer_ids, convention, layers in (
            ([2, 30, 58], "layer_output", [3, 31, 59]),
            ([2, 30, 58], "layer_input", [2, 30, 58]),
            ([1, 29, 57], "layer_output", [2, 30, 58]),
            ([1, 29, 57], "layer_input", [1, 29, 57]),
            ([0, 59], "layer_output", [1, 60]),
            ([0, 60], "layer_input", [0, 60]),
        ):
            with self.subTest(layer_ids=layer_ids, convention=convention):
                self.assertEqual(
                    get_layers_to_capture(layer_ids, convention, within), layers
                )

    def test_what_cannot_be_captured_is_refused(self):
        for layer_ids, convention in (
            ([], "layer_output"),
            ([2, 30, 60], "layer_output"),
            ([2, 30, 61], "layer_input"),
            ([-1, 2, 30], "layer_output"),
            ([2, 2, 58], "layer_input"),
            ([58, 30, 2], "layer_input"),
        ):
            with (
                self.subTest(layer_ids=layer_ids, convention=convention),
                self.assertRaisesRegex(ValueError, "must ascend and name inputs"),
            ):
                get_layers_to_capture(layer_ids, convention, range(NUM_LAYERS))


class TestDeepseekTarget(CustomTestCase):
    def test_a_declared_convention_decides(self):
        for convention, layers in (
            ("layer_output", [3, 31, 59]),
            ("layer_input", [2, 30, 58]),
        ):
            target = make_deepseek()
            target.set_eagle3_layers_to_capture(
                [2, 30, 58], layer_id_convention=convention
            )
            self.assertTrue(target.capture_aux_hidden_states)
            self.assertEqual(target.model.layers_to_capture, layers)

    def test_undeclared_ids_are_read_as_before(self):
        for layer_ids, layers in (
            (None, UNCONFIGURED),
            ([1, 29, 57], [2, 30, 58]),
            ([2, 30, 58], [2, 30, 58]),
            ([0, 5, 9], [0, 5, 9]),
            ([9, 5, 1], [9, 5, 1]),
            ([], []),
        ):
            with self.subTest(layer_ids=layer_ids):
                target = make_deepseek()
                target.set_eagle3_layers_to_capture(layer_ids)
                self.assertTrue(target.capture_aux_hidden_states)
                self.assertEqual(target.model.layers_to_capture, layers)

    def test_a_convention_without_ids_keeps_the_defaults(self):
        target = make_deepseek()
        target.set_eagle3_layers_to_capture(None, layer_id_convention="layer_output")
        self.assertEqual(target.model.layers_to_capture, UNCONFIGURED)

    def test_undeclared_ids_that_are_never_reached_are_refused(self):
        for layer_ids in ([1, 29, 60], [2, 30, 61], [-1, 2, 30], [2, 2, 58]):
            with (
                self.subTest(layer_ids=layer_ids),
                self.assertRaisesRegex(ValueError, "cannot be captured"),
            ):
                make_deepseek().set_eagle3_layers_to_capture(layer_ids)

    def test_only_the_last_pipeline_rank_captures(self):
        target = make_deepseek(is_last_rank=False)
        target.set_eagle3_layers_to_capture([2, 30, 58], "layer_output")
        self.assertFalse(target.capture_aux_hidden_states)
        self.assertEqual(target.model.layers_to_capture, [])


class TestHandingTheConventionOn(CustomTestCase):
    def test_it_reaches_the_language_model_of_kimi(self):
        for declared, layers in (
            ({}, [2, 30, 58]),
            ({"layer_id_convention": "layer_input"}, [2, 30, 58]),
            ({"layer_id_convention": "layer_output"}, [3, 31, 59]),
        ):
            with self.subTest(declared=declared):
                deepseek = make_deepseek()
                config = resolve(
                    make_hf_config(
                        eagle_config={
                            "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
                            **declared,
                        }
                    )
                )
                configure(make_kimi(deepseek), config)
                self.assertEqual(deepseek.model.layers_to_capture, layers)

    def test_other_targets_are_called_as_before(self):
        for model in (OtherTarget(), make_kimi(OtherTarget())):
            set_layers_to_capture(model, [2, 30, 58], None)
            other = getattr(model, "language_model", model)
            self.assertEqual(other.layer_ids, [2, 30, 58])

    def test_a_target_that_would_drop_the_convention_refuses_it(self):
        for model in (OtherTarget(), make_kimi(OtherTarget())):
            with self.assertRaisesRegex(ValueError, "OtherTarget cannot take"):
                attention_backend_setup.configure_aux_hidden_state_capture(
                    model=model,
                    eagle_use_aux_hidden_state=True,
                    eagle_aux_hidden_state_layer_ids=[2, 30, 58],
                    eagle_layer_id_convention="layer_output",
                    dflash_use_aux_hidden_state=False,
                    dflash_target_layer_ids=None,
                    is_dspark=False,
                )
            other = getattr(model, "language_model", model)
            self.assertEqual(other.layer_ids, "never set")

    def test_callers_that_know_no_convention_still_work(self):
        model = OtherTarget()
        attention_backend_setup.configure_aux_hidden_state_capture(
            model=model,
            eagle_use_aux_hidden_state=True,
            eagle_aux_hidden_state_layer_ids=[2, 30, 58],
            dflash_use_aux_hidden_state=False,
            dflash_target_layer_ids=None,
            is_dspark=False,
        )
        self.assertEqual(model.layer_ids, [2, 30, 58])


if __name__ == "__main__":
    unittest.main()
