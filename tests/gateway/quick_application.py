"""Applications made quickly: a process that serves makes one, tests make one each.

Litestar reads each handler's signature anew for each application, maps all routes anew for each handler that it
registers, and checks the whole tree of routes after each. That was most of the 0.3 s of CPU time of an application. It
also prepares 500 handlers to be called, of which a test calls a few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

from litestar import Litestar
from litestar._asgi.asgi_router import ASGIRouter
from litestar._kwargs import KwargsModel
from litestar._signature import SignatureModel
from litestar.handlers import HTTPRouteHandler
from litestar.router import Router
from litestar.routes import BaseRoute, HTTPRoute
from litestar.utils.signature import ParsedSignature


def read_signatures_once() -> None:
    """Have Litestar read the signature of each handler in the code once for all gateways of a process.

    It also makes a decoder of each. A signature follows from the code alone where nothing has a default; the types that
    a decoder knows beside are those of Litestar's plugins, which all gateways have.
    """
    read, make = ParsedSignature.from_fn, SignatureModel.create
    signatures: dict[Any, ParsedSignature] = {}
    decoders: dict[int, type[SignatureModel]] = {}  # id of a signature, which stays in `signatures` -> its decoder

    def from_fn(function: Any, namespace: dict[str, Any]) -> ParsedSignature:
        code = getattr(unwrap(function), "__code__", None)
        if code is None or function.__defaults__ or function.__kwdefaults__:
            return read(function, namespace)
        if code not in signatures:
            signatures[code] = read(function, namespace)
        return signatures[code]

    def create(*, parsed_signature: ParsedSignature, **rest: Any) -> type[SignatureModel]:
        shared = signatures.get(getattr(unwrap(rest["fn"]), "__code__", None)) is parsed_signature
        if not shared or rest["dependency_name_set"] or rest["data_dto"]:
            return make(parsed_signature=parsed_signature, **rest)
        name = id(parsed_signature)
        if name not in decoders:
            decoders[name] = make(parsed_signature=parsed_signature, **rest)
        return decoders[name]

    ParsedSignature.from_fn = staticmethod(from_fn)  # type: ignore[method-assign,assignment]
    SignatureModel.create = staticmethod(create)  # type: ignore[method-assign,assignment]


class _RouteMap:
    """The handlers of a router by path and method, as Litestar has them, without those of routes it has seen."""

    def __init__(self) -> None:
        self._routes: list[BaseRoute] = []
        self._handlers: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def of(self, routes: list[BaseRoute]) -> dict[str, dict[str, Any]]:
        for place, route in enumerate(routes):
            known = self._routes[place] if place < len(self._routes) else None
            if route is known:
                continue
            if known is not None:  # a second method of a path: the route was replaced by one with both
                assert known.path == route.path
                del self._handlers[known.path]
            self._add(route)
        self._routes = list(routes)
        return self._handlers

    def _add(self, route: BaseRoute) -> None:
        assert isinstance(route, HTTPRoute)  # the gateway has no others
        for handler in route.route_handlers:
            for method in handler.http_methods:
                self._handlers[route.path][method] = handler


class _Handlers(dict[Any, tuple[HTTPRouteHandler, KwargsModel | None]]):
    """What a route calls by method: each handler is prepared when it is first called."""

    def __init__(self, route: HTTPRoute, app: Litestar) -> None:
        super().__init__((method, (each, None)) for each in route.route_handlers for method in each.http_methods)
        self._route = route
        self._app = app

    def __getitem__(self, method: Any) -> tuple[HTTPRouteHandler, KwargsModel | None]:
        handler, parameters = super().__getitem__(method)
        if parameters is None:
            handler.on_registration(self._app)
            self[method] = handler, handler.create_kwargs_model(path_parameters=self._route.path_parameters)
        return super().__getitem__(method)


@contextmanager
def registering_at_once() -> Iterator[None]:
    """Of applications made within: keep the map of routes, make the tree of routes when all are registered, and prepare
    handlers when they are called. Tests of the whole application make it without this, as a server does."""
    maps: dict[int, tuple[Router, _RouteMap]] = {}
    waiting: dict[int, ASGIRouter] = {}
    read, make, register = Router.route_handler_method_map, ASGIRouter.construct_routing_trie, Litestar.register

    def route_handler_method_map(self: Router) -> dict[str, dict[str, Any]]:
        return maps.setdefault(id(self), (self, _RouteMap()))[1].of(self.routes)

    def construct_routing_trie(self: ASGIRouter) -> None:
        waiting[id(self)] = self

    def register_without_preparing(self: Litestar, value: Any) -> None:
        for route in Router.register(self, value):
            assert isinstance(route, HTTPRoute)  # the gateway has no others
            route.route_handler_map = _Handlers(route, self)  # type: ignore[assignment]
        self.asgi_router.construct_routing_trie()

    Router.route_handler_method_map = property(route_handler_method_map)  # type: ignore[assignment]
    ASGIRouter.construct_routing_trie = construct_routing_trie  # type: ignore[method-assign]
    Litestar.register = register_without_preparing  # type: ignore[method-assign]
    try:
        yield
    finally:
        Router.route_handler_method_map = read  # type: ignore[method-assign]
        ASGIRouter.construct_routing_trie = make  # type: ignore[method-assign]
        Litestar.register = register  # type: ignore[method-assign]
    for router in waiting.values():
        router.construct_routing_trie()
