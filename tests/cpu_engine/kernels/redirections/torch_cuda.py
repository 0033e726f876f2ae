"""``torch.cuda`` calls that SGLang makes on every device."""

from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("torch.cuda", _redirect)


def _redirect(module: Any) -> None:
    """``set_embed`` of the MLA drafter (``models/kimi_k25_eagle3.py``, 0.5.12+) synchronizes."""
    module.synchronize = lambda device=None: None
