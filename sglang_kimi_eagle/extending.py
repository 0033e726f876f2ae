"""Where other packages extend the plugin: pluggy hooks under the entry points `GROUP`.

A package adds, to its own metadata, an entry point of the group ``sglang_kimi_eagle`` that names a
module or object with functions marked by `hookimpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pluggy

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

if TYPE_CHECKING:
    from sglang_kimi_eagle.adapters import Adapter
    from sglang_kimi_eagle.catalogue import KnownDrafter
    from sglang_kimi_eagle.checks.context import Context

GROUP = "sglang_kimi_eagle"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

BROKEN = rule(
    "KE019",
    "extension-broken",
    Severity.WARNING,
    "Another package extends the plugin, and what it brings failed. Everything else was checked.",
    example="An entry point of the group `sglang_kimi_eagle` whose module cannot be imported.",
)


ADAPTERS_COLLIDE = rule(
    "KE871",
    "adapters-collide",
    Severity.WARNING,
    "Two adapters claim the same target class. The first one counts: this package's own, then "
    "those of other packages.",
    example="A package with an adapter for KimiK25ForConditionalGeneration.",
)


class Hooks:
    """What a package can add."""

    @hookspec
    def kimi_eagle_adapters(self) -> Iterable[Adapter]:  # type: ignore[empty-body]
        """Return adapters: target models that the plugin serves, see `adapters`."""

    @hookspec
    def kimi_eagle_checks(self) -> Iterable[Callable[[Context], Iterable[Diagnostic]]]:  # type: ignore[empty-body]
        """Return checks: functions from a `Context` to findings."""

    @hookspec
    def kimi_eagle_silenced(self) -> Iterable[str]:  # type: ignore[empty-body]
        """Return codes whose findings are dropped, as with SGLANG_KIMI_EAGLE_IGNORE."""

    @hookspec
    def kimi_eagle_known_drafters(self) -> Iterable[KnownDrafter]:  # type: ignore[empty-body]
        """Return drafters whose convention of layer ids is known."""


class Extensions(NamedTuple):
    """What registered packages bring, and what went wrong while they were asked."""

    checks: tuple[Callable[[Context], Iterable[Diagnostic]], ...]
    silenced: frozenset[str]
    known: tuple[KnownDrafter, ...]
    adapters: Mapping[str, Adapter]
    """The adapter of each target class."""
    findings: tuple[Diagnostic, ...]


@lru_cache(maxsize=1)
def extensions() -> Extensions:
    """Load every registered package and ask it for what it brings, once."""
    from sglang_kimi_eagle.adapters import Adapter, builtin
    from sglang_kimi_eagle.catalogue import KnownDrafter

    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(builtin, name="builtin")
    findings: list[Diagnostic] = []
    for entry_point in metadata.entry_points(group=GROUP):
        try:
            manager.register(entry_point.load(), name=entry_point.name)
        except (Exception, SystemExit) as error:
            findings.append(_broken(f"entry point {entry_point.name}", error))

    def brought(hook: pluggy.HookCaller, kind: Callable[[Any], bool]) -> Iterator[Any]:
        for implementation in hook.get_hookimpls():
            try:
                items: list[Any] = list(cast("Iterable[Any]", implementation.function()))
                wrong = [item for item in items if not kind(item)]
                if wrong:
                    raise TypeError(f"{hook.name} brought {wrong[0]!r}")
            except Exception as error:
                findings.append(_broken(f"{implementation.plugin_name}, {hook.name}", error))
            else:
                yield from items

    adapters: dict[str, Adapter] = {}
    for adapter in brought(
        manager.hook.kimi_eagle_adapters,
        lambda item: isinstance(item, Adapter) and bool(item.name and item.architectures),
    ):
        for architecture in adapter.architectures:
            first = adapters.setdefault(architecture, adapter)
            if first is not adapter:
                findings.append(_collision(architecture, first, adapter))

    return Extensions(
        tuple(brought(manager.hook.kimi_eagle_checks, callable)),
        frozenset(brought(manager.hook.kimi_eagle_silenced, lambda item: isinstance(item, str))),
        tuple(
            brought(
                manager.hook.kimi_eagle_known_drafters,
                lambda item: isinstance(item, KnownDrafter),
            )
        ),
        adapters,
        tuple(findings),
    )


def known_drafters() -> Sequence[KnownDrafter]:
    """Return the catalogue with what other packages know."""
    from sglang_kimi_eagle.catalogue import KNOWN

    return [*KNOWN, *extensions().known]


def adapters() -> Mapping[str, Adapter]:
    """Return the registered adapters, by the class of their target."""
    return extensions().adapters


def silenced() -> frozenset[str]:
    """Return the codes that other packages silence."""
    return extensions().silenced


def _collision(architecture: str, first: Adapter, second: Adapter) -> Diagnostic:
    return ADAPTERS_COLLIDE.found(
        f"Two adapters claim {architecture}.",
        where=f"{type(second).__module__}.{type(second).__qualname__}",
        seen=f"{first.name} and {second.name}",
        leads_to=f"That of {first.name} is used.",
        mend="Uninstall the package of the other one, or rename the class that it is for.",
    )


def _broken(where: str, error: BaseException) -> Diagnostic:
    return BROKEN.found(
        "A package that extends sglang-kimi-eagle failed.",
        where=where,
        seen=f"{type(error).__name__}: {error}"[:300],
        leads_to="What it would have checked or known is left out.",
        mend="Upgrade or uninstall that package.",
    )


def broken_check(check: object, error: Exception) -> Diagnostic:
    """Build the finding of a check that raised."""
    module, name = getattr(check, "__module__", "?"), getattr(check, "__qualname__", "?")
    return _broken(f"check {module}.{name}", error)
