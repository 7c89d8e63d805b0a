"""The commands by which an operator looks after tenants, keys, prices and the books. Each is one short run."""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from billing import audit, reports
from billing.money import format_pico, parse_amount
from billing.prices import PriceMissing, check_prices
from billing.usage import CLASSES, COUNTS, METERS
from gateway.tenancy.keys import PREFIX
from gateway.tenancy.repositories import NotFound
from gateway.tenancy.tables import Tenant
from storage import migrate as migrations
from turnpike import secrets
from turnpike.failures import CommandError
from turnpike.office import Office, opened, prepare_data_folder
from turnpike.probe import probe_replicas
from turnpike.settings import Settings

CURRENCY = "USD"
DEFAULT_PROJECT = "default"


def _with_office(settings: Settings, work: Callable[[Office], Awaitable[int]]) -> int:
    async def run() -> int:
        async with opened(settings) as office:
            return await work(office)

    return asyncio.run(run())


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header, numbers to the right."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *lines]) for i in range(len(header))]
    for line in [list(header), *lines]:
        cells = [
            cell.rjust(width) if cell.replace(".", "").replace("-", "").isdigit() else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


# ---------------------------------------------------------------- database and secrets


def migrate(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike migrate`."""
    if settings.database.startswith("sqlite"):
        prepare_data_folder(settings)
    asyncio.run(migrations.upgrade(settings.database))
    print(f"the database is at {migrations.head()}")
    return 0


def create_secrets(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike secrets create FILE`."""
    path = Path(arguments.file)
    if path.exists():
        raise CommandError(f"{path} exists; it is never overwritten")
    secrets.save(secrets.generate(), path)
    print(f"wrote {path} (mode 0600); back it up apart from the database")
    return 0


def rotate_pepper(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike secrets rotate-pepper`."""
    rotated = secrets.with_new_pepper(secrets.load(settings.secrets))
    secrets.save(rotated, settings.secrets)
    print(f"new keys use pepper {rotated.pepper_current}; restart the gateways so that they know it")
    return 0


# ---------------------------------------------------------------- tenants and keys


def create_tenant(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants create NAME`."""

    async def work(office: Office) -> int:
        tenant = await office.tenancy.create_tenant(arguments.tenant)
        await office.tenancy.create_project(tenant.id, DEFAULT_PROJECT)
        print(f"made tenant {tenant.name} with project {DEFAULT_PROJECT}; it has no money yet: turnpike tenants credit")
        return 0

    return _with_office(settings, work)


def credit_tenant(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants credit NAME AMOUNT`."""

    async def work(office: Office) -> int:
        tenant = await office.tenancy.tenant(arguments.tenant)
        await office.balances.grant(tenant.id, parse_amount(arguments.amount), CURRENCY, reason=arguments.reason)
        balance = await office.balances.get(tenant.id)
        if balance is None:
            raise CommandError(f"tenant {tenant.name} has no balance")
        print(f"{tenant.name} has {format_pico(balance.available)} {balance.currency}")
        return 0

    return _with_office(settings, work)


def list_tenants(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants list`."""

    async def work(office: Office) -> int:
        rows = []
        for tenant in await office.tenancy.list_tenants():
            balance = await office.balances.get(tenant.id)
            money = [format_pico(v) for v in (balance.available, balance.held)] if balance else ["0", "0"]
            projects = ", ".join(project.name for project in await office.tenancy.list_projects(tenant.id))
            rows.append((tenant.name, *money, balance.currency if balance else CURRENCY, projects))
        _table(("tenant", "available", "held", "currency", "projects"), rows)
        return 0

    return _with_office(settings, work)


def create_key(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys create`: the key alone on stdout."""
    if arguments.admin == bool(arguments.project):
        raise CommandError("say either --project NAME (for inference) or --admin (for the tenant's reports)")

    async def work(office: Office) -> int:
        tenant = await office.tenancy.tenant(arguments.tenant)
        project = None
        if arguments.project:
            try:
                project = await office.tenancy.project(tenant.id, arguments.project)
            except NotFound:
                project = await office.tenancy.create_project(tenant.id, arguments.project)
        issued = await office.tenancy.create_key(tenant.id, project.id if project else None, arguments.name)
        print(issued.key)
        return 0

    return _with_office(settings, work)


def revoke_key(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys revoke KEY`."""
    given: str = arguments.key
    public_id = given.removeprefix(PREFIX + "_").split("_")[0]

    async def work(office: Office) -> int:
        at_once = await office.tenancy.revoke(public_id)
        print(f"revoked {public_id}" + ("" if at_once else "; Redis is away, so within 30 s"))
        return 0

    return _with_office(settings, work)


def list_keys(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys list`."""

    async def work(office: Office) -> int:
        tenants: list[Tenant] = (
            [await office.tenancy.tenant(arguments.tenant)] if arguments.tenant else await office.tenancy.list_tenants()
        )
        rows = []
        for tenant in tenants:
            projects = {project.id: project.name for project in await office.tenancy.list_projects(tenant.id)}
            for key in await office.tenancy.list_keys(tenant.id):
                where = projects[key.project_id] if key.project_id else "(admin)"
                state = "revoked" if key.revoked_at else "active"
                used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
                rows.append((key.public_id, tenant.name, where, state, f"{key.created_at:%Y-%m-%d}", used, key.name))
        _table(("key", "tenant", "project", "state", "made", "last used", "name"), rows)
        return 0

    return _with_office(settings, work)


# ---------------------------------------------------------------- prices


def meter_prices(given: dict[str, str]) -> dict[str, str]:
    """Prices by meter from prices by the words that people use: `read` is every class's read price."""
    prices: dict[str, str] = {}
    for name, price in given.items():
        names = ["read_automatic", *(f"read_{c}" for c in CLASSES)] if name == "read" else [name.replace("-", "_")]
        prices |= dict.fromkeys(names, price)
    return prices


def folder_prices(folder: Path) -> tuple[str, str, dict[str, str]] | None:
    """Name, currency and prices by meter of a model folder's `turnpike.toml`; None where it has no prices."""
    try:
        content: dict[str, Any] = tomllib.loads((folder / "turnpike.toml").read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CommandError(f"{folder / 'turnpike.toml'}: {error}") from error
    given = {name: str(value) for name, value in content.get("prices", {}).items()}
    if not given:
        return None
    currency = given.pop("currency", CURRENCY)
    return str(content.get("name", folder.name)), currency, meter_prices(given)


def set_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices set`."""
    words = ("uncached", "read", "output", *(f"write_{c}" for c in CLASSES))
    given = {word: getattr(arguments, word) for word in words if getattr(arguments, word) is not None}
    chosen: list[tuple[str, str, dict[str, str]]] = []
    if arguments.from_model_folder:
        for folder in settings.model_folders:
            found = folder_prices(folder)
            if found is None:
                raise CommandError(f"{folder / 'turnpike.toml'} has no [prices]")
            chosen.append(found)
    elif arguments.served_model and given:
        chosen.append((arguments.served_model, CURRENCY, meter_prices(given)))
    else:
        raise CommandError("say NAME and its prices (--uncached, --read, --output, …), or --from-model-folder")

    async def work(office: Office) -> int:
        for name, currency, prices in chosen:
            checked = check_prices(prices)
            if arguments.dry_run:
                print(f"{name}: checked, nothing written")
            else:
                version = await office.prices.set(name, currency, prices)
                print(f"{name}: version {version.id} from now on")
            _price_table(checked, currency)
        return 0

    return _with_office(settings, work)


def _price_table(prices: dict[str, int], currency: str) -> None:
    _table(
        ("meter", f"{currency} per million"),
        [(meter, f"{Decimal(prices[meter]) / 1_000_000:f}") for meter in METERS if meter in prices],
    )


def list_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices list`."""

    async def work(office: Office) -> int:
        for model in await office.prices.models():
            version = await office.prices.current(model, time.time_ns() // 1000)
            print(f"{model}: version {version.id}")
            _price_table(version.prices, version.currency)
        return 0

    return _with_office(settings, work)


def models(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike models`: what the folders say, what the replicas say, what it costs."""
    from gateway.registry import Registry  # noqa: PLC0415  # tokenizers take a moment to load

    async def work(office: Office) -> int:
        replicas = await probe_replicas(settings)
        rows = []
        for model in Registry.load(settings.model_folders):
            try:
                version = await office.prices.current(model.name, time.time_ns() // 1000)
                price = {
                    meter: f"{Decimal(version.prices[meter]) / 1_000_000:f}"
                    for meter in ("uncached", "read_automatic", "output")
                }
            except PriceMissing:
                price = {}
            mine = [found.hello for found in replicas if found.hello.model.name == model.name]
            rows.append(
                {
                    "name": model.name,
                    "digest": mine[0].model.digest if mine else "",
                    "text_digest": model.text_digest,
                    "context_tokens": min([model.context_tokens, *(hello.capacity.context_tokens for hello in mine)]),
                    "min_cacheable_tokens": model.min_cacheable_tokens,
                    "usd_per_million": price,
                    "replicas": [f"{hello.replica} (epoch {hello.epoch}, {hello.model.dtype})" for hello in mine],
                }
            )
        if arguments.format == "json":
            print(json.dumps(rows, indent=2))
        else:
            _table(
                ("model", "digest", "context", "uncached / read / output, USD per million", "replicas"),
                [
                    (
                        row["name"],
                        str(row["digest"])[:12] or "(no replica)",
                        row["context_tokens"],
                        " / ".join(row["usd_per_million"].values()) or "no price",  # type: ignore[attr-defined]  # a dict
                        ", ".join(row["replicas"]) or "none answers",  # type: ignore[arg-type]  # a list of text
                    )
                    for row in rows
                ],
            )
        return 0

    return _with_office(settings, work)


# ---------------------------------------------------------------- usage and audit


def usage(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike usage`."""
    month = arguments.month or time.strftime("%Y-%m", time.gmtime())

    async def work(office: Office) -> int:
        names = {tenant.id: tenant.name for tenant in await office.tenancy.list_tenants()}
        wanted = (await office.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        projects = {
            project.id: project.name for tenant in names for project in await office.tenancy.list_projects(tenant)
        }
        rows: list[dict[str, object]] = []
        for line in await reports.usage_by_project_and_model(office.database, month, wanted):
            meters = {meter: line.meters.get(meter, 0) for meter in METERS}
            rows.append(
                {
                    "tenant": names[line.tenant_id],
                    "project": projects[line.project_id],
                    "model": line.model,
                    "requests": line.requests,
                    **meters,
                    "currency": line.currency,
                    "cost": format_pico(line.cost_pico),
                }
            )
        _print_usage(month, rows, arguments.format)
        return 0

    return _with_office(settings, work)


def _print_usage(month: str, rows: list[dict[str, object]], form: str) -> None:
    fixed = ["tenant", "project", "model", "requests", *METERS, "currency", "cost"]
    if form == "json":
        print(json.dumps({"month": month, "rows": rows}, indent=2))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, fixed, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif not rows:
        print(f"no usage in {month}")
    else:
        # Classes that nobody used are left out of the table; CSV and JSON have every column.
        shown = [name for name in fixed if name not in METERS or any(row[name] for row in rows)]
        _table(shown, [[row[name] for name in shown] for row in rows])


def audit_money(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike audit money`: 1 on any finding."""

    async def work(office: Office) -> int:
        findings = await audit.check(office.database)
        for finding in findings:
            print(msgspec.json.encode(finding).decode())
        print("the books are right" if not findings else f"{len(findings)} findings", file=sys.stderr)
        return 1 if findings else 0

    return _with_office(settings, work)


def audit_counts(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike audit counts`: what each replica's journal counted against its usage events; 1 if they differ."""

    async def work(office: Office) -> int:
        events = {row.replica: row for row in await audit.counts_by_replica(office.database)}
        rows: list[tuple[str, str, int, int, str]] = []
        for found in await probe_replicas(settings):
            name = found.hello.replica
            metrics = found.beat.metrics if found.beat else {}
            mine = events.pop(name, audit.ReplicaCounts(name, 0, {}))
            pairs = {"requests": ("requests_total", mine.requests)} | {
                count: (f"{count}_tokens_total", mine.counts.get(count, 0)) for count in COUNTS
            }
            for what, (metric, billed) in pairs.items():
                counted = int(metrics.get(f"turnpike_engine_journal_{metric}", -1))
                rows.append((name, what, counted, billed, "equal" if counted == billed else "DIFFERENT"))
        _table(("replica", "count", "journal", "events", ""), rows)
        for name in events:
            print(f"{name} has events, and does not answer: not compared", file=sys.stderr)
        return 0 if rows and all(row[-1] == "equal" for row in rows) else 1

    return _with_office(settings, work)
