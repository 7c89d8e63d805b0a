"""/v1/messages/batches: placeholder until written."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from gateway.services import Gateway


def message_batch_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes."""
    return []
