"""The pull request for SGLang's main branch: the patch of the newest release, and stricter.

What a release's patch leaves as it is for drafters that declare nothing, the pull request refuses
early: an ``eagle_config`` that cannot be read, and ids that cannot be captured.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
from libcst import matchers as m

from sglang_kimi_eagle.patching.diffs import FilePatch, Patch, diff
from sglang_kimi_eagle.patching.edits import code_of, edit_method, replace, statement, the_only
from sglang_kimi_eagle.patching.generate import (
    DEEPSEEK,
    SPEC_CONFIG,
    changes,
    generate_backport,
    steps_for,
)
from sglang_kimi_eagle.patching.transforms import DEEPSEEK_CLASS, IDS, SETTER
from sglang_kimi_eagle.releases import NEWEST, OLDEST
from wheels import ROOT, unpacked

FOLDER = ROOT / "upstream_pr"
PATCH = "0001-Let-EAGLE3-draft-models-declare-what-their-layer-ids-mean.patch"
BACKPORT = f"kimi-k25-eagle3-{OLDEST}.patch"
TESTS = "test/registered/unit/"
"""Where upstream's unit tests lie; ``upstream_pr/tests`` mirrors it."""


def reads_strictly(module: cst.Module) -> cst.Module:
    """Refuse an ``eagle_config`` that is no mapping and ids that are no list of integers."""
    attempt = the_only(
        [node for node in m.findall(module, m.Try()) if f'"{IDS}"' in code_of(node)],
        f"try that reads {IDS}",
    )
    reading = statement(
        textwrap.dedent(
            f"""\
            if True:
                eagle_config = getattr(draft_model_config.hf_config, "eagle_config", None) or {{}}
                if not isinstance(eagle_config, dict):
                    raise ValueError(f"eagle_config must be an object, got {{eagle_config!r}}.")
                config.eagle_use_aux_hidden_state = eagle_config.get(
                    "use_aux_hidden_state", True
                )
                layer_ids = eagle_config.get("{IDS}")
                if layer_ids is not None and not (
                    isinstance(layer_ids, list) and all(type(i) is int for i in layer_ids)
                ):
                    raise ValueError(
                        f"{IDS} must be a list of integers, "
                        f"got {{layer_ids!r}}."
                    )
                config.{IDS} = layer_ids
            """
        )
    )
    body = cst.ensure_type(cst.ensure_type(reading, cst.If).body, cst.IndentedBlock).body
    return replace_with(module, attempt, *body)


def refuses_unreachable(module: cst.Module) -> cst.Module:
    """Refuse ids that the model would silently never capture."""
    refusal = statement(
        textwrap.dedent(
            """\
            if True:
                layers = self.model.layers_to_capture
                if len({*layers}.intersection(range(self.config.num_hidden_layers))) < len(
                    layers
                ):
                    raise ValueError(
                        f"EAGLE3 layer ids {layer_ids} cannot be captured: they name inputs of "
                        f"layers {layers} of {self.config.num_hidden_layers}."
                    )
            """
        )
    )
    added = cst.ensure_type(cst.ensure_type(refusal, cst.If).body, cst.IndentedBlock).body

    def change(function: cst.FunctionDef) -> cst.FunctionDef:
        block = function
        (guess,) = (
            node
            for node in m.findall(function, m.Else())
            if m.findall(node, m.ListComp()) and not m.findall(node, m.Else(body=m.DoNotCare()))[1:]
        )
        assert isinstance(guess, cst.Else)
        body = guess.body
        assert isinstance(body, cst.IndentedBlock)
        new = guess.with_changes(body=body.with_changes(body=[*body.body, *added]))
        return replace(block, guess, new)

    return edit_method(module, DEEPSEEK_CLASS, SETTER, change)
