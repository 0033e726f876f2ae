"""``--config FILE`` of a launch command: the YAML file that SGLang merges with the other words.

SGLang 0.5.9 - 0.5.23, ``server_args_config_parser.py`` ``ConfigArgumentMerger``: the file's keys
become flags in front of all other words, so that these win.  ``--config=FILE`` is not merged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sglang_kimi_eagle.ordinary_files import read_ordinary

FLAG = "--config"
MAX_CONFIG = 64 * 1024
"""Bytes. Real ones have some dozens of lines."""
MAX_BRACKETS = 500
"""Of lists and mappings in one line; PyYAML's time grows with the square of those left open."""


class BadLaunchConfig(ValueError):
    """SGLang would not take the file either."""


def expand_config(
    words: Sequence[str], *, booleans: Collection[str], valued: Collection[str]
) -> list[str]:
    """Put the flags of the file after ``--config`` in front of the other words.

    Args:
        words: the launch command.
        booleans: flags without a value, such as ``--enable-dp-attention``.
        valued: flags with one. Keys of the file that are neither do not matter here.

    Raises:
        BadLaunchConfig: there are two files, or it cannot be read, or is no YAML mapping.
    """
    places = [place for place, word in enumerate(words) if word == FLAG]
    if not places:
        return list(words)
    if len(places) > 1:
        raise BadLaunchConfig(f"{FLAG} is there more than once")
    (place,) = places
    if place == len(words) - 1:
        raise BadLaunchConfig(f"there is no file after {FLAG}")
    expanded: list[str] = []
    for key, value in _read(Path(words[place + 1])).items():
        flag = f"--{key}"
        if flag in booleans:
            if not isinstance(value, bool):
                raise BadLaunchConfig(f"{FLAG} {words[place + 1]}: {key} must be true or false")
            expanded += [flag] if value else []
        elif flag in valued and value != []:
            expanded.append(f"{flag}={_one_word(value, f'{FLAG} {words[place + 1]}: {key}')}")
    return [*expanded, *words[:place], *words[place + 2 :]]


def _one_word(value: object, where: str) -> str:
    """Return the word that SGLang makes of a value."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise BadLaunchConfig(f"{where} must be one value")
    return str(value)


def _read(path: Path) -> dict[Any, Any]:
    import yaml

    brackets = 0
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise BadLaunchConfig(f"{FLAG} {path}: SGLang takes .yaml and .yml files only")
    try:
        text = read_ordinary(path, MAX_CONFIG).decode("utf-8")
        for token in yaml.scan(text):
            if isinstance(token, yaml.AliasToken):
                # A small file with aliases can grow without bound.
                raise BadLaunchConfig(f"{FLAG} {path}: aliases (*name) are not followed here")
            if isinstance(token, (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)):
                brackets += 1
                if brackets > MAX_BRACKETS:
                    raise BadLaunchConfig(f"{FLAG} {path}: more than {MAX_BRACKETS} brackets")
        document = yaml.safe_load(text)
    except BadLaunchConfig:
        raise
    except FileNotFoundError:
        raise BadLaunchConfig(f"{FLAG} {path}: there is no such file") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise BadLaunchConfig(f"{FLAG} {path} cannot be read: {reason}") from problem
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadLaunchConfig(f"{FLAG} {path}: not a mapping of options to values")
    return document
