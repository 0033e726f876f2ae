"""The address of a server, as the user wrote it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from sglang_kimi_eagle.watching.findings import BAD_ADDRESS, WatchFailed

_LONGEST = 2048


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    secure: bool
    """https."""
    host: str
    """A name or an IP address, IPv6 without brackets."""
    port: int
    prefix: str
    """The path below which a gateway serves it; empty, or without a slash at its end."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.prefix}"


def parse_address(text: str) -> Address:
    """Parse ``http://host:30000`` or ``https://[::1]:30000/prefix``.

    Raises:
        WatchFailed: KE860.
    """
    if len(text) > _LONGEST or not text.isprintable() or any(map(str.isspace, text)):
        raise _bad(text, "it is too long, or has blanks or control characters in it")
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname or ""
        host.encode("idna" if not host.isascii() else "ascii")
        if "[" in parts.netloc:
            ipaddress.IPv6Address(host)
    except ValueError:
        # What Python says of it repeats parts of the address, and with them of a password.
        raise _bad(text, "its host or its port cannot be one") from None
    if parts.scheme not in ("http", "https"):
        raise _bad(text, "its scheme is another one" if "://" in text else "it has no scheme")
    if not host:
        raise _bad(text, "it names no host")
    if parts.username is not None or parts.password is not None:
        raise _bad(text, "it holds a user or a password")
    if parts.query or parts.fragment:
        raise _bad(text, "it has a query or a fragment")
    secure = parts.scheme == "https"
    if port == 0:
        raise _bad(text, "port 0 is no port")
    prefix = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~-._")
    return Address(secure, host, port or (443 if secure else 80), prefix)


def shown_address(text: str) -> str:
    """Return what may be shown of an address: nothing that can hold a password or a key."""
    if "@" in text:
        return "(an address with an @)"
    return re.sub(r"[?#].*", "(and a query or a fragment)", text, flags=re.DOTALL)[:200]


def _bad(text: str, why: str) -> WatchFailed:
    return WatchFailed(
        BAD_ADDRESS.found(
            f"This is not the address of a server: {why}.",
            where="argument URL",
            seen=repr(shown_address(text)),
            mend="Write it as http://host:30000; an API key goes into an environment variable "
            "that --api-key-env names.",
        )
    )
