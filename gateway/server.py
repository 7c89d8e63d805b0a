"""The HTTP server of a gateway worker: uvicorn with our HTTP protocol, connection limits and draining."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, cast

import uvicorn
from litestar import Litestar

from gateway.app import create_internal_app, gateway_of
from gateway.http.connections import Connections
from gateway.http.http_protocol import HttpProtocol

_AFTER_DRAIN_S = 20
KEEP_ALIVE_S = 75
"""How long a connection may be idle. Clients and proxies usually close theirs after 60 s: were ours shorter, a request
could meet a connection that is being closed."""
_INTERNAL_CONNECTIONS = 100
_DRAIN_POLL_S = 0.05


class GatewayServer(uvicorn.Server):
    """Serves one application. At SIGTERM or SIGINT it refuses new requests, gives running ones the drain timeout to
    end, and ends the rest.

    `internal` is a listening socket for metrics and health only (`gateway.app.create_internal_app`). Its connections
    have a limit of their own, so that a full public port does not keep probes out.
    """

    def __init__(
        self, app: Litestar, *, host: str = "127.0.0.1", port: int = 0, internal: socket.socket | None = None
    ) -> None:
        self._gateway = gateway_of(app)
        self._gateway.on_over = self._leave
        self._internal = internal
        options = self._gateway.services.options
        self.connections = Connections(options.connections, options.connections_per_address)
        self._gateway.open_connections = self.connections
        self._gateway.lingering_connections = self.connections.lingering
        self.connections.lingering.on_cut_off = self._gateway.metrics.cut_off
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="uvloop",
                http=cast(Any, partial(HttpProtocol, connections=self.connections)),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # gateway.http.client_address reads them, from proxies that are trusted
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(options.drain_timeout) + _AFTER_DRAIN_S,
            )
        )

    @property
    def over(self) -> bool:
        """Whether the worker stops because another process ended its epoch."""
        return self._gateway.over

    def _leave(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen."""
        await super().startup(sockets)
        if self._internal is not None and self.started:
            connections = Connections(_INTERNAL_CONNECTIONS)
            app = create_internal_app(self._gateway)
            protocol = partial(
                HttpProtocol, self.config, self.server_state, self.lifespan.state, connections=connections, app=app
            )
            loop = asyncio.get_running_loop()
            self.servers.append(await loop.create_server(protocol, sock=self._internal, backlog=self.config.backlog))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then stop the worker.

        It listens while requests run: a socket that other processes keep open would take connections that nobody
        answers, and `/readyz` has to say 503. Each connection ends after its response; one whose request is still on
        its way stays for that, and is not reset.
        """
        drain = self._gateway.begin_drain()
        self.connections.draining = True
        for connection in list(self.server_state.connections):
            if cast(HttpProtocol, connection).cycle is not None:
                connection.shutdown()
        while not (drain.done() or self.force_exit):  # noqa: ASYNC110  # uvicorn's is a flag
            await asyncio.sleep(_DRAIN_POLL_S)
        await super().shutdown(sockets)
