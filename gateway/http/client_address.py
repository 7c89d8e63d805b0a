"""The address of a request's client: that of the connection, or what a trusted proxy says.

`X-Forwarded-For` is believed only from connections of the proxies that the operator named. It is read from its end,
since each proxy appends whom it heard; the first address that is no trusted proxy is the client.
"""

from __future__ import annotations

from collections.abc import Sequence

from litestar.types import Scope

from tenancy.rights.key_limits import Network, is_inside

_HEADER = b"x-forwarded-for"
_MOST = 20
"""How many forwarded addresses are looked at."""


def client_address(scope: Scope, trusted: Sequence[Network] = ()) -> str:
    """The client's address; empty where it is not known, as on a UNIX socket without a trusted proxy's word."""
    client = scope.get("client")
    peer = client[0] if client else ""
    if not trusted or not is_inside(peer, trusted):
        return peer
    values = b",".join(value for name, value in scope["headers"] if name == _HEADER)
    forwarded = [part.strip() for part in values.decode("latin-1").split(",") if part.strip()]
    for address in reversed(forwarded[-_MOST:]):
        if not is_inside(address, trusted):
            return address
    return peer
