"""The HTTP server of a gateway worker: uvicorn, which drains from the moment that it is told to stop."""

from __future__ import annotations

import socket

import uvicorn
from litestar import Litestar

from gateway.app import gateway_of
from gateway.http_protocol import HttpProtocol

_AFTER_DRAIN_S = 20
KEEP_ALIVE_S = 75
"""How long a connection may lie idle: longer than clients and proxies keep theirs (60 s is usual), or one of them sends
a request at the moment at which we hang up."""


class GatewayServer(uvicorn.Server):
    """Serves one application. At SIGTERM or SIGINT: nothing new is taken, streams get their time, the rest is ended."""

    def __init__(self, app: Litestar, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._gateway = gateway_of(app)
        self._gateway.on_over = self._leave
        drain_timeout = self._gateway.services.options.drain_timeout
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="uvloop",
                http=HttpProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(drain_timeout) + _AFTER_DRAIN_S,
            )
        )

    @property
    def over(self) -> bool:
        """Whether the worker stops since somebody else ended its run."""
        return self._gateway.over

    def _leave(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain while uvicorn waits for its connections to end, then stop the worker."""
        self._gateway.begin_drain()
        await super().shutdown(sockets)
