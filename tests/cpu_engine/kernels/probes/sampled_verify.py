"""Emulates the GPU's sampled verify, where SGLang's CPU engine takes the likeliest token.

0.5.23, ``speculative/eagle_utils.py``: ``_verify_uses_greedy`` is true on CPU for want of a kernel,
which is given here: ``tree_speculative_sampling_target_only``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redirections.after_import import after_import

if TYPE_CHECKING:
    from torch import Tensor


def register() -> None:
    after_import("sglang.srt.speculative.eagle_utils", _sample)


def _sample(module: Any) -> None:
    module._verify_uses_greedy = lambda *, is_all_greedy, **_: is_all_greedy
    module.tree_speculative_sampling_target_only = verify_by_sampling
    module.sampling_softmax = lambda logits, temperatures: (logits / temperatures).softmax(-1)


def verify_by_sampling(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
) -> None:
    """Walk each tree from its root, taking children with the target's probability.

    Called by keyword, hence upstream's spelling.  The children of a node share one coin: the first
    whose probability, added to those of its elder siblings, exceeds it is taken.  Where none is,
    the next token is drawn from what the refused ones leave of the target's distribution, so that
    the tokens are distributed as the target's own.
    """
    import torch

    for row in range(candidates.shape[0]):
        index, tokens = retrive_index[row].tolist(), candidates[row].tolist()
        child_of = retrive_next_token[row].tolist()
        sibling_of = retrive_next_sibling[row].tolist()
        coins = uniform_samples[row].tolist()
        path = [0]
        while True:
            left = target_probs[row, path[-1]].clone()
            node, summed = -1, 0.0
            if len(path) < accept_index.shape[1]:
                node = child_of[path[-1]]
            while node != -1:
                single = float(left[tokens[node]])
                summed += single
                if coins[path[-1]] <= summed / threshold_acc or single >= threshold_single:
                    break
                left[tokens[node]] = 0
                node = sibling_of[node]
            if node == -1:
                break
            predicts[index[path[-1]]] = tokens[node]
            path.append(node)
        mass = left.cumsum(0)
        drawn = torch.searchsorted(mass, uniform_samples_for_final_sampling[row] * mass[-1])
        predicts[index[path[-1]]] = drawn.clamp(max=len(mass) - 1).to(predicts.dtype)
        accept_index[row, : len(path)] = torch.tensor([index[node] for node in path])
        accept_token_num[row] = len(path) - 1
