"""Whoever calls a route without proving who that is acts as nobody, never as the gateway itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from litestar import post
from litestar.testing import create_async_test_client

from audit_log.actors import current_actor
from gateway.http.authentication import Authentication
from gateway.http.policies import demands, public
from tests.gateway.stack import Stack


@post("/public", opt=public(), status_code=200)
async def opened() -> list[str]:
    """Says who acts."""
    return [current_actor().means, current_actor().name]


@post("/keyless", opt=demands(None, access="keyless"), status_code=200)
async def keyless() -> list[str]:
    """Says who acts."""
    return [current_actor().means, current_actor().name]


async def test_a_key_that_is_revoked_while_its_body_comes_starts_nothing(stack: Stack) -> None:
    """Whoever holds a leaked key could else have requests ready that begin long after it was revoked."""
    stack.say("ok")
    issued = await stack.tenancy.create_key(stack.tenant.id, stack.project.id)
    whole = msgspec.json.encode({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]})

    async def slowly(*, revoke: bool) -> AsyncIterator[bytes]:
        yield whole[:10]
        await asyncio.sleep(0.3)
        if revoke:
            await stack.tenancy.revoke(issued.public_id)
        yield whole[10:]

    statuses = []
    for revoke in (False, True):
        headers = {"authorization": f"Bearer {issued.key}", "content-type": "application/json"}
        answer = await stack.http.post("/v1/chat/completions", content=slowly(revoke=revoke), headers=headers)
        statuses.append(answer.status_code)
    assert statuses == [200, 401]


@pytest.mark.parametrize("path", ["/public", "/keyless"])
async def test_without_a_proof_the_actor_is_nobody(path: str) -> None:
    nothing: Any = None
    assert current_actor().means == "system", "as in the process of a gateway"
    app = [opened, keyless]
    async with create_async_test_client(app, middleware=[Authentication(nothing, nothing, nothing)]) as client:
        assert (await client.post(path)).json() == ["anonymous", "anonymous"]
