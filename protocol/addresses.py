"""The address of a replica, as settings and commands write it."""

from __future__ import annotations

import msgspec


class AddressError(ValueError):
    """A replica's address is not `unix:PATH` or `tcp:HOST:PORT`."""


class Address(msgspec.Struct, frozen=True):
    """The address of a replica: the path of a Unix socket, or a TCP host and port. `text` is how it was written."""

    text: str
    path: str | None = None
    host: str = ""
    port: int = 0


def parse_address(text: str) -> Address:
    """Parse `unix:PATH` or `tcp:HOST:PORT`, with an IPv6 host in brackets. Raises AddressError."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return Address(text, path=rest)
    host, _, port = rest.rpartition(":")
    host = host.strip("[] ")
    # A replica that listened at no host would listen at all of its machine's addresses.
    if kind == "tcp" and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return Address(text, host=host, port=int(port))
    raise AddressError(f"{text!r} is not a replica's address; expected unix:PATH or tcp:HOST:PORT")
