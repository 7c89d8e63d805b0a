"""How long the console's figures take at a million events: each route of a real gateway on PostgreSQL, asked by HTTP.

The events are one tenant's, of the last 30 days: 4 projects with 5 keys each, 4 models, 3 lanes, so that a row of the
roll-ups has few events. Beside them 20,000 live leases, 20,000 that ended in the last day, and two days of counts of
how requests were served.

    python -m benchmarks.console --events 1000000 --rounds 15 --json OUT
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop
from sqlalchemy import text

from audit_log.actors import acting_as
from benchmarks.processes import BENCHMARK
from billing.calendar import format_instant, period_of
from billing.events import partitions
from billing.prices import PriceCatalog
from billing.usage import METERS
from storage.database import migrate
from storage.database.database import Database
from tenancy.directory import Directory
from tests.gateway.stack import Stack, running_stack
from tests.gateway.tiny_model import make_model_folder
from tests.servers import postgres_server

HOUR = 3_600_000_000
DAYS, PROJECTS, KEYS, LEASES = 30, 4, 5, 20_000
MODELS = ("tiny", "small", "middle", "large")
LANES = ("interactive", "standard", "batch")
PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60", "read_5m": "0.04", "write_5m": "0.50"}
PICO = {"uncached": 400_000, "read_automatic": 40_000, "output": 1_600_000, "read_5m": 40_000, "write_5m": 500_000}
"""Pico-units per token, as PRICES say."""
BAR_MS = 300

_FACTS = f"""
INSERT INTO usage_fact (id, traits, tenant_id, project_id, key_id, price_version, context_from, admitted_at, finished_at,
    period, sequence, attempt, count_prompt, count_computed, count_output, uncached, read_automatic, read_5m, write_5m,
    output, cost_pico)
SELECT (lpad(to_hex(at / 1000), 12, '0') || '7' || substr(md5(n::text), 1, 3) || 'a' || substr(md5(n::text), 4, 15))::uuid,
    CAST(:traits AS int) + kind, CAST(:tenant AS uuid), projects[(1 + h % {PROJECTS})::int],
    keys[(1 + h % {PROJECTS} * {KEYS} + h / {PROJECTS} % {KEYS})::int],
    versions[(1 + kind / {len(LANES)})::int], 0, at,
    at + 900000, to_char(to_timestamp(at / 1000000.0) AT TIME ZONE 'UTC', 'YYYY-MM'), n, 1, a + b + c + d, a + d, o,
    a, b, c, d, o,
    a * {PICO["uncached"]}::bigint + b * {PICO["read_automatic"]} + c * {PICO["read_5m"]} + d * {PICO["write_5m"]}
    + o * {PICO["output"]}::bigint
FROM (SELECT n, CAST(:start AS bigint) + (n * (CAST(:length AS bigint) / CAST(:events AS bigint))) + (n * 7919) % 1000 AS at, (n * 31) % 3000 AS a, (n * 17) % 900 AS b,
    (n * 23) % 2000 AS c, (n % 11) * 40 AS d, 20 + (n * 29) % 700 AS o FROM generate_series(0::bigint, CAST(:events AS bigint) - 1) AS n) AS made,
    LATERAL (SELECT hashint8(made.n)::bigint + 2147483648 AS h) AS hashed,
    LATERAL (SELECT h / {PROJECTS * KEYS} % {len(MODELS) * len(LANES)} AS kind) AS sort,
    (SELECT CAST(:projects AS uuid[]) AS projects, CAST(:keys AS uuid[]) AS keys, CAST(:versions AS int[]) AS versions) AS given
"""  # noqa: E501  # one statement
_ROLLUPS = f"""
INSERT INTO rollup_hour (tenant_id, period, hour, project_id, key_id, model, lane, price_version, context_from,
    requests, {", ".join(METERS)}, cost_high, cost_low)
SELECT tenant_id, period, admitted_at - admitted_at % {HOUR}, project_id, key_id, model, lane, price_version,
    context_from, count(*), {", ".join(f"sum({meter})" for meter in METERS)}, sum(cost_pico / 1000000000),
    sum(cost_pico % 1000000000)
FROM usage_event GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""
_SERVED = f"""
INSERT INTO service_hour (tenant_id, hour, project_id, model, lane, measure, bucket, requests)
SELECT tenant_id, hour, project_id, model, lane, measure, bucket, sum(requests)
FROM rollup_hour, unnest(ARRAY['first_token', 'queue', 'ok']) AS measure, generate_series(8, 15) AS bucket
WHERE hour >= CAST(:now AS bigint) - 48 * {HOUR} GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
_CAUSES = """
INSERT INTO cache_day (project_id, day, model, cause, currency, tenant_id, requests, tokens, cost_pico)
SELECT project_id, to_char(to_timestamp(hour / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD'), model, cause, 'USD',
    tenant_id, sum(requests), sum(uncached) / 10, sum(uncached) * 36000
FROM rollup_hour, unnest(ARRAY['read', 'cold', 'diverged', 'lease_expired', 'unmarked', 'evicted']) AS cause
GROUP BY 1, 2, 3, 4, 5, 6
"""
_LEASES = f"""
INSERT INTO lease (id, tenant_id, project_id, prefix_key, model, tokens, new_tokens, class, created_at, written_at,
    expires_at, reads, writer, billed, blocks, told, paid)
SELECT gen_random_uuid(), CAST(:tenant AS uuid), (CAST(:projects AS uuid[]))[1 + n % {PROJECTS}],
    decode(md5(n::text), 'hex'), 'tiny',
    1024 + n % 5000, 512, '5m', CAST(:now AS bigint) - 100000000, CAST(:now AS bigint) - 100000000,
    CAST(:now AS bigint) + 3600000000 + (n * 17) % 300000000, n % 40,
    gen_random_uuid(), 1, '', 1, 1 FROM generate_series(1, {LEASES}) AS n
"""
_ENDED = f"""
INSERT INTO ended_lease (id, tenant_id, project_id, prefix_key, model, tokens, class, created_at, ended_at, cause,
    blocks, reads, new_tokens)
SELECT gen_random_uuid(), CAST(:tenant AS uuid), (CAST(:projects AS uuid[]))[1 + n % {PROJECTS}],
    decode(md5(n::text), 'hex'), 'tiny',
    1024 + n % 5000, '5m', CAST(:now AS bigint) - 10000000000, CAST(:now AS bigint) - n * 4000000::bigint, 'expired',
    '', n % 3, 512
FROM generate_series(1, {LEASES}) AS n
"""
_TRAITS = """
INSERT INTO usage_traits (id, model, model_digest, lane, status, reason, delivery, source, replica)
VALUES (:id, :model, '', :lane, 'ok', 'stop', 'confirmed', 'gateway', 'replica-0')
"""


def routes(now: int) -> dict[str, str]:
    """What each page asks, by page and question, below /admin/v1."""
    month, tenant = period_of(now), "/tenants/demo"
    days30 = f"since={format_instant(now - DAYS * 24 * HOUR)}"
    return {
        "overview": f"{tenant}/overview",
        "overview of all": "/overview",
        "overview chart": f"{tenant}/usage/series?{days30}&bucket=day",
        "usage, month": f"{tenant}/usage/series?period={month}&bucket=day&compare=previous",
        "usage, 30 days by model": f"{tenant}/usage/series?{days30}&bucket=day&group_by=model&compare=previous",
        "usage, 30 days by key and model": f"{tenant}/usage/series?{days30}&bucket=day&group_by=key&group_by=model",
        "usage, 30 days by hour": f"{tenant}/usage/series?{days30}&bucket=hour&group_by=lane&measure=tokens",
        "usage, one project": f"{tenant}/usage/series?{days30}&group_by=key&project=default",
        "usage of all by tenant": f"/usage/series?{days30}&group_by=tenant&compare=previous",
        "usage as CSV": f"{tenant}/usage/series?{days30}&bucket=hour&group_by=project&format=csv",
        "cache summary": f"{tenant}/cache/summary?{days30}",
        "cache misses": f"{tenant}/cache/misses?{days30}",
        "cache prefixes": f"{tenant}/cache/prefixes?limit=20",
        "cache leases": f"{tenant}/cache/leases?within=3900&limit=20",
        "cache wasted": f"{tenant}/cache/wasted?limit=20",
    }


async def fill(stack: Stack, database: Database, events: int) -> dict[str, int]:
    """Write the events and their sums; how many rows there are of each."""
    now, tenant = await database.now(), stack.tenant.id
    start = now - DAYS * 24 * HOUR
    projects: list[UUID] = [stack.project.id]
    while len(projects) < PROJECTS:
        projects.append((await stack.tenancy.create_project(tenant, f"project {len(projects)}")).id)
    keys: list[UUID | None] = []
    for project in projects:
        issued = [await stack.tenancy.create_key(tenant, project) for _ in range(KEYS)]
        keys += [await Directory(database).key(tenant, one.public_id) for one in issued]
    prices = PriceCatalog(database)
    versions = [(await prices.set(model, "USD", PRICES)).id for model in MODELS]
    await partitions.ensure(database, {period_of(start), period_of(now)})
    given = {"tenant": tenant, "projects": projects, "keys": keys, "versions": versions, "now": now}
    async with database.transaction() as session:
        for number, (model, lane) in enumerate((model, lane) for model in MODELS for lane in LANES):
            await session.execute(text(_TRAITS), {"id": 100 + number, "model": model, "lane": lane})
        span = {"start": start, "length": DAYS * 24 * HOUR, "events": events, "traits": 100}
        for statement in (_FACTS, _ROLLUPS, _SERVED, _CAUSES, _LEASES, _ENDED):
            wanted = {name: value for name, value in (given | span).items() if f":{name}" in statement}
            await session.execute(text(statement), wanted)
    counts = {}
    async with database.transaction() as session:
        await session.execute(text("ANALYZE"))
        for table in ("usage_fact", "rollup_hour", "service_hour", "cache_day", "lease"):
            counts[table] = int((await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())
    return counts


async def measure(events: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each route, and how much was read."""
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        place = Path(folder)
        url = server.database_url("console")
        admin = await Database.open(server.url)
        async with admin.direct(transaction=False) as connection:
            await connection.execute("CREATE DATABASE console")
        await admin.close()
        await migrate.upgrade(url)
        async with running_stack(url, place, make_model_folder(place / "tiny")) as stack:
            database = await Database.open(url)
            began = time.perf_counter()
            rows = await fill(stack, database, events)
            filled = time.perf_counter() - began
            operator = (await stack.tenancy.create_operator_key("bench")).key
            took, sizes = await _ask(stack, operator, routes(await database.now()), rounds)
            await database.close()
    slowest = max(statistics.median(each) for each in took.values())
    return {
        "events": events,
        "rows": rows,
        "fill_s": round(filled, 1),
        "rounds": rounds,
        "bar_ms": BAR_MS,
        "slowest_p50_ms": round(slowest, 1),
        "routes": {
            name: {"p50_ms": round(statistics.median(each), 1), "max_ms": round(max(each), 1), "bytes": sizes[name]}
            for name, each in took.items()
        },
    }


async def _ask(
    stack: Stack, key: str, paths: dict[str, str], rounds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    took: dict[str, list[float]] = {name: [] for name in paths}
    sizes: dict[str, int] = {}
    for round_ in range(-1, rounds):  # the first is not counted: the server's cache is empty
        for name, path in paths.items():
            began = time.perf_counter()
            answer = await stack.http.get(f"/admin/v1{path}", headers={"authorization": f"Bearer {key}"})
            spent = (time.perf_counter() - began) * 1000
            if answer.status_code != 200:
                raise SystemExit(f"{path}: {answer.status_code} {answer.text[:300]}")
            sizes[name] = len(answer.content)
            if round_ >= 0:
                took[name].append(spent)
    return took, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with acting_as(BENCHMARK):
        found = json.dumps(uvloop.run(measure(arguments.events, arguments.rounds)), indent=1)
    if arguments.json:
        arguments.json.write_text(found + "\n")
    print(found)


if __name__ == "__main__":
    main()
