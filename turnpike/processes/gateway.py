"""One gateway process: what its application needs, built from the settings, and served on a socket."""

from __future__ import annotations

import gc
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from billing.exports.jobs import ExportJobs
from billing.settlement.settler import Settler
from billing.spool.gateway_epochs import EpochKeeper
from billing.spool.spool import Spool
from file_store.blobs import FolderBlobs
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import FleetOptions
from gateway.http.connections import raise_open_files_limit
from gateway.limits.limiter import KEEP_US, LEASE_US, Limiter
from gateway.limits.redis_buckets import RedisBuckets
from gateway.served_models.registry import ModelRegistry
from gateway.server import GatewayServer
from gateway.services import GatewayOptions, GatewayServices
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys
from prompt_cache.promise.shared_prefixes import SharedPrefixes
from response_store.sealing import ThinkingSeal
from tenancy.authenticator import Authenticator
from tenancy.keys import Peppers
from tenancy.rate_limits import LimitCache
from tenancy.rights.key_limits import parse_networks
from turnpike.admin_services import AdminServices
from turnpike.processes.listener import is_loopback
from turnpike.settings.data_folder import folder_identity
from turnpike.settings.secrets import Secrets, receipt_keys
from turnpike.settings.settings import Settings

_KEY_TIMEOUT_S = 1.0
"""A request waits no longer for its project's data key; without it, its KV stays on the device."""
_GC_THRESHOLDS = 50_000, 20, 50
"""Far above Python's own, since most objects of a request are freed by their reference counts."""


def tune_garbage_collector() -> None:
    """Never collect the objects that exist now, and collect later ones seldom. Called once, when all is built."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


@asynccontextmanager
async def open_gateway_services(
    settings: Settings, admin: AdminServices, secrets: Secrets, registry: ModelRegistry
) -> AsyncIterator[GatewayServices]:
    """What the gateway's application is made of. Raises ModelWithoutPrice, AddressError, GatewayNameTaken, OSError,
    InvalidLimit."""
    raise_open_files_limit()
    name = settings.own_gateway_name
    proxies = [one for one in settings.trusted_proxies.split(",") if one.strip()]
    epoch = f"{name}-{time.time_ns():x}"
    await registry.check_prices(admin.prices)
    spool = Spool(settings.data / "spool", epoch)
    scope_keys = ScopeKeys(admin.database, secrets.master_key, timeout=min(_KEY_TIMEOUT_S, settings.database_wait))
    buckets = RedisBuckets(settings.redis_url, LEASE_US, KEEP_US) if settings.redis_url else None
    keeper = EpochKeeper(admin.database, spool, name, folder=folder_identity(settings.data))
    try:
        await keeper.start()
        yield GatewayServices(
            name=name,
            database=admin.database,
            authenticator=Authenticator(
                admin.database,
                Peppers(secrets.peppers, secrets.pepper_current),
                admin.bus,
                timeout=settings.database_wait,
            ),
            tenancy=admin.tenancy,
            suspensions=admin.suspensions,
            users=admin.users,
            identity=admin.identity,
            holds=admin.holds,
            prices=admin.prices,
            spool=spool,
            settler=Settler(admin.database, spool, admin.prices),
            models=registry,
            fleet=Fleet(
                settings.replica_addresses,
                gateway=name,
                link_key=secrets.link_key,
                models=registry,
                options=FleetOptions(lookup=settings.replica_lookup),
                epoch=epoch,
            ),
            exports=ExportJobs(admin.database, admin.prices, settings.exports, settings.export_keep_days * 86_400),
            blobs=FolderBlobs(settings.files),
            webhooks=admin.webhooks,
            payments=admin.payments,
            limiter=Limiter(LimitCache(admin.database, admin.bus, timeout=settings.database_wait), buckets, name),
            rate_limits=admin.rate_limits,
            epoch=keeper,
            domains=CacheDomains(
                secrets.scope_secret,
                scope_keys,
                retention=settings.cache_retention,
                shared=SharedPrefixes(admin.database, scope_keys),
            ),
            thinking_seal=ThinkingSeal(secrets.master_key),
            receipt_keys=receipt_keys(secrets),
            scope_keys=scope_keys,
            options=GatewayOptions(
                body_limit=settings.body_limit,
                drain_timeout=settings.drain_timeout,
                public_prices=settings.public_prices,
                hold_slice=settings.hold_slice_tokens,
                lease_tokens=settings.lease_limit_tokens,
                response_retention=settings.response_retention,
                file_quota=settings.file_quota,
                allowance_requests=settings.allowance_requests,
                connections=settings.max_connections,
                connections_per_address=settings.max_connections_per_address,
                public_metrics=not settings.metrics_listen and is_loopback(settings.host),
                trusted_proxies=parse_networks(proxies, "trusted_proxies") if proxies else (),
                database_timeout=settings.database_wait,
                waterfall_days=settings.waterfall_keep_days,
                timeouts=RequestTimeouts(request=settings.request_timeout, start=settings.replica_wait),
                most_waiting=settings.replica_wait_requests,
                cors_origins=settings.allowed_origins,
                reminder_days=settings.reminder_levels,
                tracing=settings.trace_options,
                costs=settings.device_costs,
            ),
        )
    finally:
        await keeper.stop()
        await spool.close()


async def serve_until_signal(server: GatewayServer, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM. uvicorn raises the signal again at its end, while we clean up: it is ignored."""
    tune_garbage_collector()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    await server.serve(sockets=[listener])
