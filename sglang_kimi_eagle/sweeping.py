"""Which targets of an SGLang lack the methods of EAGLE-3, and what could be done about each.

By the sources alone.  What every release of the table has is shipped beside this module, so that a
release that is not at hand can be asked about, and a class that is new can be told from those that
are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from sglang_kimi_eagle.adapters import Adapter
from sglang_kimi_eagle.adapters.routes import Kind, Route, route_of
from sglang_kimi_eagle.adapters.wrappers import PROVED
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.model_classes import MODELS, ModelClasses
from sglang_kimi_eagle.releases import NEWEST
from sglang_kimi_eagle.settings import ADAPT
from sglang_kimi_eagle.upstream import Sources

TABLE = "sweep.json"

NEW_CLASS = rule(
    "KE878",
    "new-target-class",
    Severity.WARNING,
    "A class of this SGLang lacks methods that EAGLE-3 needs, although it has a capture loop "
    "inside, and it is not among those that were looked at: it came with a newer release, or with "
    "a build of one's own.",
    example="sglang-kimi-eagle sweep, on a release with a new model",
)

NO_CLASSES = rule(
    "KE880",
    "sweep-no-classes",
    Severity.ERROR,
    "Not one model class was found in the sources: their files cannot be read, are no Python, or "
    "offer nothing to SGLang's registry. Nothing is known about this SGLang.",
    example="sglang-kimi-eagle sweep --from a checkout that is owned by somebody else",
)
FILES_SKIPPED = rule(
    "KE881",
    "sweep-files-skipped",
    Severity.WARNING,
    "Some files below `srt/models` could not be read or parsed. The classes in them are missing "
    "from the answer, and so are those that are built on them.",
    example="sglang-kimi-eagle sweep --from a checkout in the middle of a merge",
)
OTHER_VERSION = rule(
    "KE882",
    "sweep-other-version",
    Severity.ERROR,
    "The sources say that they are another version of SGLang than the one that was named.",
    example="sglang-kimi-eagle sweep --from the sources of 0.5.23 --sglang 0.5.9",
)
_MOST_NAMED = 5


@dataclass(frozen=True)
class Lacking:
    """A class that the engine fails on under EAGLE3, with what can be done about it."""

    name: str
    module: str
    missing: tuple[str, ...]
    kind: Kind
    attribute: str
    """What holds the model with the capture loop."""
    language_models: tuple[str, ...]
    """The classes that it may hold and that can capture."""

    def coverage(self, adapters: Mapping[str, Adapter], version: str) -> str:
        """Say how the plugin serves it: by which adapter, as proved, on request, or not."""
        adapter = adapters.get(self.name)
        if adapter is not None:
            return f"adapter {adapter.name}"
        if self.kind is Kind.NONE:
            return "not served"
        if version in PROVED.get(self.name, ()):
            return "served"
        return f"{ADAPT}={self.name}"

    def as_dict(self) -> dict[str, Any]:
        """Return it in the shape of the table and of the JSON output."""
        return {
            "class": self.name,
            "module": self.module,
            "missing": list(self.missing),
            "kind": self.kind.value,
            "attribute": self.attribute,
            "language_models": list(self.language_models),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Lacking:
        """Return what `as_dict` has written."""
        return cls(
            content["class"],
            content["module"],
            tuple(content["missing"]),
            Kind(content["kind"]),
            content["attribute"],
            tuple(content["language_models"]),
        )


@dataclass(frozen=True)
class Sweep:
    """What was found in one SGLang."""

    version: str
    complete: int
    """Classes that lack nothing."""
    lacking: tuple[Lacking, ...]
    """Classes that lack something and have a capture loop inside, or an adapter."""
    without: tuple[str, ...]
    """Classes with no capture loop, among them encoders, classifiers and draft models."""
    skipped: tuple[str, ...] = ()
    """Modules that could not be read or parsed, each with the reason."""

    @property
    def empty(self) -> bool:
        """Whether there was not one class."""
        return not (self.complete or self.lacking or self.without)

    @property
    def delegates(self) -> tuple[Lacking, ...]:
        """Those that only have to delegate."""
        return tuple(found for found in self.lacking if found.kind is Kind.DELEGATE)


def sweep(sources: Sources, adapted: frozenset[str] = frozenset()) -> Sweep:
    """Look at every model class that an SGLang offers.

    Args:
        sources: the SGLang.
        adapted: classes that an adapter is for, whether or not a capture loop is seen in them.
    """
    complete = 0
    lacking: list[Lacking] = []
    without: list[str] = []
    models = ModelClasses(sources)
    for cls in models.entries():
        route = route_of(cls)
        if not route.lacking:
            complete += 1
        elif route.kind is Kind.NONE and cls.name not in adapted:
            without.append(cls.name)
        else:
            lacking.append(_lacking(route))
    skipped = tuple(
        f"{module.removeprefix(MODELS + '.')}: {why}"
        for module, why in sorted(models.unread.items())
    )
    return Sweep(sources.version, complete, tuple(lacking), tuple(without), skipped)


def known_sweep(version: str) -> Sweep:
    """Return what the release ``version`` of the table is known to have.

    Raises:
        KeyError: it is not in the table.
    """
    table = _table()
    content = table["releases"][version]
    return Sweep(
        version,
        content["complete"],
        tuple(Lacking.from_dict(table["lacking"][index]) for index in content["lacking"]),
        tuple(table["without"][index] for index in content["without"]),
    )


def table_of(sweeps: Iterable[Sweep]) -> dict[str, Any]:
    """Return the table that `known_sweep` reads: releases repeat each other mostly."""
    lacking: dict[Lacking, int] = {}
    without: dict[str, int] = {}
    releases = {
        found.version: {
            "complete": found.complete,
            "lacking": [lacking.setdefault(cls, len(lacking)) for cls in found.lacking],
            "without": [without.setdefault(name, len(without)) for name in found.without],
        }
        for found in sweeps
    }
    return {
        "releases": releases,
        "lacking": [cls.as_dict() for cls in lacking],
        "without": list(without),
    }


def new_classes(found: Sweep) -> Iterator[Diagnostic]:
    """Find the classes that neither this release nor the newest of the table is known to have."""
    known = {
        cls.name
        for version in {NEWEST, found.version}
        if version in _table()["releases"]
        for cls in known_sweep(version).lacking
    }
    for cls in found.lacking:
        if cls.name not in known:
            yield NEW_CLASS.found(
                f"{cls.name} has no {', '.join(cls.missing)}.",
                where=f"sglang {found.version}, {cls.module}",
                seen=f"{cls.kind.value} by {cls.attribute}: {', '.join(cls.language_models)}",
                leads_to="Stock SGLang fails on it under EAGLE3, after loading all weights.",
                mend=f"Try {ADAPT}={cls.name}; if it serves, add it to the proved ones.",
            )


def unread(found: Sweep, where: str) -> Iterator[Diagnostic]:
    """Find what the sweep of the sources in ``where`` could not look at."""
    seen = "; ".join(found.skipped[:_MOST_NAMED])
    if len(found.skipped) > _MOST_NAMED:
        seen += f"; and {len(found.skipped) - _MOST_NAMED} more"
    mend = "Check out or install this SGLang anew, and run it as a user that may read it."
    if found.empty:
        yield NO_CLASSES.found(
            "No model class was found in these sources.",
            where=where,
            seen=seen or "no file offers a class (EntryClass)",
            leads_to="It cannot be said what this SGLang lacks.",
            mend=mend,
        )
    elif found.skipped:
        count = len(found.skipped)
        yield FILES_SKIPPED.found(
            f"{count} {'file was' if count == 1 else 'files were'} skipped.",
            where=where,
            seen=seen,
            leads_to="Classes in them are missing, and those built on them seem to lack more.",
            mend=mend,
        )


def _lacking(route: Route) -> Lacking:
    return Lacking(
        route.cls.name,
        route.cls.module.removeprefix(MODELS + "."),
        route.missing,
        route.kind,
        route.attribute,
        tuple(inner.name for inner in route.capable),
    )


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    text = resources.files("sglang_kimi_eagle").joinpath(TABLE).read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
