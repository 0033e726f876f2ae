"""Packages that extend the plugin, and fail at it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_kimi_eagle import extending
from sglang_kimi_eagle.catalogue import KNOWN, KnownDrafter
from sglang_kimi_eagle.extending import hookimpl
from sglang_kimi_eagle.states import Convention


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    extending.extensions.cache_clear()
    yield
    extending.extensions.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, package: Any) -> None:
    """Make ``package`` (or what loading it raises) the only registered one."""

    def load() -> Any:
        if isinstance(package, BaseException):
            raise package
        return package

    entry_point = SimpleNamespace(name="theirs", load=load)
    monkeypatch.setattr(extending.metadata, "entry_points", lambda group: [entry_point])


def bringing(**hooks: Any) -> Any:
    """A package whose hooks return or raise these."""

    def hook(name: str, value: Any) -> Any:
        def implementation() -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        implementation.__name__ = name
        return hookimpl(implementation)

    return SimpleNamespace(**{name: hook(name, value) for name, value in hooks.items()})


def test_what_a_package_brings_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = KnownDrafter("theirs", "digest", Convention.LAYER_INPUT, "they know")
    install(
        monkeypatch,
        bringing(
            kimi_eagle_known_drafters=[drafter],
            kimi_eagle_silenced=["KE610"],
            kimi_eagle_checks=[len],
        ),
    )
    assert extending.known_drafters() == [*KNOWN, drafter]
    assert extending.silenced() == {"KE610"}
    assert extending.extensions().checks == (len,)
    assert extending.extensions().findings == ()


@pytest.mark.parametrize(
    "package",
    [
        ImportError("gone"),
        SystemExit(5),
        bringing(kimi_eagle_known_drafters=[5]),
        bringing(kimi_eagle_known_drafters=RuntimeError("broken")),
        bringing(kimi_eagle_silenced=[None]),
        bringing(kimi_eagle_silenced=7),
        bringing(kimi_eagle_checks=["not callable"]),
    ],
)
def test_a_package_that_fails_is_reported_and_left_out(
    monkeypatch: pytest.MonkeyPatch, package: Any
) -> None:
    install(monkeypatch, package)
    assert [finding.code for finding in extending.extensions().findings] == ["KE019"]
    assert extending.known_drafters() == [*KNOWN]
    assert extending.silenced() == frozenset()
