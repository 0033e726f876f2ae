"""Regenerate the checkpoints: ``python -m tiny_models.train`` in the ``tests`` folder.

The same machine and the same versions of torch and tokenizers give the same bytes.
"""

import argparse
import time
from pathlib import Path

from tiny_models.export import (
    load_target,
    save_drafter,
    save_target,
)
from tiny_models.k3_export import load_k3_target, save_k3_drafter, save_k3_target
from tiny_models.k3_training import train_k3_drafter, train_k3_target
from tiny_models.paths import CHECKPOINTS, K3, K3_TARGET, LLAMA, MLA, TARGET
from tiny_models.prompt_file import load_prompts, save_prompts
from tiny_models.prompts import make_prompts, texts_of
from tiny_models.tokenizer import load_tokenizer, train_tokenizer
from tiny_models.training import (
    make_deterministic,
    train_llama_drafter,
    train_mla_drafter,
    train_target,
)

PARTS = ("target", "llama", "mla", "k3", "k3-drafter")


def train(folder: Path, parts: list[str], target_steps: int, drafter_steps: int) -> None:
    """Train ``parts`` and write them to ``folder``; drafters read the target there."""
    make_deterministic()
    home = folder / TARGET
    if "target" in parts:
        tokenizer = train_tokenizer()
        prompts = make_prompts(tokenizer)
        model = train_target(tokenizer, texts_of(prompts), target_steps)
        save_target(model, tokenizer, home)
        save_prompts(prompts, folder)
    target, tokenizer = load_target(home), load_tokenizer(home)
    held_out = texts_of(load_prompts(folder))
    for part, recipe, make in (
        ("llama", LLAMA, train_llama_drafter),
        ("mla", MLA, train_mla_drafter),
    ):
        if part in parts:
            drafter = make(target, tokenizer, held_out, recipe.trained_on, drafter_steps)
            save_drafter(drafter, recipe.layer_ids, folder / recipe.folder)
    if "k3" in parts:
        model = train_k3_target(tokenizer, held_out, target_steps)
        save_k3_target(model, home, folder / K3_TARGET)
    if "k3-drafter" in parts:
        k3 = load_k3_target(folder / K3_TARGET)
        k3_drafter = train_k3_drafter(k3, tokenizer, held_out, K3.trained_on, drafter_steps)
        save_k3_drafter(k3_drafter, k3, K3.layer_ids, folder / K3.folder)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=CHECKPOINTS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--target-steps", type=int, default=850)
    parser.add_argument("--drafter-steps", type=int, default=380)
    args = parser.parse_args()
    start = time.perf_counter()
    train(args.out, args.parts, args.target_steps, args.drafter_steps)
    print(f"written to {args.out} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
