"""A launch command as people paste it: its arguments, without the program and what is before it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

# The first word of a launch command: a program, perhaps by its path, or a variable set for it.
_STARTS_PROGRAM = re.compile(r"-.*|\w+=.*|(.*/)?(python[\d.]*|sglang|env|nohup|nice|exec|numactl)")
_SETS_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DRAFT = re.compile(r"--speculative-draft-model(-path)?(=.*)?", re.DOTALL)


def without_program(words: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    """Leave out the program of a launch command, and keep a drafter named before it.

    The variables that the command sets for the program are returned beside the other words.
    ``sglang serve MODEL`` is read as SGLang does: MODEL is ``--model-path``.
    """
    for place, word in enumerate(words):
        serves = word == "serve" and words[place - 1].rpartition("/")[2] == "sglang"
        if word == "sglang.launch_server" or serves:
            before, given = words[:place], list(words[place + 1 :])
            if serves and given and not given[0].startswith("-"):
                given.insert(0, "--model-path")
            variables = dict(one.split("=", 1) for one in before if _SETS_VARIABLE.fullmatch(one))
            return [*_drafter_before(before, given), *given], variables
    return list(words), {}


def _drafter_before(before: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """Return the word in front of the program that names a drafter, if there is one.

    ``sudo`` and the like are none, where the launch names its drafter itself.
    """
    if not before or _STARTS_PROGRAM.fullmatch(before[0]):
        return ()
    named = any(_DRAFT.fullmatch(word) for word in given)
    # Of a name that is too long, Path.is_dir raises.
    is_folder = os.path.isdir(before[0])  # noqa: PTH112
    looks_like_one = is_folder or _HUB_ID.fullmatch(before[0]) is not None
    return before[:1] if looks_like_one or not named else ()
