"""A gateway of a world: the product's own application, given the world's database, bus, disk and replicas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from litestar import Litestar

from billing.exports.jobs import ExportJobs
from billing.prices import PriceCatalog
from billing.receipts.signing_keys import ReceiptKeys
from billing.reservation.hold_service import HoldService
from billing.settlement.settler import Settler
from billing.spool.gateway_epochs import EpochKeeper
from billing.spool.spool import Spool
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.app import create_app, gateway_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import FleetOptions
from gateway.limits.limiter import Limiter
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway, GatewayOptions, GatewayServices
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys
from prompt_cache.promise.shared_prefixes import SharedPrefixes
from response_store.sealing import ThinkingSeal
from simulation.replica import LINK_KEY
from storage.bus import Bus
from storage.database.database import Database
from tenancy.administration.suspension import Suspensions
from tenancy.authenticator import Authenticator
from tenancy.keys import Peppers
from tenancy.rate_limits import LimitCache, RateLimits
from tenancy.repositories import Tenancy
from tenancy.users.service import Users
from tests.gateway.quick_application import read_signatures_once, registering_at_once
from webhooks.addresses import AddressPolicy
from webhooks.endpoints import WebhookEndpoints
from webhooks.signing import SecretCipher

read_signatures_once()
PEPPERS = Peppers({1: b"p" * 32}, 1)
_MASTER = b"m" * 32
TIMEOUTS = RequestTimeouts(request=30.0, retry=4.0, done=2.0, replay=3.0, recovery=20.0)


def make_gateway(
    name: str, epoch: str, folder: Path, database: Database, bus: Bus, model: ServedModel, replicas: Sequence[str]
) -> tuple[Litestar, Gateway]:
    """The application of one worker, and the worker, which is to be started."""
    models = ModelRegistry([model])
    prices = PriceCatalog(database)
    spool = Spool(folder / "spool", epoch)
    scope_keys = ScopeKeys(database, _MASTER)
    options = GatewayOptions(
        timeouts=TIMEOUTS, drain_timeout=5.0, hold_slice=8, allowance_requests=2, database_timeout=3.0
    )
    fleet = Fleet(
        replicas,
        gateway=name,
        link_key=LINK_KEY,
        models=models,
        options=FleetOptions(beat_timeout=3.0, backoff_most=0.25, silence=6.0, credit_window=16, credit_step=4),
        epoch=spool.owner,
    )
    services = GatewayServices(
        name=name,
        database=database,
        authenticator=Authenticator(database, PEPPERS, bus, timeout=options.database_timeout),
        tenancy=Tenancy(database, PEPPERS, bus),
        suspensions=Suspensions(database, bus),
        users=Users(database, _MASTER, bus),
        holds=HoldService(database),
        prices=prices,
        spool=spool,
        settler=Settler(database, spool, prices),
        thinking_seal=ThinkingSeal(_MASTER),
        receipt_keys=ReceiptKeys(b"r" * 32),
        models=models,
        fleet=fleet,
        exports=ExportJobs(database, prices, folder / "exports"),
        webhooks=WebhookEndpoints(database, SecretCipher(_MASTER), AddressPolicy(), ()),
        limiter=Limiter(LimitCache(database, bus, timeout=options.database_timeout), None, name),
        rate_limits=RateLimits(database, bus),
        domains=CacheDomains(b"s" * 32, scope_keys, retention=3600.0, shared=SharedPrefixes(database, scope_keys)),
        scope_keys=scope_keys,
        epoch=EpochKeeper(database, spool, name, folder=str(folder)),
        options=options,
    )
    with registering_at_once():
        app = create_app(services)
    return app, gateway_of(app)
