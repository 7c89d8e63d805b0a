"""`turnpike payments`: collect money by a provider or by bank transfer, and see what came in."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from turnpike.api.actions import Cell, Flag, add_action, add_work, print_json
from turnpike.api.client import Api
from turnpike.command_context import print_table
from turnpike.command_line import CommandError, CommandParser

_AMOUNT = "in the currency's units, such as 25.00"
_REASON = Flag("why; kept in the audit log", required=True)
_RECEIPT = Flag("its id, from the receipts", "receipt")


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike payments …`."""
    add_action(parser, "provider", "who collects money here", "retrieve_payment_provider", show=_show_provider)
    _add_tenants(parser)
    _add_cash(parser)
    _add_office(parser)


def _add_tenants(parser: CommandParser) -> None:
    """What a tenant's own people do too."""
    add_action(
        parser,
        "connect",
        "connect a tenant to the provider, or change how its invoices are collected",
        "set_payment_connection",
        arguments=("tenant",),
        flags={"collection": Flag("the saved card, a page, or bank transfer; default: charge", default="charge")},
        show=_show_connection,
    )
    add_action(
        parser,
        "show",
        "whether a tenant is connected, and its card",
        "retrieve_payment_connection",
        arguments=("tenant",),
        show=_show_connection,
    )
    for name, text, operation in (
        ("card", "the address of a page on which a tenant leaves its card", "create_card_page"),
        ("portal", "the address of the page on which a tenant changes its card", "create_payment_portal"),
    ):
        add_action(parser, name, text, operation, arguments=("tenant",), show="{url}")
    add_action(
        parser,
        "top-up",
        "ask a tenant for money in advance; prints the page on which it is paid",
        "create_top_up",
        arguments=("tenant", "amount"),
        flags={"amount": _AMOUNT, "id": "an id of your own (a UUIDv7); used again, it is one top-up"},
        show=lambda made, _: (
            made["url"] or f"{made['id']} is {made['state']}; the page comes when the provider answers"
        ),
    )
    columns: dict[str, Cell] = {
        **{"id": "id", "at": "created_at", "kind": "kind", "amount": "amount", "currency": "currency"},
        **{"state": "state", "code": "code", "page": "url"},
    }
    add_action(
        parser, "top-ups", "a tenant's top-ups", "list_top_ups", arguments=("tenant",), columns=columns, empty="none"
    )
    add_action(
        parser,
        "auto",
        "charge a tenant's card whenever its money runs low",
        "set_auto_top_up",
        arguments=("tenant", "threshold", "amount"),
        flags={"threshold": f"charge when less is left, {_AMOUNT}", "amount": f"how much is charged, {_AMOUNT}"},
        show="{state}: {amount} {currency} below {threshold}",
    )
    off = add_work(parser, "auto-off", "charge a tenant's card no more by itself", _auto_off)
    off.add_tenant_first()


def _add_cash(parser: CommandParser) -> None:
    columns: dict[str, Cell] = {
        **{"id": "id", "at": "received_at", "by": "provider", "amount": "amount", "currency": "currency"},
        **{"state": "state", "for": "purpose", "payer": "payer", "reference": "reference", "problem": "problem"},
    }
    add_action(
        parser,
        "receipts",
        "money that came in, of all tenants",
        "list_all_receipts",
        flags={"state": "only in this state: unapplied is what nobody can be said to owe"},
        columns=columns,
        empty="none",
    )
    add_action(
        parser,
        "apply",
        "let unapplied money pay an invoice, or go to a tenant's balance",
        "apply_receipt",
        arguments=("receipt",),
        flags={
            "receipt": _RECEIPT,
            "tenant": Flag("whose money it is", required=True),
            "invoice": "the number of the invoice; default: it goes to the balance",
            "reason": _REASON,
        },
        show="receipt {id} is {state}",
    )
    add_action(
        parser,
        "return",
        "say that unapplied money was sent back",
        "return_receipt",
        arguments=("receipt",),
        flags={"receipt": _RECEIPT, "reason": _REASON},
        show="receipt {id} is {state}",
    )
    add_action(
        parser,
        "refund",
        "pay a top-up back to the card",
        "refund_top_up",
        arguments=("tenant", "top_up"),
        flags={
            "top_up": Flag("its id, from the top-ups", "top-up"),
            "amount": f"{_AMOUNT}; default: all that is left of it",
            "reason": _REASON,
            "id": "an id of your own (a UUIDv7); used again, it is one refund",
        },
        show="refund {id} of {amount} {currency} is {state}; a worker sends it",
    )
    text = "book what came in by bank transfer: a camt.053 or CSV file"
    bank = add_work(parser, "import", text, _import)
    bank.add_argument("file", help="the bank's file")
    bank.add_argument("--dry-run", action="store_true", help="only say what it would bring")


def _add_office(parser: CommandParser) -> None:
    disputes: dict[str, Cell] = {
        **{"id": "provider_id", "at": "created_at", "tenant": "tenant_id", "amount": "amount", "currency": "currency"},
        **{"state": "state", "reason": "reason", "taken": "moved"},
    }
    add_action(parser, "disputes", "cardholders' objections", "list_all_disputes", columns=disputes, empty="none")
    tasks: dict[str, Cell] = {"id": "id", "at": "created_at", "kind": "kind", "tenant": "tenant_id", "what": "text"}
    add_action(
        parser,
        "tasks",
        "what somebody in finance has to look at",
        "list_finance_tasks",
        flags={"state": "open or done; default: open"},
        columns=tasks,
        empty="none",
    )
    add_action(
        parser,
        "close",
        "say that a task is seen to",
        "close_finance_task",
        arguments=("task",),
        flags={"task": "its id", "reason": _REASON},
        show="task {id} is {state}",
    )
    _add_dunning(parser)
    runs: dict[str, Cell] = {
        **{"id": "id", "since": "since", "until": "until", "payments": "payments", "invoices": "invoices"},
        **{"missed events": "missed_events", "differences": lambda run: len(run["differences"])},
    }
    add_action(
        parser,
        "reconciliations",
        "nightly comparisons with the provider",
        "list_payment_reconciliations",
        columns=runs,
        empty="none",
    )
    add_action(
        parser,
        "invoice",
        "whether an invoice is at the provider, and where it is paid",
        "retrieve_invoice_collection",
        arguments=("tenant", "invoice"),
        show=lambda one, _: " ".join(part for part in (one["state"], one["url"], one["problem"]) if part),
    )
    add_action(
        parser,
        "push-again",
        "push an invoice again that differed at the provider",
        "push_invoice_again",
        arguments=("tenant", "invoice"),
        flags={"reason": _REASON},
        show="it is {state}; a worker pushes it",
    )


def _add_dunning(parser: CommandParser) -> None:
    text = "reminders of overdue invoices by e-mail: those that were sent, or would be now"
    dunning = add_work(parser, "dunning", text, _dunning)
    dunning.add_argument("--dry-run", action="store_true", help="what the worker would send now; nothing is sent")
    add_action(
        parser,
        "dunning-again",
        "send a reminder that was refused, or may have been sent: it may come twice",
        "send_reminder_again",
        arguments=("reminder",),
        flags={"reminder": "its id", "reason": _REASON},
        show="reminder {id} is {state}; a worker sends it",
    )
    for name, words in (("dunning-off", "send a tenant no reminders"), ("dunning-on", "send a tenant reminders again")):
        switch = add_work(parser, name, words, _dunning_on if name == "dunning-on" else _dunning_off)
        switch.add_tenant_first()
        switch.add_argument("--reason", required=True, help=_REASON.help)


async def _dunning(api: Api, parsed: argparse.Namespace) -> None:
    columns: tuple[str, ...]
    if parsed.dry_run:
        answer = await api.call("list_due_reminders")
        columns = ("due", "number", "level", "recipient", "left", "currency", "tenant_id")
    else:
        answer = await api.call("list_all_reminders", limit=100)
        columns = ("id", "created_at", "level", "state", "recipient", "subject", "problem")
    if print_json(parsed, answer):
        return
    rows = [["" if row[column] is None else row[column] for column in columns] for row in answer["data"]]
    if rows:
        print_table(columns, rows)
    else:
        print("none")


async def _dunning_on(api: Api, parsed: argparse.Namespace) -> None:
    await _set_dunning(api, parsed, enabled=True)


async def _dunning_off(api: Api, parsed: argparse.Namespace) -> None:
    await _set_dunning(api, parsed, enabled=False)


async def _set_dunning(api: Api, parsed: argparse.Namespace, *, enabled: bool) -> None:
    answer = await api.call("set_reminder_policy", tenant=parsed.tenant, enabled=enabled, reason=parsed.reason)
    if not print_json(parsed, answer):
        print(f"{parsed.tenant} gets {'reminders' if answer['enabled'] else 'no reminders'}")


def _show_provider(one: dict[str, Any], _: argparse.Namespace) -> str:
    if one["provider"] is None:
        return "nobody: money comes by bank transfer; --stripe-file names the credentials of an account"
    return f"{one['provider']} {one['account']}, {'live' if one['livemode'] else 'test'} mode, key {one['key']}"


def _show_connection(one: dict[str, Any], parsed: argparse.Namespace) -> str:
    if not one["connected"]:
        return f"{parsed.tenant} is not connected"
    card = one["card"] or "without a card"
    made = "" if one["ready"] else "; its customer is being made"
    return f"{parsed.tenant} is connected to {one['provider']}, {card}, invoices: {one['collection']}{made}"


async def _auto_off(api: Api, parsed: argparse.Namespace) -> None:
    before = await api.call("retrieve_auto_top_up", tenant=parsed.tenant)
    if before["state"] == "off":
        print(f"{parsed.tenant} has no automatic top-up")
        return
    values = {"threshold": before["threshold"], "amount": before["amount"], "enabled": False}
    answer = await api.call("set_auto_top_up", tenant=parsed.tenant, **values)
    if not print_json(parsed, answer):
        print(f"{parsed.tenant}: the automatic top-up is {answer['state']}")


async def _import(api: Api, parsed: argparse.Namespace) -> None:
    path = Path(parsed.file)
    try:
        content = path.read_text()  # noqa: ASYNC240  # a command waits for nothing else
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"file: cannot read {path}: {error}") from error
    values = {"name": path.name, "content": content, "dry_run": parsed.dry_run}
    answer = await api.call("import_bank_statement", **values)
    if not print_json(parsed, answer):
        would = "would be " if parsed.dry_run else ""
        print(
            f"{answer['entries']} entries, {answer['new_entries']} of them new: "
            f"{answer['applied']} {would}applied, {answer['unapplied']} {would}unapplied"
        )
