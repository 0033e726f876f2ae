"""Draft trees: build the mask and links of one, verify one greedily."""

from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Turn the selected candidates of each request into a tree.

    Node 0 is the token the target gave last; node i is candidate ``selected_index[i - 1]``.
    The children of a node form a list: ``retrieve_next_token`` is its head,
    ``retrieve_next_sibling`` goes on.  A mask row says which nodes a node sees: itself and
    its ancestors, in FULL_MASK behind a row of ones for the sequence so far.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode}")
    nodes = draft_token_num
    taken = 0
    for row, length in enumerate(seq_lens.tolist()):
        parents = _parents(selected_index[row].tolist(), parent_list[row].tolist(), topk)
        before = length if tree_mask_mode == FULL_MASK else 0
        mask = tree_mask[taken : taken + nodes * (before + nodes)].view(nodes, before + nodes)
        taken += mask.numel()
        mask[:, before:] = False
        for node in range(nodes):
            path = _path(node, parents, depth)
            mask[node, [before + ancestor for ancestor in (0, *path)]] = True
            positions[row * nodes + node] = length + len(path)
            retrieve_index[row, node] = row * nodes + node
        for node in range(nodes - 1, 0, -1):
            parent = parents[node]
            if parent is not None:
                retrieve_next_sibling[row, node] = retrieve_next_token[row, parent]
                retrieve_next_token[row, parent] = node


def verify_tree(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root along the tokens the target itself would give.

    Called by keyword, hence upstream's spelling.  ``accept_token_num`` counts the accepted
    drafts; the token after the last of them goes to ``predicts`` as well.
    """
    predictions = target_predict.flatten().tolist()
    for row in range(candidates.shape[0]):
        index = retrive_index[row].tolist()
        child_of = retrive_next_token[row].tolist()
        sibling_of = retrive_next_sibling[row].tolist()
        tokens = candidates[row].tolist()
        path = [0]
        while len(path) < accept_index.shape[1]:
            node = child_of[path[-1]]
            while node != -1 and tokens[node] != predictions[index[path[-1]]]:
                node = sibling_of[node]
            if node == -1:
                break
            path.append(node)
        for depth, node in enumerate(path):
            accept_index[row, depth] = index[node]
            predicts[index[node]] = predictions[index[node]]
        accept_token_num[row] = len(path) - 1


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int | None]:
    """The parent node of every node; None where the parent was not selected."""
    node_of = {candidate: place + 1 for place, candidate in enumerate(selected)}
    parents: list[int | None] = [None]
    for candidate in selected:
        group = candidate // topk
        parents.append(node_of.get(int(parent_list[group])) if group else 0)
    return parents


def _path(node: int, parents: list[int | None], depth: int) -> list[int]:
    """The nodes from ``node`` up to the root, without the root."""
    path: list[int] = []
    current: int | None = node
    while current and len(path) < depth:
        path.append(current)
        current = parents[current]
    return path
