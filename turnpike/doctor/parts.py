"""Checks of what an installation is made of: database, Redis, replicas, gateway, collector; and their clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from turnpike.doctor.findings import Finding, ok, warning, wrong
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from storage.database.database import Database
    from turnpike.processes.replica_probe import Probe

_TIMEOUT_S = 10.0
_CLOCK_S = 1.0
"""By how much clocks may differ before something is said."""
_POSTGRESQL, _REDIS = (15,), (7, 0)
_CONNECTIONS = 30
_HOLD_S = 3600.0
Answer = TypeVar("Answer")


async def check_parts(settings: Settings) -> AsyncIterator[Finding]:
    """All checks that ask other processes. None takes longer than some seconds."""
    async for finding in check_database(settings):
        yield finding
    if settings.redis_url:
        yield await check_redis(settings)
    async for finding in check_replicas(settings):
        yield finding
    for found in (await check_gateway(settings), await check_collector(settings)):
        if found is not None:
            yield found


async def check_database(settings: Settings) -> AsyncIterator[Finding]:
    """It answers, has this version's schema, keeps what it was given, and its clock is ours."""
    from storage.database import migrate
    from storage.database.database import Database, DatabaseUnavailable, InvalidDatabaseUrl

    if settings.embedded_database is not None and not settings.embedded_database.exists():
        yield wrong(
            "database", f"{settings.embedded_database} does not exist", "run `turnpike serve` or `turnpike migrate`"
        )
        return
    try:
        database = await Database.open(settings.database)
    except InvalidDatabaseUrl as error:
        yield wrong("database", str(error), "mend --database-url")
        return
    try:
        found, wanted = await _soon(migrate.current(settings.database)), migrate.head()
        if found != wanted:
            advice = "run `turnpike migrate`" if found is None or migrate.known(found) else "run the newer version"
            yield wrong("schema", f"the database is at {found or 'no revision'}, this version needs {wanted}", advice)
            return
        yield ok("schema", f"revision {wanted}")
        async for finding in _database_facts(database):
            yield finding
    except (DatabaseUnavailable, TimeoutError, OSError) as error:
        yield wrong("database", f"it does not answer ({error or 'timed out'})", "start it, or mend --database-url")
    finally:
        await database.close()


async def _database_facts(database: Database) -> AsyncIterator[Finding]:
    from billing.holds.age import oldest_hold_us
    from storage.database.server_facts import server_facts

    before = time.time()
    facts = await _soon(server_facts(database))
    offset = facts.now / 1e6 - (before + time.time()) / 2
    named = f"{facts.product} {'.'.join(map(str, facts.version))}"
    if facts.product == "PostgreSQL" and facts.version < _POSTGRESQL:
        yield wrong("database", f"{named} is too old", "upgrade it to 15 or newer")
    else:
        yield ok("database", f"{named} answers")
    if facts.not_durable:
        yield wrong("database", f"{', '.join(facts.not_durable)} is off: a crash loses what was billed", "switch it on")
    if facts.connections is not None and facts.connections < _CONNECTIONS:
        yield warning("database", f"it allows {facts.connections} connections", "raise max_connections to 100")
    if abs(offset) > _CLOCK_S:
        advice = "set both clocks by NTP: leases, holds and periods follow the database's"
        yield wrong("clock", f"the database's clock is {offset:+.1f} s off this machine's", advice)
    else:
        yield ok("clock", f"the database's is within {max(0.1, abs(offset)):.1f} s of this machine's")
    if (age := await _soon(oldest_hold_us(database)) / 1e6) > _HOLD_S:
        advice = "`turnpike journals list` says which replica is waited for"
        yield warning("holds", f"money has been held for {age / 3600:.1f} hours", advice)


async def check_redis(settings: Settings) -> Finding:
    """It answers, and is new enough for our scripts."""
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        client = Redis.from_url(settings.redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
    except ValueError as error:
        return wrong("Redis", str(error), "mend --redis-url")
    try:
        version = str((await _soon(client.info("server")))["redis_version"])
    except (RedisError, OSError, TimeoutError) as error:
        return wrong("Redis", f"it does not answer ({type(error).__name__})", "start it, or mend --redis-url")
    finally:
        await client.aclose()
    if tuple(int(part) for part in version.split(".")[:2]) < _REDIS:
        return wrong("Redis", f"{version} is too old", "upgrade it to 7.0 or newer")
    return ok("Redis", f"{version} answers")


async def check_replicas(settings: Settings) -> AsyncIterator[Finding]:
    """Each answers, takes requests, and speaks this version's protocol."""
    from protocol.addresses import AddressError
    from turnpike.processes.replica_probe import ask_replicas
    from turnpike.settings.secrets import SecretsError

    if not settings.secrets.exists():
        yield wrong("replicas", "they cannot be asked without the secrets", "mend the secrets first")
        return
    try:
        answers = await ask_replicas(settings)
    except AddressError as error:
        yield wrong("replicas", str(error), "mend --replicas")
        return
    except SecretsError as error:
        yield wrong("replicas", f"they cannot be asked: {error}", "mend the secrets first")
        return
    for address, probe in answers.items():
        yield _replica(address, probe)


def _replica(address: str, probe: Probe | None) -> Finding:
    from protocol.frames import VERSION
    from protocol.replicas import DISK_FULL, DRAINING

    if probe is None:
        return wrong(
            f"replica at {address}", "nothing answers, or it has another link key", "start it; compare secrets"
        )
    part = f"replica {probe.hello.replica}"
    metrics = {} if probe.heartbeat is None else probe.heartbeat.metrics
    version = probe.hello.version
    for is_so, finding in (
        (metrics.get(DISK_FULL), wrong(part, "the disk of its journal is full", "free some space there")),
        (
            not probe.advancing,
            wrong(part, "it makes no steps, or sends no heartbeats", "read its log; kill it if it does not end"),
        ),
        (
            metrics.get(DRAINING),
            warning(part, "an operator drains it", "resume it on the fleet's page when it may work"),
        ),
        (
            metrics.get("turnpike_engine_publishes_blocks") == 0,
            warning(part, "its kernels depend on the batch: no prefix is shared", "see its log of the self-test"),
        ),
        (
            version < VERSION,
            warning(part, f"it speaks protocol {version}, this version {VERSION}", "upgrade it too"),
        ),
    ):
        if is_so:
            return finding
    return ok(part, f"it serves {probe.hello.model.name}")


async def check_gateway(settings: Settings) -> Finding | None:
    """The gateway that listens, or listened last, on this data folder; None if none ever did."""
    import httpx

    from turnpike.settings.data_folder import last_address

    address = last_address(settings)
    if address is None:
        return None
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = await client.get(f"{address}/readyz")
    except httpx.HTTPError as error:
        state = f"it does not answer at {address} ({type(error).__name__})"
        return warning("gateway", state, "start `turnpike serve` or `turnpike gateway`, if it is to run")
    if answer.status_code == 200:
        return ok("gateway", f"ready at {address}")
    return wrong("gateway", f"{address} is not ready: {answer.text[:200]}", "mend what it names")


async def check_collector(settings: Settings) -> Finding | None:
    """The collector of traces; None if there is none."""
    if not settings.otlp_endpoint:
        return None
    parts = urlsplit(settings.otlp_endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await _soon(asyncio.open_connection(parts.hostname, port))
    except (OSError, TimeoutError) as error:
        return warning("collector", f"nothing listens at {settings.otlp_endpoint} ({error})", "mend --otlp-endpoint")
    writer.close()
    return ok("collector", f"{settings.otlp_endpoint} listens")


async def _soon(work: Awaitable[Answer]) -> Answer:
    """The answer. Raises TimeoutError."""
    return await asyncio.wait_for(work, _TIMEOUT_S)
