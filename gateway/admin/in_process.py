"""The routes of /admin/v1 for a command on the machine, called in its own process.

Who calls is what the application was made with: nothing in a request can say it, and no application that serves a
socket is made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any, TypeVar, cast

from litestar import Litestar
from litestar.exceptions import HTTPException
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec import Struct

from audit_log.actors import Actor, acting_as
from gateway.admin.access import NamedTenant
from gateway.admin.operation import operations_of
from gateway.http.authentication import check_allowed
from gateway.http.policies import policy_of
from gateway.http.responses import error_response
from gateway.request_context import request_context
from gateway.services import Gateway
from tenancy.rights.principals import Principal

Result = TypeVar("Result")


class Caller(Struct, frozen=True):
    """Who gives the command: an operator whose key was presented, or who runs it, who may do everything."""

    principal: Principal
    actor: Actor


class CommandGateway:
    """As much of a gateway as the routes use that commands call. `services` has what they use of a gateway's."""

    def __init__(self, services: Any) -> None:
        self.services = services
        self.threads = _Threads()

    @property
    def files(self) -> Any:
        """The files of projects."""
        return self.services.files

    @property
    def adapters(self) -> Any:
        """The adapters of projects."""
        return self.services.adapters


class _Threads:
    """A command has no other requests beside it."""

    async def run(self, _tenant_id: Any, work: Any) -> Any:
        return work()


class _Calling(ASGIMiddleware):
    """Every request is the caller's."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        principal = request_context(scope).principal = self._caller.principal
        if principal.kind != "command":
            check_allowed(principal, policy_of(scope["route_handler"]), scope["path"])
        with acting_as(self._caller.actor):
            await next_app(scope, receive, send)


class _Application(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[Any]) -> list[Any]:
        """None: they import libraries such as pydantic, where they are installed, which routes do not use."""
        return plugins


def command_app(gateway: CommandGateway, caller: Caller, factories: Iterable[str]) -> Litestar:
    """The routes that these functions make (MODULE:FUNCTION), or classes of operations are, for this caller."""
    handlers = []
    for factory in factories:
        module, _, name = factory.partition(":")
        make = getattr(import_module(module), name)
        worker = cast(Gateway, gateway)
        if isinstance(make, type):
            handlers += operations_of(worker, make)
            continue
        at = (NamedTenant(worker),) if "at" in signature(make).parameters else ()
        handlers += make(worker, *at)
    return _Application(
        route_handlers=handlers,
        middleware=[_Calling(caller)],
        exception_handlers={HTTPException: error_response, Exception: error_response},
        openapi_config=None,
        logging_config=None,
    )
