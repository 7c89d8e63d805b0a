"""One gateway process: the rooms that a request passes through, built from the settings and served on a socket."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from billing.epochs import EpochKeeper
from billing.exports.jobs import ExportJobs
from billing.settler import Settler
from billing.spool import Spool
from gateway.admission.lifetimes import Lifetimes
from gateway.connections import raise_open_files_limit
from gateway.domains import CacheDomains
from gateway.fleet.fleet import Fleet
from gateway.registry import Registry
from gateway.server import GatewayServer
from gateway.services import GatewayOptions, GatewayServices
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.keys import Peppers
from turnpike import garbage, listening, webhooks
from turnpike.data_folder import identity
from turnpike.office import Office
from turnpike.secrets import Secrets
from turnpike.settings import Settings


@asynccontextmanager
async def services(
    settings: Settings, office: Office, known: Secrets, registry: Registry
) -> AsyncIterator[GatewayServices]:
    """Everything that the gateway's application is made of. Raises ModelWithoutPrice, AddressError, GatewayNameTaken,
    OSError."""
    raise_open_files_limit()
    name = settings.own_gateway_name
    epoch = f"{name}-{time.time_ns():x}"
    await registry.check_prices(office.prices)
    spool = Spool(settings.data / "spool", epoch)
    keeper = EpochKeeper(office.database, spool, name, folder=identity(settings.data))
    try:
        await keeper.start()
        yield GatewayServices(
            name=name,
            database=office.database,
            authenticator=Authenticator(
                office.database,
                Peppers(known.peppers, known.pepper_current),
                office.bus,
                patience=settings.database_timeout,
            ),
            holds=office.holds,
            prices=office.prices,
            spool=spool,
            settler=Settler(office.database, spool, office.prices),
            models=registry,
            fleet=Fleet(
                settings.replica_addresses, gateway=name, link_key=known.link_key, models=registry, epoch=epoch
            ),
            exports=ExportJobs(office.database, office.prices, settings.exports),
            webhooks=webhooks.endpoints(settings, office.database, known),
            epoch=keeper,
            domains=CacheDomains(known.scope_secret, known.master_key),
            options=GatewayOptions(
                body_limit=settings.body_limit,
                drain_timeout=settings.drain_timeout,
                public_prices=settings.public_prices,
                hold_slice=settings.hold_slice_tokens,
                allowance_requests=settings.allowance_requests,
                connections=settings.max_connections,
                connections_per_address=settings.max_connections_per_address,
                public_metrics=not settings.metrics_listen and listening.is_loopback(settings.host),
                database_patience=settings.database_timeout,
                lifetimes=Lifetimes(request=settings.request_timeout),
            ),
        )
    finally:
        await keeper.stop()
        await spool.close()


async def serve_until_signal(server: GatewayServer, listener: socket.socket) -> None:
    """Serve until a signal. uvicorn raises it again when it is done; we are cleaning up then, so ignore it."""
    garbage.keep_what_is_there()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    await server.serve(sockets=[listener])
