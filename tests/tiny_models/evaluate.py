"""Acceptance table of the shipped drafters: ``python -m tiny_models.evaluate``.

Greedy chain speculation on the held-out prompts, three steps and at most four tokens a
verify step, 64 tokens a prompt (past the end token), simulated with the twins.
"""

import argparse
from pathlib import Path
from typing import Any

from torch import Tensor

from tiny_models.acceptance import Acceptance, simulate
from tiny_models.drafters import Drafter
from tiny_models.export import load_drafter, load_target
from tiny_models.k3_export import load_k3_drafter, load_k3_target
from tiny_models.k3_target import K3TargetModel
from tiny_models.paths import CHECKPOINTS, K3, K3_TARGET, LLAMA, MLA, TARGET, DrafterRecipe
from tiny_models.prompt_file import Prompt, load_prompts
from tiny_models.tokenizer import load_tokenizer
from tiny_models.training import make_deterministic

NEW_TOKENS = 64
READINGS = {
    "ids [2,4,6] read as h[k+1]": (3, 5, 7),
    "ids [2,4,6] read as h[k]": (2, 4, 6),
    "one layer early": (1, 3, 5),
    "no ids: default of the engine": (2, 4, 5),
}
K3_READINGS = {
    "ids [4,6,7] read as h[k]": (4, 6, 7),
    "ids [4,6,7] read as h[k+1]": (5, 7, 8),
    "one layer early": (3, 5, 6),
    "no ids: default of the engine": (2, 4, 5),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    parser.add_argument("--show", action="store_true", help="print what is generated")
    args = parser.parse_args()
    make_deterministic()
    prompts = load_prompts(args.checkpoints)
    print("| drafter | trained on | fed | documents | chats | all | note |")
    print("|---|---|---|---|---|---|---|")
    target = load_target(args.checkpoints / TARGET)
    outputs = [target.greedy(prompt.ids, NEW_TOKENS) for prompt in prompts]
    for recipe in (LLAMA, MLA):
        drafter = load_drafter(args.checkpoints / recipe.folder)
        for note, layers in READINGS.items():
            table_row(recipe, note, layers, target, drafter, prompts, outputs)
    k3 = load_k3_target(args.checkpoints / K3_TARGET)
    k3_outputs = [k3.greedy(prompt.ids, NEW_TOKENS) for prompt in prompts]
    k3_drafter = load_k3_drafter(args.checkpoints / K3.folder)
    for note, layers in K3_READINGS.items():
        table_row(K3, note, layers, k3, k3_drafter, prompts, k3_outputs)
    note = "the mixture, as DSPARK drafters are fed"
    table_row(K3, note, K3.trained_on, Mixing(k3), k3_drafter, prompts, k3_outputs)
    if args.show:
        show(args.checkpoints, [(p.text, o) for p, o in zip(prompts, outputs, strict=True)])
        show(args.checkpoints, [(p.text, o) for p, o in zip(prompts, k3_outputs, strict=True)])


def table_row(
    recipe: DrafterRecipe,
    note: str,
    layers: tuple[int, ...],
    target: Any,
    drafter: Drafter,
    prompts: list[Prompt],
    outputs: list[list[int]],
) -> None:
    """Print the acceptance of a drafter that is fed h[k] for k in ``layers``."""
    sums = {"document": Acceptance(), "chat": Acceptance()}
    for prompt, output in zip(prompts, outputs, strict=True):
        sums[prompt.kind] += simulate(target, drafter, layers, prompt.ids, output)
    lengths = [*sums.values(), sums["document"] + sums["chat"]]
    cells = [
        recipe.folder,
        _names(recipe.trained_on),
        _names(layers),
        *(f"{counts.length:.3f}" for counts in lengths),
        note,
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


class Mixing:
    """A Kimi-K3 whose states are the mixtures that its layers read."""

    def __init__(self, target: K3TargetModel) -> None:
        self.model, self._run = target.model, target.run

    def __call__(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        logits, _, mixtures = self._run(ids)
        return logits, mixtures


def show(folder: Path, generations: list[tuple[str, list[int]]]) -> None:
    """Print prompts and continuations."""
    tokenizer = load_tokenizer(folder / TARGET)
    for prompt, output in generations:
        text = tokenizer.decode(output, skip_special_tokens=False)
        print(f"{prompt}\n  >>> {text}\n")


def _names(layers: tuple[int, ...]) -> str:
    return " ".join(f"h{k}" for k in layers)


if __name__ == "__main__":
    main()
