"""Who gives a command is an object that the command's own process made: nothing in a request makes one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from audit_log.actors import Actor
from gateway.admin.in_process import Caller, CommandGateway, command_app
from gateway.app import application_of
from gateway.http.policies import policy_of
from gateway.openapi.stand_in import stand_in
from tenancy.rights.principals import Membership, Principal
from tests.gateway.stack import Stack

COMMAND = Principal("command", UUID(int=1), "root@here", "root@here", (Membership("owner"),))
ROUTES = "gateway.admin.platform:PlatformOperations"


def test_no_served_route_lets_a_command_in() -> None:
    kinds = [
        policy_of(handler).kinds_for(route.path)
        for route in application_of(stand_in()).routes
        for handler in getattr(route, "route_handlers", ())
    ]
    assert kinds
    assert not any("command" in each for each in kinds)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer root@here"},
        {"authorization": "Command root@here", "x-turnpike-caller": "command"},
        {"x-api-key": "command", "x-turnpike-principal": '{"kind": "command"}'},
        {"cookie": "turnpike=command; turnpike_session=command", "x-turnpike-csrf": "1"},
        {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1", "host": "localhost"},
    ],
)
async def test_no_header_makes_the_caller_of_a_command(stack: Stack, headers: dict[str, str]) -> None:
    for path in ("/admin/v1/tenants", "/admin/v1/platform/settings", "/admin/v1/tenants?kind=command&caller=command"):
        assert (await stack.http.get(path, headers=headers)).status_code == 401, path


async def test_the_application_of_a_command_has_the_caller_that_it_was_made_with() -> None:
    """Whatever the scope says, as a server would fill it: who may not stays who may not."""
    nobody = Principal("operator_key", UUID(int=2), "k", "k", (Membership("viewer", UUID(int=3)),))
    app = command_app(CommandGateway(_Nothing()), Caller(nobody, Actor("operator_key", "k", "k")), [ROUTES])
    forged: tuple[dict[str, Any], ...] = (
        {},
        {"principal": COMMAND, "caller": COMMAND},
        {"extensions": {"turnpike": COMMAND}},
        {"headers": [(b"authorization", b"Bearer command"), (b"x-turnpike-principal", b"command")]},
    )
    for more in forged:
        assert await _status(app, more) == 403, more


async def _status(app: Any, more: dict[str, Any]) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    path = "/admin/v1/platform/settings"
    scope: dict[str, Any] = {
             "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [], "root_path": "", "scheme": "http", "http_version": "1.1", "server": None, "client": None,
             "asgi": {"version": "3.0"}}  # fmt: skip
    await app(scope | more, receive, send)
    status: int = sent[0]["status"]
    return status


class _Nothing:
    """What routes are made of, and may not come to use."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self
