"""Write a drafter's wiring down in its own config: as a declaration, or as ids for stock SGLang."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.releases import RELEASES, Release, spans
from sglang_kimi_eagle.states import IDS_KEY, Convention, States, ids_of, show, states_of
from sglang_kimi_eagle.wiring import DECLARATION_KEY

NOTHING_TO_DECLARE = rule(
    "KE220",
    "pin-without-ids",
    Severity.ERROR,
    "A convention says what ids mean, and this drafter has none.",
    example="sglang-kimi-eagle pin DRAFTER --convention layer_output, without layer ids",
)
INEXPRESSIBLE = rule(
    "KE221",
    "pin-inexpressible",
    Severity.ERROR,
    "No list of layer ids makes unmodified SGLang capture these states on all of the releases "
    "asked for.",
    example="sglang-kimi-eagle pin DRAFTER --states 1,29,57 --for-stock '>=0.5.13'",
)
BEHIND_LINK = rule(
    "KE222",
    "pin-behind-link",
    Severity.ERROR,
    "The config is a link, as in the Hugging Face cache. What it points to belongs to every "
    "snapshot that shares it, and is never modified.",
    example="sglang-kimi-eagle pin --in-place on a folder below huggingface/hub",
)
OUTPUT_EXISTS = rule(
    "KE223",
    "pin-output-exists",
    Severity.ERROR,
    "The folder for the copy exists already and is not empty, or something that is no folder has "
    "its name.",
    example="sglang-kimi-eagle pin DRAFTER --states 3,31,59 -o an-existing-folder",
)
INSIDE_DRAFTER = rule(
    "KE225",
    "pin-inside-drafter",
    Severity.ERROR,
    "The folder for the copy is inside the drafter's own. What is in that folder is the drafter: "
    "it would not be as published any more, and a copy of it would not either.",
    example="sglang-kimi-eagle pin DRAFTER --states 3,31,59 -o DRAFTER/pinned",
)
CANNOT_WRITE = rule(
    "KE224",
    "pin-cannot-write",
    Severity.ERROR,
    "The pinned drafter could not be written. Nothing half-written is left behind.",
    example="sglang-kimi-eagle pin --in-place on a read-only file system",
)


class PinRefused(Exception):
    """A pin that cannot be done; ``finding`` says why."""

    def __init__(self, finding: Diagnostic) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True)
class Pin:
    """Ids with their convention, and the states that both together mean."""

    ids: tuple[int, ...]
    convention: Convention

    @property
    def states(self) -> States:
        """The states that the drafter will get from the plugin."""
        return states_of(self.ids, self.convention)

    def applied_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``config`` with this pin below ``eagle_config``.

        Ids at the top level, which other engines read, are left as they are.
        """
        pinned = dict(config)
        eagle_config = pinned.get("eagle_config")
        nested = dict(eagle_config) if isinstance(eagle_config, Mapping) else {}
        nested[IDS_KEY] = list(self.ids)
        nested[DECLARATION_KEY] = self.convention.value
        pinned["eagle_config"] = nested
        return pinned


def pin_states(states: States, current: Sequence[int] | None) -> Pin:
    """Choose ids for ``states``: the present ones if they can mean them, else layer outputs."""
    for convention in (Convention.LAYER_OUTPUT, Convention.LAYER_INPUT):
        if current is not None and states_of(current, convention) == states:
            return Pin(tuple(current), convention)
    convention = Convention.LAYER_INPUT if 0 in states else Convention.LAYER_OUTPUT
    return Pin(ids_of(states, convention), convention)


def pin_for_stock(states: States, specifier: SpecifierSet, num_layers: int) -> Pin:
    """Choose ids that unmodified SGLang reads as ``states`` on every release of ``specifier``.

    Raises:
        PinRefused: no ids do.
    """
    wanted = [
        release
        for version, release in RELEASES.items()
        if specifier.contains(version, prereleases=True)
    ]
    possible: dict[Convention, list[str]] = {}
    for convention in (Convention.LAYER_INPUT, Convention.LAYER_OUTPUT):
        if convention is Convention.LAYER_OUTPUT and 0 in states:
            continue
        pin = Pin(ids_of(states, convention), convention)
        able = [
            release.version for release in wanted if _captures(release, pin.ids, states, num_layers)
        ]
        if wanted and len(able) == len(wanted):
            return pin
        if able:
            possible[convention] = able
    seen = [
        f"ids {list(ids_of(states, convention))} do so on {spans(versions)}"
        for convention, versions in possible.items()
    ]
    raise PinRefused(
        INEXPRESSIBLE.found(
            f"Stock SGLang {specifier or 'of any release'} cannot be made to capture "
            f"{show(states)} by ids alone.",
            where=f"releases {spans([release.version for release in wanted]) or 'none'}",
            seen="; ".join(seen) or "no ids do on any of them",
            leads_to="Without the plugin the drafter would be fed other states.",
            mend="Ask for fewer releases, or serve with the plugin and pin without --for-stock.",
        )
    )


def _captures(release: Release, ids: Sequence[int], states: States, num_layers: int) -> bool:
    reachable = release.reachable(num_layers)
    return release.stock_states(ids, num_layers) == states and all(s in reachable for s in states)


def write_in_place(folder: Path, pinned: Mapping[str, Any]) -> Path:
    """Replace ``config.json`` atomically; return the path of the backup.

    Raises:
        PinRefused: the config or its folder is a link, or cannot be written.
    """
    config = folder / "config.json"
    if config.is_symlink():
        raise PinRefused(
            BEHIND_LINK.found(
                "config.json is a link, so it is not changed in place.",
                where=str(config),
                seen=f"a link to {config.readlink()}",
                mend="Write a copy instead: --output FOLDER.",
            )
        )
    try:
        backup = _backup(config)
        try:
            _replace(config, _encode(pinned))
        except BaseException:
            backup.unlink()
            raise
    except (OSError, RecursionError) as error:
        raise _cannot_write(config, error) from error
    return backup


def write_copy(folder: Path, output: Path, pinned: Mapping[str, Any]) -> None:
    """Copy the drafter to ``output``, links followed, with the pinned config.

    The copy appears under its name when it is complete.

    Raises:
        PinRefused: ``output`` is in the way or inside the drafter, or cannot be written.
    """
    try:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise PinRefused(
                OUTPUT_EXISTS.found(
                    _in_the_way(output),
                    where=str(output),
                    mend="Choose another --output, or remove it first.",
                )
            )
        if output.resolve().is_relative_to(folder.resolve()):
            raise PinRefused(
                INSIDE_DRAFTER.found(
                    "The output is inside the drafter's folder.",
                    where=str(output),
                    leads_to="Nothing is written.",
                    mend="Choose an --output elsewhere, or change the drafter itself: --in-place.",
                )
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as scratch:
            copied = Path(scratch) / "drafter"
            copied.mkdir()
            for source in sorted(folder.iterdir()):
                if source.is_file() and source.name != "config.json":
                    shutil.copy2(source, copied / source.name)
            (copied / "config.json").write_bytes(_encode(pinned))
            copied.rename(output)
    except (OSError, RuntimeError, ValueError) as error:
        raise _cannot_write(output, error) from error


def _in_the_way(output: Path) -> str:
    if output.is_dir():
        return "The output folder is not empty."
    kind = "a file" if output.is_file() else "a pipe, a socket or a device"
    return f"The output is {kind}, not a folder."


def _encode(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _backup(config: Path) -> Path:
    """Copy ``config`` to the first free name beside it; nothing is left behind on failure."""
    content = config.read_bytes()
    for number in range(1, 1000):
        name = config.with_name(f"config.json.bak{number if number > 1 else ''}")
        try:
            # Exclusive: two pins at once get two names, and a link is not followed.
            with name.open("xb") as file:
                try:
                    file.write(content)
                    file.flush()
                except BaseException:
                    name.unlink()
                    raise
        except FileExistsError:
            continue
        shutil.copystat(config, name)
        return name
    raise OSError(errno.EEXIST, "a thousand backups are there already")


def _replace(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path`` and move it over it, keeping the permissions."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        owner = path.stat()
        if (owner.st_uid, owner.st_gid) != (os.getuid(), os.getgid()):
            os.chown(name, owner.st_uid, owner.st_gid)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _cannot_write(path: Path, error: Exception) -> PinRefused:
    return PinRefused(
        CANNOT_WRITE.found(
            f"{path.name} could not be written.",
            where=str(path),
            seen=str(error),
            leads_to="The drafter is as it was.",
            mend="Write a copy to a folder that you may write to: --output FOLDER.",
        )
    )
