"""`turnpike invoices …` at a gateway elsewhere, where the same on the data folder does more, such as all tenants."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from storage.free_text import counted
from turnpike.api.actions import Object, print_answer, print_json, print_objects
from turnpike.api.client import Api
from turnpike.command_line import CommandError
from turnpike.commands.invoices.records import NOTHING_WRITTEN, find_invoice, invoice_line


async def show_invoice(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices show`: the invoice and its lines; or the slices of a line, of a day, of an hour."""
    invoice = await find_invoice(api, parsed)
    where = {"tenant": invoice["tenant_id"], "invoice": invoice["id"]}
    if parsed.line is not None:
        by = "request" if parsed.hour is not None else "hour" if parsed.day else "day"
        answer = await api.pages("drill_line", **where, line=parsed.line, by=by, day=parsed.day, hour=parsed.hour)
    else:
        answer = await api.call("retrieve_invoice", **where)
        answer["lines"] = await api.list("list_lines", **where)
    if print_json(parsed, answer):
        return
    if parsed.line is None:
        print(invoice_line(answer))
        print(f"from {answer['seller_name']}, for {answer['buyer_name']}, {answer['period']}")
    rows = answer["lines"] if parsed.line is None else answer["data"]
    if rows:
        shown = [name for name, value in rows[0].items() if name != "object" and not isinstance(value, dict | list)]
        print_objects(rows, {name.replace("_", " "): name for name in shown})


async def print_invoice(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices pdf NUMBER`."""
    from turnpike.commands.invoices.documents import file_name_of, write_file

    if parsed.all or parsed.fonts:
        raise CommandError("--all and --fonts work on the data folder, not at --url")
    invoice = await find_invoice(api, parsed)
    content = await api.content("invoice_pdf", tenant=invoice["tenant_id"], invoice=invoice["id"])
    name = file_name_of(invoice["number"] or f"draft-{invoice['period']}")
    path = Path(parsed.output or name)
    print(write_file(path / name if path.is_dir() else path, content))  # noqa: ASYNC240  # nothing else runs


async def write_xml(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices xml NUMBER`."""
    from turnpike.commands.invoices.documents import file_name_of, write_file

    if parsed.all:
        raise CommandError("--all works on the data folder, not at --url")
    invoice = await find_invoice(api, parsed)
    operation = f"invoice_{parsed.syntax}"
    content = await api.content(operation, tenant=invoice["tenant_id"], invoice=invoice["id"])
    name = file_name_of(invoice["number"], f"{parsed.syntax}.xml")
    path = Path(parsed.output or name)
    print(write_file(path / name if path.is_dir() else path, content))  # noqa: ASYNC240  # nothing else runs


async def draft_invoice(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices draft --tenant NAME`."""
    draft = await api.call("draft_invoice", tenant=_tenant(parsed), period=parsed.period, **_dry(parsed))
    if print_json(parsed, draft):
        return
    if parsed.dry_run:
        sums = f"net {draft['net']}, VAT {draft['tax']}, to pay {draft['payable']} {draft['currency']}"
        print(f"{parsed.tenant}, {parsed.period}: {counted(draft['lines'], 'line')}, {sums} ({NOTHING_WRITTEN})")
    else:
        print(f"{parsed.tenant}, {parsed.period}: {invoice_line(draft)}")


async def finalize_invoice(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices finalize --tenant NAME`."""
    parsed.number, tenant = None, _tenant(parsed)
    draft = await find_invoice(api, parsed)
    fields = {"invoice": draft["id"], "issued": parsed.issued, **_dry(parsed)}
    invoice = await api.call("finalize_invoice", tenant=tenant, **fields)
    if not print_json(parsed, invoice):
        print(invoice_line(invoice) + (f" ({NOTHING_WRITTEN})" if parsed.dry_run else ""))


def _tenant(parsed: argparse.Namespace) -> str:
    if parsed.all:
        raise CommandError("--all works on the data folder, not at --url: say --tenant NAME")
    return str(parsed.tenant)


def _dry(parsed: argparse.Namespace) -> dict[str, Any]:
    return {"dry_run": True} if parsed.dry_run else {}


async def set_seller(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices seller set ID`."""
    names = ("seller", "currency", "series", "credit_series", "number_format", "registration", "payment", "contact")
    fields = _given(parsed, *names, "phone", "iban", "bic", "prepayment")
    if parsed.rate or parsed.remove_rate:
        listed = [one for one in await api.list("list_sellers") if one["id"] == parsed.id]
        rates = dict(listed[0]["rates"]) if listed else {}
        for text in parsed.rate or []:
            country, equals, percent = text.partition("=")
            if not equals:
                raise CommandError(f"--rate: {text!r} is not COUNTRY=PERCENT such as DE=19")
            rates[country] = percent
        fields["rates"] = {name: rate for name, rate in rates.items() if name not in (parsed.remove_rate or [])}
    print_answer(await api.call("change_seller", **fields | {"seller": parsed.id}))


async def set_buyer(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices buyer set TENANT`."""
    names = (
        "seller",
        "purchase_order",
        "payment_days",
        "treatment",
        "exemption",
        "detail",
        "buyer_reference",
        "einvoice",
    )
    print_answer(await api.call("change_buyer", **_given(parsed, *names), tenant=parsed.tenant))


def _given(parsed: argparse.Namespace, *names: str) -> dict[str, Any]:
    address = (
        "name",
        "address",
        "postal_code",
        "city",
        "country",
        "vat_id",
        "email",
        "endpoint",
        "endpoint_scheme",
        "valid_from",
        "reason",
    )
    values = {name: getattr(parsed, name, None) for name in (*address, *names)}
    return {name: value for name, value in values.items() if value not in (None, "")}


async def show_sellers(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices seller show`."""
    sellers: list[Object] = await api.list("list_sellers")
    print_answer([one for one in sellers if parsed.id in (None, one["id"])])


async def show_buyers(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike invoices buyer show TENANT`."""
    if not parsed.tenant:
        raise CommandError("say whose: TENANT")
    print_answer(await api.call("retrieve_buyer", tenant=parsed.tenant))
