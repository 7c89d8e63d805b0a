"""Applications made quickly: a process that serves makes one, tests make one each.

Litestar reads each handler's signature anew for each application, maps all routes anew for each handler that it
registers, and checks the whole tree of routes after each. That was most of the 0.3 s of CPU time of an application.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from litestar._asgi.asgi_router import ASGIRouter
from litestar._signature import SignatureModel
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
        code = getattr(function, "__code__", None)
        if code is None or function.__defaults__ or function.__kwdefaults__:
            return read(function, namespace)
        if code not in signatures:
            signatures[code] = read(function, namespace)
        return signatures[code]

    def create(*, parsed_signature: ParsedSignature, **rest: Any) -> type[SignatureModel]:
        shared = signatures.get(getattr(rest["fn"], "__code__", None)) is parsed_signature
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


@contextmanager
def registering_at_once() -> Iterator[None]:
    """Of applications made within: keep the map of routes, and make the tree of routes when all are registered."""
    maps: dict[int, tuple[Router, _RouteMap]] = {}
    waiting: dict[int, ASGIRouter] = {}
    read, make = Router.route_handler_method_map, ASGIRouter.construct_routing_trie

    def route_handler_method_map(self: Router) -> dict[str, dict[str, Any]]:
        return maps.setdefault(id(self), (self, _RouteMap()))[1].of(self.routes)

    def construct_routing_trie(self: ASGIRouter) -> None:
        waiting[id(self)] = self

    Router.route_handler_method_map = property(route_handler_method_map)  # type: ignore[assignment]
    ASGIRouter.construct_routing_trie = construct_routing_trie  # type: ignore[method-assign]
    try:
        yield
    finally:
        Router.route_handler_method_map = read  # type: ignore[method-assign]
        ASGIRouter.construct_routing_trie = make  # type: ignore[method-assign]
    for router in waiting.values():
        router.construct_routing_trie()
