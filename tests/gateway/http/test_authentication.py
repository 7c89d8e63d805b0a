"""Whoever calls a route without proving who that is acts as nobody, never as the gateway itself."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import post
from litestar.testing import create_async_test_client

from audit_log.actors import current_actor
from gateway.http.authentication import Authentication
from gateway.http.policies import demands, public


@post("/public", opt=public(), status_code=200)
async def opened() -> list[str]:
    """Says who acts."""
    return [current_actor().means, current_actor().name]


@post("/keyless", opt=demands(None, access="keyless"), status_code=200)
async def keyless() -> list[str]:
    """Says who acts."""
    return [current_actor().means, current_actor().name]


@pytest.mark.parametrize("path", ["/public", "/keyless"])
async def test_without_a_proof_the_actor_is_nobody(path: str) -> None:
    nothing: Any = None
    assert current_actor().means == "system", "as in the process of a gateway"
    app = [opened, keyless]
    async with create_async_test_client(app, middleware=[Authentication(nothing, nothing, nothing)]) as client:
        assert (await client.post(path)).json() == ["anonymous", "anonymous"]
