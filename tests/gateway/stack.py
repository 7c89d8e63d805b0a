"""A whole gateway for a test: database, money, key, tiny model, fake replica, a real uvicorn on a free port."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn.server
from argon2 import PasswordHasher
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from sqlalchemy import text

from billing.accounts.balances import Balances
from billing.exports.jobs import ExportJobs
from billing.prices import PriceCatalog
from billing.receipts.signing_keys import ReceiptKeys
from billing.reservation.hold_service import HoldService
from billing.settlement.settler import Settler
from billing.spool.spool import Spool
from file_store.blobs import FolderBlobs
from gateway import server as gateway_server
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.app import create_app, gateway_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import FleetOptions
from gateway.limits.limiter import Limiter
from gateway.limits.redis_buckets import RedisBuckets
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import load_served_model
from gateway.server import GatewayServer
from gateway.services import Gateway, GatewayOptions, GatewayServices
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys
from prompt_cache.promise.shared_prefixes import SharedPrefixes
from protocol.service_names import Resolve, resolve_by_system
from response_store.sealing import ThinkingSeal
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.administration.suspension import Suspensions
from tenancy.authenticator import Authenticator
from tenancy.identity.service import Identity
from tenancy.keys import Peppers
from tenancy.rate_limits import LimitCache, RateLimits
from tenancy.repositories import Tenancy
from tenancy.users.service import Users
from tests.gateway.fake_replica import LINK_KEY, FakeReplica, Script
from tests.gateway.quick_application import read_signatures_once, registering_at_once
from turnpike.admin_services import webhook_topics
from webhooks.addresses import AddressPolicy, parse_networks
from webhooks.endpoints import WebhookEndpoints
from webhooks.signing import SecretCipher

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60"}
GRANT = 10 * 10**12
PATIENCE_S = 120.0
"""How long a test waits for what comes as soon as a busy machine lets it."""
PEPPERS = Peppers({1: b"p" * 32}, 1)
PROVIDERS = AddressPolicy(allow_http=True, networks=parse_networks("127.0.0.1/32, ::1/128"))
"""Identity providers of tests listen on this machine."""


read_signatures_once()


class SlowSpool(Spool):
    """A spool that can be held up, or broken."""

    def __init__(self, folder: Path, owner: str) -> None:
        super().__init__(folder, owner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: Exception | None = None
        self.records: list[Any] = []
        self.entered = 0
        """How many records were to be appended."""

    async def append(self, record: Any) -> None:
        self.entered += 1
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        await super().append(record)
        self.records.append(record)


class _QuickPauses:
    """asyncio for a module that looks for a flag in pauses of a tenth of a second: they are short."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))


uvicorn.server.asyncio = gateway_server.asyncio = _QuickPauses()  # type: ignore[assignment]


class PromptServer(GatewayServer):
    """Sees at once that it is to stop; uvicorn's looks ten times a second."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110  # a flag is all that says it
            await asyncio.sleep(0.005)


class Stack:
    """Everything a test may want to touch."""

    database: Database
    models: ModelRegistry
    replica: FakeReplica
    replicas: list[FakeReplica]
    spool: SlowSpool
    gateway: Gateway
    server: GatewayServer
    serving: asyncio.Task[None]
    tenancy: Tenancy
    users: Users
    balances: Balances
    tenant: Any
    project: Any
    key: str
    public_id: str
    admin_key: str
    base: str
    http: httpx.AsyncClient

    def openai(self, key: str | None = None, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(
            api_key=key or self.key,
            base_url=f"{self.base}/v1",
            max_retries=options.pop("max_retries", 0),
            http_client=DefaultAsyncHttpxClient(verify=False),  # reading all authorities' certificates takes 20 ms
            **options,
        )

    def anthropic(self, **options: Any) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient  # takes seconds, for which few tests need to wait

        options = {"api_key": self.key, "max_retries": 0, **options}
        return AsyncAnthropic(base_url=self.base, http_client=DefaultAsyncHttpxClient(verify=False), **options)

    def tokens(self, text_: str, *, end: bool = True) -> list[int]:
        """The tiny model's output for a text."""
        model = next(iter(self.models))
        return model.tokenizer.content(text_) + (list(model.stop_tokens) if end else [])

    def say(self, text_: str, *, end: bool = True, **script: Any) -> Script:
        """Let the replica answer with this text."""
        self.replica.script = Script(tokens=self.tokens(text_, end=end), **script)
        return self.replica.script

    async def post(self, body: Any, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.key}", **options.pop("headers", {})}
        data = {"content": body} if isinstance(body, bytes) else {"json": body}
        return await self.http.post("/v1/chat/completions", headers=headers, **data, **options)

    async def rows(self, query: str) -> list[Any]:
        async with self.database.reading() as session:
            return list((await session.execute(text(query))).all())

    async def events(self) -> list[Any]:
        return await self.rows("SELECT * FROM usage_event ORDER BY admitted_at")

    async def holds(self) -> list[str]:
        """The states of all holds there were, in the order of admission."""
        states = (
            "SELECT admitted_at, 'open' AS state, open AS holds FROM hold_batch "
            "UNION ALL SELECT admitted_at, state, 1 FROM ended_hold "
            "UNION ALL SELECT admitted_at, 'settled', 1 FROM usage_event "
            "WHERE id NOT IN (SELECT request_id FROM ended_hold) ORDER BY admitted_at"
        )
        return [row.state for row in await self.rows(states) for _ in range(row.holds)]

    async def settled(self, count: int, timeout: float = PATIENCE_S) -> list[Any]:  # noqa: ASYNC109
        """Wait until so many events are in the database and no hold is open."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            events = await self.events()
            if len(events) >= count and "open" not in await self.holds():
                assert len(events) == count, events
                balance = await self.balances.get(self.tenant.id)
                assert balance is not None
                assert balance.held == 0
                assert balance.debit == sum(event.cost_pico for event in events)
                return events
            await asyncio.sleep(0.01)
        raise AssertionError(f"{len(await self.events())} events, holds {await self.holds()}, wanted {count}")

    def forget(self) -> None:
        """Let the replica forget what it saw, so that the next request is the only one."""
        replica = self.replica
        for seen in (replica.runs, replica.done, replica.acked, replica.aborts):
            seen.clear()  # type: ignore[attr-defined]

    async def until(self, condition: Any, timeout: float = PATIENCE_S) -> None:  # noqa: ASYNC109
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            await asyncio.sleep(0.005)

    async def ready(self, replicas: int = 1) -> None:
        await self.until(lambda: len(self.gateway.services.fleet.healthy("tiny")) >= replicas)


_served = cache(load_served_model)


async def stock(database: Database, grant: int = GRANT) -> None:
    """Put in what is there before a gateway starts: a tenant with a project and money, and a price."""
    tenancy = Tenancy(database, PEPPERS, LocalBus())
    tenant = await tenancy.create_tenant("demo")
    await tenancy.create_project(tenant.id, "default")
    await PriceCatalog(database).set("tiny", "USD", PRICES)
    if grant:
        await Balances(database).grant(tenant.id, grant, "USD")


def quick_timeouts(**changes: float) -> RequestTimeouts:
    start = changes.get("retry", 1.0)
    return RequestTimeouts(**{"request": 20.0, "start": start, "retry": 1.0, "done": 1.0, "replay": 0.7, **changes})


@asynccontextmanager
async def running_stack(
    url: str,
    folder: Path,
    model_folder: Path,
    *,
    options: GatewayOptions | None = None,
    fleet_options: FleetOptions | None = None,
    grant: int = GRANT,
    start_replica: bool = True,
    replicas: int = 1,
    name: str = "gateway-test",
    internal: socket.socket | None = None,
    key_ttl: float | None = None,
    limit_buckets: RedisBuckets | None = None,
    context: int = 512,
    aliases: Mapping[str, str] | None = None,
    payments: Any = None,
    files: Path | None = None,
    resolve: Resolve | None = None,
) -> AsyncIterator[Stack]:
    """`resolve`: the replicas are those that this finds, and a test starts them itself."""
    stack = Stack()
    stack.database = await Database.open(url)
    bus = LocalBus()
    stack.tenancy = Tenancy(stack.database, PEPPERS, bus)
    stack.users = Users(stack.database, b"m" * 32, bus)
    # What is tested is not argon2, which takes 64 MiB and 50 ms.
    stack.users.passwords._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    stack.balances = Balances(stack.database)
    prices = PriceCatalog(stack.database)
    if not await stack.tenancy.list_tenants():
        await stock(stack.database, grant)
    stack.tenant = next(tenant for tenant in await stack.tenancy.list_tenants() if tenant.name == "demo")
    stack.project = (await stack.tenancy.list_projects(stack.tenant.id))[0]
    issued = await stack.tenancy.create_key(stack.tenant.id, stack.project.id)
    stack.key, stack.public_id = issued.key, issued.public_id
    stack.admin_key = (await stack.tenancy.create_key(stack.tenant.id, None)).key
    stack.models = ModelRegistry([_served(model_folder)], aliases)
    model = next(iter(stack.models))
    stack.replicas = [
        FakeReplica(folder / f"replica-{number}.sock", model.text_digest, name=f"replica-{number}", context=context)
        for number in range(replicas)
    ]
    start_replica = start_replica and resolve is None
    stack.replica = stack.replicas[0]
    stack.spool = SlowSpool(folder / "spool", f"{name}-{time.monotonic_ns()}")
    fleet = Fleet(
        ["dns:replicas.test:7700"] if resolve else [replica.address for replica in stack.replicas],
        gateway=name,
        link_key=LINK_KEY,
        models=stack.models,
        options=fleet_options or FleetOptions(beat_timeout=2.0, backoff_most=0.1),
        epoch=stack.spool.owner,
        resolve=resolve or resolve_by_system,
    )
    scope_keys = ScopeKeys(stack.database, b"m" * 32)
    services = GatewayServices(
        name=name,
        database=stack.database,
        authenticator=Authenticator(
            stack.database, PEPPERS, bus, ttl=key_ttl, timeout=(options or GatewayOptions()).database_timeout
        ),
        tenancy=stack.tenancy,
        suspensions=Suspensions(stack.database, bus),
        users=stack.users,
        identity=Identity(stack.database, stack.users, stack.tenancy, PROVIDERS),
        holds=HoldService(stack.database),
        prices=prices,
        spool=stack.spool,
        settler=Settler(stack.database, stack.spool, prices),
        thinking_seal=ThinkingSeal(b"m" * 32),
        receipt_keys=ReceiptKeys(b"r" * 32),
        models=stack.models,
        fleet=fleet,
        exports=ExportJobs(stack.database, prices, folder / "exports"),
        blobs=FolderBlobs(files or folder / "files"),
        webhooks=WebhookEndpoints(stack.database, SecretCipher(b"m" * 32), AddressPolicy(), webhook_topics()),
        payments=payments,
        limiter=Limiter(
            LimitCache(stack.database, bus, timeout=(options or GatewayOptions()).database_timeout), limit_buckets, name
        ),
        rate_limits=RateLimits(stack.database, bus),
        domains=CacheDomains(
            b"s" * 32, scope_keys, retention=3600.0, shared=SharedPrefixes(stack.database, scope_keys)
        ),
        scope_keys=scope_keys,
        options=options or GatewayOptions(timeouts=quick_timeouts(), drain_timeout=20.0),
    )
    with registering_at_once():
        app = create_app(services)
    stack.gateway = gateway_of(app)
    stack.server = PromptServer(app, internal=internal)
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # which asyncio looks at before it sets TCP_NODELAY
    listener.bind(("127.0.0.1", 0))
    stack.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stack.serving = asyncio.create_task(stack.server.serve(sockets=[listener]))
    async with httpx.AsyncClient(base_url=stack.base, timeout=20, verify=False) as stack.http:
        try:
            if start_replica:
                for replica in stack.replicas:
                    await replica.start()
            await stack.until(lambda: stack.server.started or stack.serving.done())
            if start_replica:
                await stack.ready(replicas)
            yield stack
        finally:
            stack.spool.gate.set()
            stack.spool.broken = None
            stack.server.should_exit = True
            await asyncio.wait([stack.serving], timeout=20)
            for replica in stack.replicas:
                await replica.stop()
            await stack.spool.close()
            await services.holds.close()
            await stack.users.close()
            await bus.close()
            await stack.database.close()
