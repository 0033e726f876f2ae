"""Unit tests for the layers that a GLM-4 MoE Lite target captures for EAGLE3."""

import unittest
from types import SimpleNamespace

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.models.glm4_moe_lite import Glm4MoeLiteForCausalLM

register_cpu_ci(est_time=30, suite="base-a-test-cpu")


def captured_layers(*args, **kwargs):
    target = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=47),
        model=SimpleNamespace(layers_to_capture=[]),
        capture_aux_hidden_states=False,
    )
    Glm4MoeLiteForCausalLM.set_eagle3_layers_to_capture(target, *args, **kwargs)
    assert target.capture_aux_hidden_states
    return target.model.layers_to_capture


class TestGlm4MoeLiteLayerIds(CustomTestCase):
    def test_a_declared_convention_decides(self):
        for convention, layers in (
            ("layer_output", [3, 24, 45]),
            ("layer_input", [2, 23, 44]),
        ):
            self.assertEqual(
                captured_layers([2, 23, 44], layer_id_convention=convention), layers
            )

    def test_declared_ids_that_cannot_be_captured_are_refused(self):
        with self.assertRaisesRegex(ValueError, "inputs of layers 0 to 46"):
            captured_layers([2, 23, 46], layer_id_convention="layer_output")

    def test_undeclared_ids_are_read_as_before(self):
        for layer_ids, layers in (
            (None, [2, 23, 44]),
            ([1, 22, 43], [2, 23, 44]),
            ([2, 23, 44], [2, 23, 44]),
        ):
            self.assertEqual(captured_layers(layer_ids), layers)


if __name__ == "__main__":
    unittest.main()
