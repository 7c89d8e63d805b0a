"""`turnpike tenants`: make and list tenants, and change what money they have."""

from __future__ import annotations

import argparse
import re
from typing import Any

from turnpike.api.actions import (
    Cell,
    Flag,
    add_action,
    add_fields,
    add_work,
    day,
    field_values,
    print_json,
    print_objects,
)
from turnpike.api.client import Api
from turnpike.command_line import CommandError, CommandParser

_RESPONSE_ID = re.compile(r"^[a-z]+[-_]([0-9a-f]{32})$")
"""A request's id in its response, such as chatcmpl-… or msg_…"""
_AMOUNT = "in the currency's units, such as 25.00"
_ZERO = "0.000000000000"
_BALANCE = ("available", "held", "restricted", "credit_line")
_MONEY: dict[str, str | Flag] = {
    "amount": _AMOUNT,
    "currency": "such as EUR; default: the balance's, else that of its prices",
}
_PUT_IN: dict[str, str | Flag] = _MONEY | {
    "priority": "lowest is used first; default: 50 if given, 100 if paid",
    "expires_at": Flag("unused money is lost then, such as 2027-01-01 (UTC)", "expires", day, "DAY"),
}
_GIVEN: dict[str, str | Flag] = {
    "model": Flag("for requests to this model only", "for-model"),
    "project": Flag("for requests of this project only", "for-project"),
}


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike tenants …`."""
    add_work(parser, "create", "make a tenant", _create).add_tenant_first()
    _add_money(parser, "credit", "record money that a tenant paid", "record_payment", _PUT_IN, reason="manual payment")
    text = "give a tenant money that it did not pay"
    _add_money(parser, "grant", text, "give_grant", _PUT_IN | _GIVEN, reason="goodwill")
    _add_money(
        parser, "refund", "record that unused paid money was paid back", "record_refund", _MONEY, reason="refund"
    )
    adjust = add_work(parser, "adjust", "correct one request's usage by a new event", _adjust)
    units = Flag("what to add, such as output=-120", "units", _units, "METER=UNITS", nargs="+")
    event = Flag("the id of the usage event: the request's id", "event", _event)
    add_fields(
        adjust,
        "adjust_usage",
        ("tenant", "request", "units"),
        {"request": event, "units": units} | _reason("correction"),
    )
    add_action(
        parser,
        "statement",
        "what changed the balance, with the balance after each",
        "retrieve_statement",
        arguments=("tenant",),
        flags={
            "since": Flag("the first day, such as 2026-11-01 (UTC)", read=day),
            "until": Flag("the day after the last", read=day),
            "every": "each posting of usage; default: a day's usage is one",
        },
        columns={
            "posted": lambda line: line["at"][:19].replace("T", " "),
            **{"what": "kind", "period": "period", "amount": "amount", "balance": "balance"},
            **{"invoiced": "invoiced", "carried": "carried", "memo": "memo"},
        },
        after=_say_invoiced,
    )
    account = add_work(parser, "account", "a month's statement of account, from opening to closing balance", _account)
    add_fields(account, "retrieve_account", ("tenant",), {"period": "such as 2026-11; default: this month"})
    add_action(
        parser,
        "credit-line",
        "how much may be used before it is paid; 0: prepaid",
        "set_credit_line",
        arguments=("tenant", "amount"),
        flags={"amount": _AMOUNT},
        show=lambda balance, parsed: (
            f"{parsed.tenant} {'would have' if parsed.api_dry_run else 'has'} {balance['available']} "
            f"{balance['currency']}, of it on credit {balance['credit_line']}"
        ),
    )
    add_work(parser, "list", "tenants with their balances", _list).add_format("json")
    for name, text, work in (
        ("suspend", "refuse all its requests, everywhere within a second", _suspend),
        ("resume", "admit its requests again", _resume),
    ):
        action = add_work(parser, name, text, work)
        action.add_tenant_first()
        action.add_argument("--project", help="of this project alone")
        action.add_argument("--reason", default="", help="why; kept in the audit log")
        action.add_dry_run()
        if name == "suspend":
            running = "what runs now finishes, or ends, billed for what was delivered; default: %(default)s"
            action.add_argument("--running", choices=["finish", "end"], default="finish", help=running)


def _reason(default: str) -> dict[str, str | Flag]:
    return {
        "reason": Flag("what the statement says; default: %(default)s", default=default),
        "id": "an id of your own (a UUIDv7); used again, the same money counts once",
    }


def _add_money(
    parser: CommandParser, name: str, text: str, operation: str, flags: dict[str, str | Flag], *, reason: str
) -> None:
    async def work(api: Api, parsed: argparse.Namespace) -> None:
        answer = await api.call(operation, **field_values(parsed, operation))
        if print_json(parsed, answer):
            return
        if parsed.api_dry_run:
            money = f"{answer['would_be_available']} {answer['currency']}"
            print(f"{parsed.tenant} would have {money}; nothing was written")
        else:
            await _print_balance(api, parsed.tenant)

    add_fields(add_work(parser, name, text, work), operation, ("tenant", "amount"), flags | _reason(reason))


async def _print_balance(api: Api, tenant: str, more: str = "") -> None:
    balance = await api.call("retrieve_balance", tenant=tenant)
    print(f"{tenant} has {balance['available']} {balance['currency']}{more}")


async def _create(api: Api, parsed: argparse.Namespace) -> None:
    made = await api.call("create_tenant", name=parsed.tenant)
    if print_json(parsed, made):
        return
    projects = ", ".join(project["name"] for project in await api.list("list_projects", tenant=made["id"]))
    print(
        f"made tenant {made['name']} with project {projects}; it has no money yet: "
        f"`turnpike tenants credit {made['name']} AMOUNT`"
    )


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    tenants = await api.pages("list_tenants", expand="balance")
    if print_json(parsed, tenants):
        return
    for tenant in tenants["data"]:
        tenant.update(tenant["balance"] or dict.fromkeys(_BALANCE, _ZERO) | {"currency": "USD"})
        tenant["projects"] = [project["name"] for project in await api.list("list_projects", tenant=tenant["id"])]
    columns: dict[str, Cell] = {
        "tenant": "name",
        "state": lambda tenant: "suspended" if tenant["suspended_at"] else "active",
        **{name.replace("_", " "): name for name in _BALANCE},
        "currency": "currency",
        "projects": "projects",
    }
    print_objects(tenants["data"], columns)


async def _account(api: Api, parsed: argparse.Namespace) -> None:
    accounts = await api.call("retrieve_account", **field_values(parsed, "retrieve_account"))
    if print_json(parsed, accounts):
        return
    for one in accounts["data"]:
        ends = [{"kind": name, "balance": one[name]} for name in ("opening", "closing")]
        print(f"{parsed.tenant}, {one['period']}, {one['currency']}")
        columns: dict[str, Cell] = {
            "day": lambda line: line.get("at", "")[:10],
            "what": "kind",
            **{name: _cell(name) for name in ("number", "reference", "amount", "balance")},
        }
        print_objects([ends[0], *one["lines"], ends[1]], columns)
    if not accounts["data"]:
        print("there never was any money")


def _cell(name: str) -> Cell:
    return lambda line: line.get(name) or ""


async def _adjust(api: Api, parsed: argparse.Namespace) -> None:
    event = await api.call("adjust_usage", **field_values(parsed, "adjust_usage"))
    if print_json(parsed, event):
        return
    print(f"{'would be ' if event['dry_run'] else ''}{event['cost']} in {event['period']}, event {event['id']}")
    await _print_balance(api, parsed.tenant, ", and nothing was written" if event["dry_run"] else "")


def _event(text: str) -> str:
    return _RESPONSE_ID.sub(r"\1", text)


def _units(texts: list[str]) -> dict[str, int]:
    units = {}
    for text in texts:
        meter, _, number = text.partition("=")
        try:
            units[meter] = int(number)
        except ValueError:
            raise CommandError(f"{text!r} is not METER=UNITS, such as output=-120") from None
    return units


def _say_invoiced(statement: dict[str, Any]) -> None:
    if statement["data"] and (invoiced := statement["data"][-1]["invoiced"]) != _ZERO:
        print(
            f"The balance is less {invoiced} that invoices ask for beyond usage (VAT, fees, "
            "rounding); `turnpike tenants list` does not take that off."
        )


async def _suspend(api: Api, parsed: argparse.Namespace) -> None:
    would = f"suspend {{}}; what runs would {getattr(parsed, 'running', '')}"
    await _change_state(api, parsed, "suspend", would, running=getattr(parsed, "running", None))


async def _resume(api: Api, parsed: argparse.Namespace) -> None:
    await _change_state(api, parsed, "resume", "resume {}")


async def _change_state(api: Api, parsed: argparse.Namespace, verb: str, would: str, **fields: Any) -> None:
    of_project = {"project": parsed.project} if parsed.project else {}
    whose = f"project {parsed.project} of {parsed.tenant}" if of_project else f"tenant {parsed.tenant}"
    kind = "project" if of_project else "tenant"
    if parsed.dry_run:
        await api.call(f"retrieve_{kind}", tenant=parsed.tenant, **of_project)
        print(f"would {would.format(whose)}; nothing was written")
        return
    answer = await api.call(f"{verb}_{kind}", tenant=parsed.tenant, reason=parsed.reason, **of_project, **fields)
    if not print_json(parsed, answer):
        print(f"{verb.removesuffix('e')}ed {whose}")
