"""Addresses as users write them."""

from __future__ import annotations

import pytest

from sglang_kimi_eagle.watching.address import Address, parse_address
from sglang_kimi_eagle.watching.findings import WatchFailed


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("http://host:30000", Address(False, "host", 30000, ""), "http://host:30000"),
        ("https://host/", Address(True, "host", 443, ""), "https://host:443"),
        ("http://[::1]:30000/", Address(False, "::1", 30000, ""), "http://[::1]:30000"),
        ("HTTP://Host:1/a/b/", Address(False, "host", 1, "/a/b"), "http://host:1/a/b"),
    ],
)
def test_addresses_are_understood(text: str, address: Address, shown: str) -> None:
    assert parse_address(text) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:30000",
        "host",
        "file:///etc/hosts",
        "ftp://host",
        "javascript:alert(1)",
        "http://",
        "http://:30000",
        "http://[::1",
        "http://[zz]:1",
        "http://host:0",
        "http://host:99999",
        "http://host:port",
        "http://user:secret@host",
        "http://host/?a=secret",
        "http://host:port?a=secret",
        "ftp://host/#secret",
        "http://user:secret/@host",
        "http://user:secret@ho\u2100st",
        "http://host/#a",
        "http://ho st",
        "http://host\r\nX: y",
        "http://" + "a" * 70 + "é" * 70,
        "http://" + "a" * 5000,
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(WatchFailed) as failure:
        parse_address(text)
    assert failure.value.finding.code == "KE860"
    assert "secret" not in failure.value.finding.render()
