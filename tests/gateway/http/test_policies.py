"""A route without a policy keeps the gateway from starting; and who the client is, behind proxies that are trusted."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import Litestar, get, post

from gateway.http.client_address import client_address
from gateway.http.policies import MissingPolicy, check_policies, demands, public
from tenancy.rights.key_limits import parse_networks


@get("/declared", opt=demands("usage.read"))
async def declared() -> None:
    """Has a policy."""


@get("/open", opt=public())
async def opened() -> None:
    """Says that it needs none."""


@post("/forgotten")
async def forgotten() -> None:
    """Has none."""


def test_a_route_without_a_policy_is_refused_by_name() -> None:
    check_policies(Litestar([declared, opened], openapi_config=None))
    with pytest.raises(MissingPolicy, match="POST /forgotten"):
        check_policies(Litestar([declared, opened, forgotten], openapi_config=None))


def _scope(peer: str, *forwarded: str) -> Any:
    return {"client": (peer, 1), "headers": [(b"x-forwarded-for", value.encode()) for value in forwarded]}


def test_only_trusted_proxies_say_who_the_client_is() -> None:
    trusted = parse_networks(["10.0.0.0/8"])
    assert client_address(_scope("10.0.0.1", "192.0.2.7")) == "10.0.0.1"  # none is trusted
    assert client_address(_scope("192.0.2.9", "192.0.2.7"), trusted) == "192.0.2.9"
    assert client_address(_scope("10.0.0.1", "192.0.2.7"), trusted) == "192.0.2.7"
    assert (
        client_address(_scope("10.0.0.1", "1.1.1.1, 192.0.2.7, 10.0.0.2"), trusted) == "192.0.2.7"
    )  # 1.1.1.1 is a claim
    assert client_address(_scope("10.0.0.1", "1.1.1.1", "192.0.2.7"), trusted) == "192.0.2.7"
    assert client_address(_scope("10.0.0.1"), trusted) == "10.0.0.1"
    assert client_address(_scope("10.0.0.1", "10.0.0.3, 10.0.0.2"), trusted) == "10.0.0.1"
    assert client_address({"client": None, "headers": []}, trusted) == ""  # type: ignore[arg-type]
    assert client_address(_scope("10.0.0.1", "nonsense"), trusted) == "nonsense"  # which is in no network
