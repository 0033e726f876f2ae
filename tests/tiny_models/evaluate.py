"""Acceptance table of the shipped drafters: ``python -m tiny_models.evaluate``.

Greedy chain speculation on the held-out prompts, three steps and at most four tokens a
verify step, 64 tokens a prompt (past the end token), simulated with the twins.
"""

import argparse
from pathlib import Path

from tiny_models.acceptance import Acceptance, simulate
from tiny_models.export import load_drafter, load_target
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, TARGET
from tiny_models.prompt_file import load_prompts
from tiny_models.tokenizer import load_tokenizer
from tiny_models.training import make_deterministic

NEW_TOKENS = 64
READINGS = {
    "ids [2,4,6] read as h[k+1]": (3, 5, 7),
    "ids [2,4,6] read as h[k]": (2, 4, 6),
    "one layer early": (1, 3, 5),
    "no ids: default of the engine": (2, 4, 5),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINTS)
    parser.add_argument("--show", action="store_true", help="print what is generated")
    args = parser.parse_args()
    make_deterministic()
    target = load_target(args.checkpoints / TARGET)
    prompts = load_prompts(args.checkpoints)
    outputs = [target.greedy(prompt.ids, NEW_TOKENS) for prompt in prompts]
    if args.show:
        show(args.checkpoints, [(p.text, o) for p, o in zip(prompts, outputs, strict=True)])
    print("| drafter | trained on | fed | documents | chats | all | note |")
    print("|---|---|---|---|---|---|---|")
    for recipe in (LLAMA, MLA):
        drafter = load_drafter(args.checkpoints / recipe.folder)
        for note, layers in READINGS.items():
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
            print(f"| {' | '.join(cells)} |")


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
