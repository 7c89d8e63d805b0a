"""Puts a gateway worker together: the objects it is given, those it makes of them, their start and stop.

What a worker is made of is imported when one is made: commands have routes, and no worker.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct, field

from billing.reservation.allowances import BUSY
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.errors import NotAuthenticated, SuspendedError
from gateway.fleet.replica_rates import DeviceCosts, FleetRates
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable
from tenancy.authenticator import AuthenticationFailed
from tracing.options import TraceOptions

if TYPE_CHECKING:
    from billing.exports.jobs import ExportJobs
    from billing.payments.provider import PaymentProvider
    from billing.prices import PriceCatalog
    from billing.receipts.signing_keys import ReceiptKeys
    from billing.reservation.hold_service import HoldService
    from billing.settlement.settler import Settler
    from billing.spool.gateway_epochs import EpochKeeper
    from billing.spool.spool import Spool
    from file_store.blobs import Blobs
    from gateway.adapters.residency_recorder import ResidencyRecorder
    from gateway.admission.prepared_request import Payer
    from gateway.fleet.fleet import Fleet
    from gateway.limits.limiter import Limiter
    from gateway.served_models.registry import ModelRegistry
    from prompt_cache.promise.cache_domains import CacheDomains
    from prompt_cache.promise.scope_keys import ScopeKeys
    from response_store.sealing import ThinkingSeal
    from storage.database.database import Database
    from tenancy.administration.suspension import Suspension, Suspensions
    from tenancy.authenticator import Authenticator
    from tenancy.identity.service import Identity
    from tenancy.rate_limits import RateLimits
    from tenancy.repositories import Tenancy
    from tenancy.rights.key_limits import Network
    from tenancy.users.service import Users
    from tracing.exporter import Traces
    from webhooks.endpoints import WebhookEndpoints

_SETTLE_S = 10
_DAY_S = 86_400
_PROBE_S = 5.0
"""How often the metrics are told whether database and bus answer."""
_PROBES_OF_HOLDS = 12
"""After so many of them it is asked how old the oldest hold is."""
_REFRESH_S = 1.0
"""How often one of several workers writes its metrics for the others to publish."""


class GatewayOptions(Struct, frozen=True, kw_only=True):
    """Settings of a worker; times in seconds, sizes in bytes.

    `keep_alive`: a stream that was silent for so long gets a comment, and status 200 if it had none yet.
    `client_timeout`: a client that reads nothing, or sends nothing of its body, for so long is disconnected.
    `public_prices`: whether the base prices are shown without a key. `hold_slice`: output tokens of each choice whose
    money is held at a time; 0: all. `allowance_requests`: a tenant with so many requests at once, or four times as
    many in a second, gets money set aside for them; 0: never. `lease_tokens`: how many tokens a project may have in
    live leases; 0: any number.
    `connections`: open connections at most; `connections_per_address`: from one address, 0 for any number.
    `response_retention`: how long responses are kept where their project says nothing else; 0: never. `file_quota`:
    bytes of files that a project may keep.
    `public_metrics`: whether /metrics is served beside the API. `trusted_proxies`: from where
    X-Forwarded-For is believed. `database_timeout`: how long a request waits for the
    database before it is answered with 503. `waterfall_days`: how long the worker keeps where the time of
    requests went, and which were refused; 0: not at all. `cors_origins`: whose pages may call /v1 from a browser, "*"
    for all. `reminder_days`: days after an invoice's due date at which the worker reminds of it. `tracing`: which
    requests are traced, and for whom. `costs`: what replicas' hardware costs, and its limits. `most_waiting`: requests
    that wait at once for a replica, where none of their model is ready.
    """

    body_limit: int = 8 * 1024 * 1024
    keep_alive: float = 5.0
    client_timeout: float = 30.0
    drain_timeout: float = 30.0
    public_prices: bool = False
    hold_slice: int = 0
    lease_tokens: int = 0
    response_retention: int = 30 * 86_400
    file_quota: int = 16 * 1024**3
    allowance_requests: int = BUSY
    connections: int = 10_000
    connections_per_address: int = 0
    public_metrics: bool = True
    trusted_proxies: tuple[Network, ...] = ()
    database_timeout: float = 5.0
    waterfall_days: float = 7.0
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    cors_origins: tuple[str, ...] = ()
    reminder_days: tuple[int, ...] = (3, 14, 30)
    tracing: TraceOptions = TraceOptions()
    costs: DeviceCosts = DeviceCosts()
    most_waiting: int = 1024


class GatewayServices(Struct, frozen=True, kw_only=True):
    """What a worker is given. `name` stays the same when the worker is restarted; the spool's owner is its epoch, this
    run of it, under which holds are taken and requests are sent.

    The caller opens and closes the database, the spool and the bus; the worker starts and stops the rest.
    """

    name: str
    database: Database
    authenticator: Authenticator
    tenancy: Tenancy
    suspensions: Suspensions
    users: Users
    identity: Identity
    holds: HoldService
    prices: PriceCatalog
    spool: Spool
    settler: Settler
    models: ModelRegistry
    fleet: Fleet
    domains: CacheDomains
    thinking_seal: ThinkingSeal
    receipt_keys: ReceiptKeys
    scope_keys: ScopeKeys | None = None
    """The keys that `domains` has: the worker tells replicas which were destroyed."""
    exports: ExportJobs
    blobs: Blobs | None = None
    """Where the content of files lies; None where there are none, and no batches."""
    webhooks: WebhookEndpoints
    payments: PaymentProvider | None = None
    """Who collects money; None if nobody does. The caller closes it."""
    limiter: Limiter
    """The worker starts and stops it."""
    rate_limits: RateLimits
    epoch: EpochKeeper | None = None
    """Where the caller took the name already; the worker stops it."""
    options: GatewayOptions = field(default_factory=GatewayOptions)


class Gateway:
    """One running worker. `on_over` is called when its epoch turns out to be over although it lives: it has to stop."""

    def __init__(self, services: GatewayServices) -> None:
        from batch_store.running import BatchWork
        from batch_store.store import BatchStore
        from billing.receipts.answer_receipts import ReceiptIssuer
        from billing.receipts.policies import ReceiptPolicies
        from billing.reservation.allowances import Allowances
        from billing.reservation.hooked_holds import HookedHolds
        from billing.service_levels.service_hours import ServiceHours
        from billing.spool.gateway_epochs import EpochKeeper
        from file_store.adapter_residency import AdapterResidency
        from file_store.adapters import AdapterStore
        from file_store.store import FileStore
        from file_store.uploads import UploadStore
        from gateway.adapters.adapted_models import AdaptedModels
        from gateway.adapters.checking import MOST_CHECKS
        from gateway.adapters.residency_recorder import ResidencyRecorder
        from gateway.admission.admission import Admission
        from gateway.admission.cache_leases import LeaseHook
        from gateway.admission.fair_threads import FairThreads
        from gateway.admission.lease_confirmations import LeaseConfirmations
        from gateway.batches.batch_run import RunLimits
        from gateway.batches.line_places import LinePlaces
        from gateway.batches.line_requests import LineRequests
        from gateway.batches.runner import BatchRunner
        from gateway.generation.dependencies import GenerationDependencies
        from gateway.generation.leased_blocks import LeasedBlocks
        from gateway.generation.request_history import RequestHistory
        from gateway.generation.running_tasks import RunningTasks
        from gateway.generation.shared_writes import SharedWrites
        from gateway.http.body_budget import BodyBudget
        from gateway.idempotency.keyed_requests import KeyedRequests
        from gateway.kept_responses.background import BackgroundResponses
        from gateway.kept_responses.event_feeds import EventFeeds
        from gateway.kept_responses.keeper import ResponseKeeper
        from gateway.metering.lease_outcomes import LeaseOutcomes
        from gateway.metering.usage_recorder import RefusedEntries, UsageRecorder
        from gateway.metrics.gateway_metrics import GatewayMetrics
        from gateway.metrics.process_metrics import version
        from gateway.recovery.background_tasks import BackgroundTasks
        from gateway.recovery.journal_recovery import JournalRecovery
        from gateway.recovery.lost_attempts import LostAttempts
        from gateway.recovery.orphaned_holds import OrphanedHolds
        from prompt_cache.promise.lease_store import LeaseStore
        from response_store.idempotency import IdempotencyClaims
        from response_store.policies import ResponsePolicies
        from response_store.running import RunningResponses
        from response_store.store import ResponseStore
        from storage.disk_space import DiskWatch
        from waterfall.refused_requests import RefusedRequestStore
        from waterfall.refused_writer import RefusedRequestWriter
        from waterfall.store import WaterfallStore
        from waterfall.writer import WaterfallWriter

        self.services = services
        self.on_over: Callable[[], None] = lambda: None
        self.over = False
        self.start_problem: str | None = None  # what whoever started it has to do before it counts as ready
        epoch = services.spool.owner
        self.open_connections: Sized = ()
        """The connections of clients that the server has."""
        self.lingering_connections: Sized = ()
        """Those that are being closed while their client still sends or reads."""
        self.metrics = GatewayMetrics(services.name)
        self.fleet_rates = FleetRates(services.fleet.links, services.options.costs)
        self.disk = DiskWatch([services.spool.folder, *services.database.folders])
        self.refused = RefusedEntries(services.database)
        self.metrics.watch(
            fleet=services.fleet,
            spool=services.spool,
            settler=services.settler,
            disk=self.disk,
            connections=lambda: len(self.open_connections),
            refused=lambda: self.refused.count,
            lingering=lambda: len(self.lingering_connections),
            limits_degraded=lambda: services.limiter.degraded,
            waterfalls_dropped=lambda: self.waterfalls.dropped,
            rates=self.fleet_rates,
            backlogs={model.name: partial(services.fleet.backlog, model.name) for model in services.models},
        )
        self.allowances = Allowances(
            services.holds,
            services.spool,
            epoch,
            busy=services.options.allowance_requests,
            settle=services.settler.settle_first,
        )
        self.leases = LeaseStore(services.database, services.options.lease_tokens)
        self.lease_outcomes = LeaseOutcomes(self.leases)
        self.leased_holds = HookedHolds(services.holds, LeaseHook(self.leases))
        self.confirmations = LeaseConfirmations(self.leases, self.leased_holds)
        self.recorder = UsageRecorder(services.spool, self.allowances, self.lease_outcomes)
        self.threads = FairThreads()
        self.bodies = BodyBudget()
        self.pings = CircuitBreaker(services.options.database_timeout)
        self.questions = self.new_breaker()
        """How long handlers that are not guarded (`guarded`) wait for the database."""
        self.files: FileStore | None = None
        self.uploads: UploadStore | None = None
        self.adapters: AdapterStore | None = None
        if services.scope_keys is not None and services.blobs is not None:
            self.files = FileStore(services.database, services.scope_keys, services.blobs, services.options.file_quota)
            self.uploads, self.adapters = UploadStore(self.files), AdapterStore(self.files)
        self.residency: ResidencyRecorder | None = None
        if self.adapters is not None:
            residency = AdapterResidency(services.database)
            self.residency = ResidencyRecorder(services.fleet.links, self.adapters, residency)
        self.adapter_checks = asyncio.Semaphore(MOST_CHECKS)
        """Adapters that are uploaded wait for each other here."""
        self.adapted_models = AdaptedModels(services.models, self.adapters, services.fleet.adapters)
        self.admission = Admission(
            epoch,
            fleet=services.fleet,
            prices=services.prices,
            holds=services.holds,
            allowances=self.allowances,
            leased=self.leased_holds,
            domains=services.domains,
            timeouts=services.options.timeouts,
            threads=self.threads,
            database_timeout=services.options.database_timeout,
            slice_tokens=services.options.hold_slice,
            models=self.adapted_models,
        )
        self.attempts = LostAttempts(
            services.database,
            self.recorder,
            services.fleet,
            services.spool,
            refused=self.refused,
            timeout=services.options.timeouts.replay,
        )
        self.writes = SharedWrites()
        self.leased_blocks = LeasedBlocks(self.leases.blocks, services.domains, self.threads, services.fleet.purge)
        self.history = RequestHistory(services.database, services.domains, services.prices)
        self.service_hours = ServiceHours(services.database)
        kept_s = services.options.waterfall_days * _DAY_S
        self.waterfalls = WaterfallWriter(WaterfallStore(services.database, kept_s), enabled=kept_s > 0)
        self.traces: Traces | None = None
        if services.options.tracing.endpoint:
            from tracing.exporter import Traces

            self.traces = Traces(services.options.tracing, services.name, version(), self.metrics.traced)
        services.settler.on_settled = self._settled
        self.receipt_policies = ReceiptPolicies(services.database)
        self.refused_requests = RefusedRequestWriter(RefusedRequestStore(services.database, kept_s), enabled=kept_s > 0)
        self.requests = RunningTasks(
            GenerationDependencies(
                self.admission,
                services.fleet,
                services.domains,
                self.recorder,
                self.attempts,
                self.refused,
                self.metrics,
                self.disk,
                self.writes,
                self.leased_blocks,
                self.history,
                self.service_hours,
                self.confirmations,
                self.waterfalls,
                ReceiptIssuer(services.receipt_keys),
                self.traces,
            ),
            self._check_payer,
            self._check_key,
            services.options.most_waiting,
        )
        store = None if services.scope_keys is None else ResponseStore(services.database, services.scope_keys)
        self.response_keeper = ResponseKeeper(
            store,
            ResponsePolicies(services.database),
            self.new_breaker(),
            services.options.response_retention,
            self.threads,
        )
        self.background_responses: BackgroundResponses | None = None
        self.event_feeds: EventFeeds | None = None
        self.keyed_requests: KeyedRequests | None = None
        if store is not None:
            running = RunningResponses(store, epoch)
            self.background_responses = BackgroundResponses(
                running,
                store,
                self.response_keeper,
                requests=self.requests,
                admission=self.admission,
                models=services.models,
                limiter=services.limiter,
            )
            self.event_feeds = EventFeeds(self.background_responses, self.response_keeper, self.requests)
            self.keyed_requests = KeyedRequests(
                IdempotencyClaims(store, epoch), self.requests, self.new_breaker(), self.response_keeper
            )
        self.batches: BatchRunner | None = None
        if self.files is not None:
            self.batches = BatchRunner(
                BatchWork(BatchStore(self.files), epoch),
                LineRequests(services.authenticator, self.response_keeper.keeps_content),
                RunLimits(LinePlaces(), lambda: self.requests.draining, self.recorder.once_release),
            )
        services.suspensions.on_end = self._end_suspended
        self.orphaned_holds = OrphanedHolds(
            epoch, database=services.database, holds=services.holds, fleet=services.fleet
        )
        self.recovery = JournalRecovery(
            epoch,
            database=services.database,
            holds=services.holds,
            prices=services.prices,
            recorder=self.recorder,
            fleet=services.fleet,
            orphaned_holds=self.orphaned_holds,
            attempts=self.attempts,
            refused=self.refused,
            leases=self.lease_outcomes,
        )
        self._epoch = services.epoch or EpochKeeper(services.database, services.spool, services.name)
        self._epoch.on_over = self._end
        self._tasks = BackgroundTasks()
        self._drain: asyncio.Task[None] | None = None

    def new_breaker(self) -> CircuitBreaker:
        """How long something of its own kind waits for the database: slow ones of it delay nothing else."""
        return CircuitBreaker(self.services.options.database_timeout, self.pings)

    async def start(self) -> None:
        """Begin. Raises ModelWithoutPrice, GatewayNameTaken, DatabaseUnavailable. What earlier spools hold is read
        before a replica can repeat it."""
        from gateway.fleet.forgotten_scopes import ForgottenScopes

        services = self.services
        await services.models.check_prices(services.prices)
        await services.authenticator.start()
        await services.suspensions.start()
        await services.users.start()
        await services.limiter.start()
        await self._epoch.start()
        await services.settler.start()
        services.fleet.on_stray = self.recovery.stray
        self.orphaned_holds.start()
        services.fleet.start()
        self._tasks.start(self._probe_dependencies(), self.bodies.return_memory(), self.fleet_rates.run())
        if services.scope_keys is not None:
            fleet, keys = services.fleet, services.scope_keys
            forgotten = ForgottenScopes(keys, services.domains, fleet.links, on_changed=fleet.routing.forget_scope)
            self._tasks.start(forgotten.run())
        if services.domains.shared is not None:
            self._tasks.start(services.domains.shared.run())
        if self.metrics.shared:
            self._tasks.start(self._refresh_metrics())
        if self.background_responses is not None:
            self._tasks.start(self.background_responses.adopt_orphans())
        if self.keyed_requests is not None:
            self._tasks.start(self.keyed_requests.beat())
        if self.batches is not None:
            self._tasks.start(self.batches.run())
        if self.residency is not None:
            self._tasks.start(self.residency.run())

    async def _probe_dependencies(self) -> None:
        """Tell the metrics, again and again, whether the database and the bus answer."""
        from billing.holds.age import oldest_hold_us

        for probe in itertools.count():
            try:
                await self.pings.wait(self.services.database.ping())
                if probe % _PROBES_OF_HOLDS == 0:
                    age_us = await self.pings.wait(oldest_hold_us(self.services.database))
                    self.metrics.oldest_hold(age_us / 1e6)
            except DatabaseUnavailable:
                answers = False
            else:
                answers = True
            self.metrics.reachable(database=answers, bus=self.services.authenticator.hears_revocations)
            await asyncio.sleep(_PROBE_S)

    async def _refresh_metrics(self) -> None:
        while True:
            self.metrics.refresh()
            await asyncio.sleep(_REFRESH_S)

    def _settled(self, request_ids: list[uuid.UUID]) -> None:
        """These requests were billed just now: their times are whole."""
        if self.traces is not None:
            self.traces.settled(request_ids)
        self.waterfalls.settled(request_ids)

    def _end(self, why: str) -> None:
        """Stop: this worker's epoch was declared over, so others may release the holds that it takes."""
        self.over = True
        self.requests.begin_drain()
        self.on_over()

    def _check_payer(self, payer: Payer) -> None:
        """Raise SuspendedError for whoever was suspended since the request was authenticated."""
        if (what := self.services.suspensions.find(payer.tenant_id, payer.project_id)) is not None:
            raise SuspendedError(what)

    async def _check_key(self, payer: Payer) -> None:
        """Raise NotAuthenticated if the key was revoked, or has expired, since the request was kept."""
        try:
            await self.services.authenticator.check_valid(payer.key)
        except AuthenticationFailed as error:
            raise NotAuthenticated("The key of this request was revoked, or has expired.") from error

    def _end_suspended(self, suspension: Suspension) -> None:
        self.requests.end_all_of(suspension.tenant_id, suspension.project_id)

    def begin_drain(self) -> asyncio.Task[None]:
        """Start no request; give those that run time to end. The task is done when nothing runs any more."""
        if self._drain is None:
            self._drain = asyncio.create_task(self.requests.drain(self.services.options.drain_timeout))
            self.requests.begin_drain()
        return self._drain

    async def stop(self) -> None:
        """Drain, hang up, settle what can be settled now; the rest stays in the spool."""
        await self.begin_drain()
        if self.batches is not None:
            await self.batches.stop()
        if self.keyed_requests is not None:
            await self.keyed_requests.close()
        if self.background_responses is not None:
            await self.background_responses.stop()
        if self.response_keeper.store is not None:
            await self.response_keeper.store.close()
        await self.attempts.stop()
        await self.orphaned_holds.stop()
        await self.recovery.stop()
        if self.residency is not None:
            with suppress(DatabaseUnavailable):  # what is not passed on is not billed
                await self.questions.wait(self.residency.pass_on())
        await self.services.fleet.stop()
        await self.leased_blocks.stop()
        await self.confirmations.close()
        await self.leased_holds.close()
        await self.allowances.close()
        await self.lease_outcomes.close()
        await self.history.stop()
        await self.service_hours.stop()
        await self.services.settler.drain(_SETTLE_S)
        await self.services.settler.stop()
        await self.waterfalls.stop()
        if self.traces is not None:
            await self.traces.stop()
        await self.refused_requests.stop()
        await self._tasks.stop()
        self.threads.close()
        await self._epoch.stop()
        await self.services.suspensions.close()
        await self.services.limiter.close()
        await self.services.authenticator.close()
        await self.services.prices.close()


def guarded(gateway: Gateway, routes: Iterable[HTTPRouteHandler]) -> list[HTTPRouteHandler]:
    """The routes, each of which waits for the database by a circuit breaker of its own."""

    def guard(handler: Callable[..., Any], breaker: CircuitBreaker) -> Callable[..., Any]:
        @wraps(handler)
        async def answer(*args: Any, **kwargs: Any) -> Any:
            return await breaker.guard(handler(*args, **kwargs))

        return answer

    return [route(guard(route.fn, gateway.new_breaker())) for route in routes]
