"""The pull request for SGLang's main branch: the patch of the newest release, and stricter.

What a release's patch leaves as it is for drafters that declare nothing, the pull request refuses
early: an ``eagle_config`` that cannot be read, and ids that cannot be captured.
"""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import libcst as cst

from sglang_kimi_eagle.patching.diffs import PREFIX, FilePatch, Patch, diff
from sglang_kimi_eagle.patching.edits import add_import, edit_method, replace, statements
from sglang_kimi_eagle.patching.generate import (
    DEEPSEEK,
    SPEC_CONFIG,
    Steps,
    changes,
    generate_backport,
    rewritten,
    steps_for,
)
from sglang_kimi_eagle.patching.kimi_k3 import generate_kimi_k3
from sglang_kimi_eagle.patching.transforms import (
    CONVENTION,
    DEEPSEEK_CLASS,
    HELPERS,
    IDS,
    SETTER,
    choice_of_rule,
    config_holds_convention,
    reading_of_ids,
    setter_takes_convention,
)
from sglang_kimi_eagle.releases import NEWEST, OLDEST
from wheels import ROOT, unpacked

FOLDER = ROOT / "upstream_pr"
PATCH = "0001-Let-EAGLE3-draft-models-declare-what-their-layer-ids.patch"
FOLLOW_UP = "0002-Let-GLM-4-MoE-Lite-follow-a-declared-convention.patch"
TEST = "test/registered/unit/speculative/test_eagle_layer_ids.py"
FOLLOW_UP_TEST = "test/registered/unit/models/test_glm4_moe_lite_layer_ids.py"
OTHER_MODELS = "other_models.md"
K3_PATCH = f"kimi-k3-eagle3-{NEWEST}.patch"
K3_TEST = "test/registered/unit/models/test_kimi_k3_eagle3_prefix.py"
BACKPORT = f"kimi-k25-eagle3-{OLDEST}.patch"


def copy_with_patches(package: Path, checkout: Path, *patches: str) -> Path:
    """Copy SGLang's package to a checkout and apply patches of this folder to it.

    Returns the folder to put on ``PYTHONPATH``.
    """
    copy = checkout / PREFIX
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # Inside another repository, git would skip all files without an error.
    subprocess.run(["git", "init", "--quiet", "."], cwd=checkout, check=True)
    for patch in patches or (PATCH,):
        subprocess.run(["git", "apply", str(FOLDER / patch)], cwd=checkout, check=True)
    return copy.parent


def reads_strictly(module: cst.Module) -> cst.Module:
    """Read ids and convention, and refuse what cannot be read instead of swallowing the error."""
    reading = statements(
        textwrap.dedent(
            f"""\
            eagle_config = getattr(draft_model_config.hf_config, "eagle_config", None) or {{}}
            if not isinstance(eagle_config, dict):
                raise ValueError(f"eagle_config must be an object, got {{eagle_config!r}}.")
            config.eagle_use_aux_hidden_state = eagle_config.get(
                "use_aux_hidden_state", True
            )
            layer_ids, config.{CONVENTION} = resolve_layer_ids(
                draft_model_config.hf_config,
                eagle_config.get("{IDS}"),
            )
            if layer_ids is not None and not (
                isinstance(layer_ids, list) and all(type(i) is int for i in layer_ids)
            ):
                raise ValueError(f"EAGLE3 layer ids must be integers, got {{layer_ids!r}}.")
            config.{IDS} = layer_ids
            """
        )
    )
    module = replace(module, reading_of_ids(module), *reading)
    return add_import(module, HELPERS, "resolve_layer_ids")


def refuses_unreachable(module: cst.Module) -> cst.Module:
    """Refuse undeclared ids of states that the model would never capture, without a word."""
    refusal = statements(
        textwrap.dedent(
            """\
            layers = self.model.layers_to_capture
            num_layers = self.config.num_hidden_layers
            if len({*layers} & {*range(num_layers)}) < len(layers):
                raise ValueError(
                    f"EAGLE3 layer ids {layer_ids} cannot be captured: they name inputs "
                    f"of layers {layers}, and there are {num_layers} layers."
                )
            """
        )
    )

    def change(setter: cst.FunctionDef) -> cst.FunctionDef:
        declared = cst.ensure_type(choice_of_rule(setter).orelse, cst.If)
        guess = cst.ensure_type(declared.orelse, cst.Else)
        body = guess.body.with_changes(body=[*guess.body.body, *refusal])
        return replace(setter, guess, guess.with_changes(body=body))

    return edit_method(module, DEEPSEEK_CLASS, SETTER, change)


def pull_request() -> str:
    """Return the pull request as ``git am`` takes it."""
    steps = steps_for(unpacked(NEWEST), NEWEST)
    steps[SPEC_CONFIG] = [config_holds_convention, reads_strictly]
    steps[DEEPSEEK].append(refuses_unreachable)
    return _mail("commit_message.txt", (*changes(unpacked(NEWEST), steps), _test(TEST)))


def follow_up() -> str:
    """Return the patch for the other target with the rule on the first id; the first goes before.

    It is apart, because nothing of the plugin is about that target.
    """
    setter = setter_takes_convention(0, "Glm4MoeLiteForCausalLM")
    steps: Steps = {"srt/models/glm4_moe_lite.py": [setter]}
    files = (*rewritten(unpacked(NEWEST), steps), _test(FOLLOW_UP_TEST))
    return _mail("follow_up_message.txt", files)


def kimi_k3_patch() -> str:
    """Return the patch for Kimi-K3 on the newest release, with its test.

    It is apart: SGLang's main branch has a setter of its own since.
    """
    files = (*generate_kimi_k3(unpacked(NEWEST), NEWEST).files, _test(K3_TEST))
    return _mail("kimi_k3_message.txt", files)


def backport() -> str:
    """Return the least that lets the oldest release serve these drafters."""
    patch = generate_backport(unpacked(OLDEST), OLDEST)
    about = (
        f"SGLang {OLDEST}: the three methods that an EAGLE-3 target must have, and CUDA graphs\n"
        "that capture the configured layers.\n\n"
    )
    return Patch(patch.files, about).render()


def _test(path: str) -> FilePatch:
    """A new unit test; it lies below ``upstream_pr`` as it does in SGLang's repository."""
    return diff(path, None, (FOLDER / path).read_text(encoding="utf-8"), root="")


def _mail(message: str, files: tuple[FilePatch, ...]) -> str:
    subject, body = (FOLDER / message).read_text(encoding="utf-8").split("\n", 1)
    return (
        # The date that git itself writes here; the author is whoever sends the patch.
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
        "From: Your Name <you@example.com>\n"
        "Date: Sun, 29 Nov 2026 12:00:00 +0000\n"
        f"Subject: [PATCH] {subject}\n"
        f"{body}---\n{_summary(files)}\n{Patch(files).render()}-- \n2.43.0\n\n"
    )


def _summary(files: tuple[FilePatch, ...]) -> str:
    added = sum(line[0] == "+" for file in files for hunk in file.hunks for line in hunk.lines)
    removed = sum(line[0] == "-" for file in files for hunk in file.hunks for line in hunk.lines)
    return f" {len(files)} files changed, {added} insertions(+), {removed} deletions(-)\n"
