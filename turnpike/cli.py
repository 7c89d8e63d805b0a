"""`turnpike …`: parse the command line, load the settings, run one command, turn known failures into one clear line."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from turnpike import failures, logs, settings
from turnpike.children import EXIT_TEMPORARY, EXIT_UNUSABLE, stop_with_parent
from turnpike.commands import budget_arguments, money_arguments, price_arguments
from turnpike.commands.tenant_argument import CommandParser
from turnpike.settings import ADMIN, ENGINE, GATEWAY, SERVE, WORKER, SettingError, Settings

Command = Callable[[Settings, argparse.Namespace], int]
Actions: TypeAlias = "argparse._SubParsersAction[CommandParser]"


def _serve(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike import supervisor  # noqa: PLC0415  # each role imports only what it runs

    return supervisor.serve(given)


def _gateway(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike import roles  # noqa: PLC0415

    return roles.gateway(given, listen_fd=arguments.listen_fd)


def _engine(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike import replica_process  # noqa: PLC0415

    if arguments.health:
        return replica_process.probe_engine(given)
    return replica_process.engine(given, parent=arguments.parent_pid)


def _worker(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike import roles  # noqa: PLC0415

    return roles.worker(given)


def _command(module: str, name: str) -> Command:
    """A function of `turnpike.commands`, imported when it runs."""

    def command(given: Settings, arguments: argparse.Namespace) -> int:
        run: Command = getattr(importlib.import_module(f"turnpike.commands.{module}"), name)
        return run(given, arguments)

    return command


def _settings(given: Settings, arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        print(settings.reference(), end="")
        return 0
    for name in Settings.__struct_fields__:
        print(f"{name} = {getattr(given, name)!r}")
    return 0


class _Help(argparse.HelpFormatter):
    """Help whose first line leaves out the settings: they are many, and listed below."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """As argparse does, for what is the command's own."""
        own = [action for action in actions if action.dest not in Settings.__struct_fields__]
        super().add_usage(usage, own, groups, prefix)


class _Parser:
    """Builds the tree of commands; every leaf has its settings, its help and its function."""

    def __init__(self) -> None:
        self.root = argparse.ArgumentParser(
            prog="turnpike",
            description="A multi-tenant inference gateway with prompt caching and exact billing.",
            epilog="Start with `turnpike serve`: it needs nothing set up.",
        )
        self.commands = self.root.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)

    def group(self, name: str, text: str) -> Actions:
        parser = self.commands.add_parser(name, help=text, description=text)
        return parser.add_subparsers(metavar="ACTION", required=True)

    def leaf(
        self,
        parent: Actions,
        name: str,
        text: str,
        role: str,
        run: Command,
    ) -> CommandParser:
        parser = parent.add_parser(name, help=text, description=text, formatter_class=_Help)
        parser.set_defaults(run=run, parent_pid=None)
        parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)
        settings.add_flags(parser, role)
        return parser


def _add_periods(tree: _Parser) -> None:
    periods = tree.group("periods", "billing periods: open, closing, closed")
    text = "the periods, and what those that are over wait for"
    listing = tree.leaf(periods, "list", text, ADMIN, _command("periods", "list_periods"))
    listing.add_argument("--format", choices=["table", "json"], default="table")
    text = "close a period that is over and waits for nothing; the worker does so by itself"
    close = tree.leaf(periods, "close", text, ADMIN, _command("periods", "close_period"))
    close.add_argument("period", help="such as 2026-11")
    close.add_argument("--dry-run", action="store_true", help="say whether it can be closed, and write nothing")
    text = "let no period wait for a gateway epoch that is lost, and its spool with it"
    dead = tree.leaf(periods, "declare-dead", text, ADMIN, _command("periods", "declare_epoch_dead"))
    dead.add_argument("epoch", help="as `turnpike periods list` names it")
    dead.add_argument("--reason", required=True, help="what happened to it; kept with the epoch")


def _add_invoices(tree: _Parser) -> None:
    invoices = tree.group("invoices", "invoices, credit notes, and who they are from and for")
    _add_invoice_runs(tree, invoices)
    _add_invoice_views(tree, invoices)
    _add_invoice_changes(tree, invoices)
    _add_parties(tree, invoices)


def _number(parser: argparse.ArgumentParser, *, drafts: bool = False) -> None:
    parser.add_argument("number", nargs="?" if drafts else None, metavar="NUMBER", help="such as INV-2026-000042")
    parser.add_argument("--seller", help="whose number it is, where several sellers have it")
    if drafts:
        parser.add_argument("--tenant", help="instead of NUMBER: whose invoice, with --period")
        parser.add_argument("--period", help="such as 2026-11")


def _last_month() -> str:
    """The month before this one, in UTC."""
    return (datetime.now(UTC).replace(day=1) - timedelta(days=1)).strftime("%Y-%m")


def _dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="do and check all, and write nothing")


def _add_invoice_runs(tree: _Parser, invoices: Actions) -> None:
    for name, text in (
        ("draft", "make the drafts of a period, or make them again"),
        ("finalize", "number and seal the drafts of a closed period"),
    ):
        parser = tree.leaf(invoices, name, text, ADMIN, _command("invoices", f"{name}_invoices"))
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("--tenant", help="one tenant")
        who.add_argument("--all", action="store_true", help="everybody who has something to be billed")
        parser.add_argument("--period", default=_last_month(), help="month, such as 2026-11; default: last month (UTC)")
        _dry_run(parser)
    parser.add_argument("--issued", metavar="DATE", help="issue date such as 2026-12-01; default: today (UTC)")


def _add_invoice_views(tree: _Parser, invoices: Actions) -> None:
    listing = tree.leaf(invoices, "list", "invoices and credit notes", ADMIN, _command("invoices", "list_invoices"))
    listing.add_argument("--tenant", help="of one tenant alone")
    listing.add_argument("--period", help="of one period alone, such as 2026-11")
    states = ["draft", "finalized", "partially_paid", "paid", "void", "uncollectible"]
    listing.add_argument("--state", choices=states, help="in one state alone")
    listing.add_argument("--format", choices=["table", "json"], default="table")
    text = "what an invoice says, opened down to its requests"
    show = tree.leaf(invoices, "show", text, ADMIN, _command("invoices", "show_invoice"))
    _number(show, drafts=True)
    show.add_argument("--line", type=int, metavar="N", help="the days of this line")
    show.add_argument("--day", metavar="DATE", help="… the hours of this day, such as 2026-11-30")
    show.add_argument("--hour", type=int, metavar="H", help="… the requests of this hour, 0 to 23 (UTC)")
    show.add_argument("--format", choices=["table", "json"], default="table", help="json is the document itself")
    pdf = tree.leaf(invoices, "pdf", "an invoice as PDF/A-3", ADMIN, _command("invoices", "print_invoice"))
    _number(pdf, drafts=True)
    pdf.add_argument("--all", action="store_true", help="instead of NUMBER: all invoices of --period")
    pdf.add_argument("-o", "--output", metavar="FILE", help="file or folder; default: NUMBER.pdf here")
    pdf.add_argument("--fonts", metavar="FOLDER", help="fonts for scripts that the built-in ones lack")


def _add_invoice_changes(tree: _Parser, invoices: Actions) -> None:
    text = "money came in for an invoice"
    pay = tree.leaf(invoices, "pay", text, ADMIN, _command("invoices", "pay_invoice"))
    _number(pay)
    pay.add_argument("--amount", help="such as 25.00; default: all that is left")
    pay.add_argument("--reference", required=True, help="the bank's; told again, a payment counts once")
    _dry_run(pay)
    for name, text in (
        ("void", "void an invoice of which nothing was paid; its period can be invoiced again"),
        ("uncollectible", "give an invoice up; it can still be paid"),
    ):
        parser = tree.leaf(invoices, name, text, ADMIN, _command("invoices", f"{name}_invoice"))
        _number(parser)
        _dry_run(parser)
    text = "take an invoice back, whole or by line"
    note = tree.leaf(invoices, "credit-note", text, ADMIN, _command("invoices", "credit_invoice"))
    _number(note)
    note.add_argument("--reason", required=True, help="what the credit note shall state")
    note.add_argument(
        "--line", action="append", metavar="N[=AMOUNT]", help="a line, and how much of it; default: all that is left"
    )
    note.add_argument("--issued", metavar="DATE", help="issue date; default: today (UTC)")
    note.add_argument("--request", metavar="NAME", help="a name for this wish: told again, it is done once")
    _dry_run(note)


def _add_parties(tree: _Parser, invoices: Actions) -> None:
    def party(name: str, text: str) -> Actions:
        parser = invoices.add_parser(name, help=text, description=text)
        return parser.add_subparsers(metavar="ACTION", required=True)

    def address(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--name", help="full legal name")
        parser.add_argument("--address", action="append", metavar="LINE", help="a line above the town; may be repeated")
        for field, text in (
            ("postal-code", "before the town"),
            ("city", "town"),
            ("country", "by ISO 3166, such as DE"),
            ("vat-id", "with its country in front, such as DE136695976"),
            ("email", "for invoices"),
        ):
            parser.add_argument(f"--{field}", help=text)

    sellers = party("seller", "legal entities that sell")
    put = tree.leaf(
        sellers, "set", "make a legal entity, or change what is given", ADMIN, _command("parties", "set_seller")
    )
    put.add_argument("id", metavar="ID", help="a short name, such as acme-eu")
    address(put)
    put.add_argument("--registration", help="register and number")
    put.add_argument("--payment", action="append", metavar="LINE", help="how to pay; may be repeated")
    put.add_argument("--currency", help="where a tenant has no balance yet; default USD")
    put.add_argument("--series", help="series of invoices; default INV")
    put.add_argument("--credit-series", help="series of credit notes; default CN")
    put.add_argument("--number-format", help="default {series}-{year}-{n:06}")
    put.add_argument(
        "--rate", action="append", metavar="COUNTRY=PERCENT", help="VAT charged there, such as DE=19; may be repeated"
    )
    tree.leaf(sellers, "show", "the legal entities", ADMIN, _command("parties", "show_sellers")).add_argument(
        "id", nargs="?", metavar="ID", help="one alone"
    )
    buyers = party("buyer", "billing profiles of tenants")
    text = "make a tenant's billing profile, or change what is given"
    put = tree.leaf(buyers, "set", text, ADMIN, _command("parties", "set_buyer"))
    put.add_tenant_first()
    put.add_argument("--seller", help="who sells to it; may be left out while there is one seller")
    address(put)
    put.add_argument("--purchase-order", help="the customer's number of its order")
    put.add_argument("--payment-days", type=int, metavar="DAYS", help="until an invoice is due; default 30")
    treatments = ["auto", "standard", "zero", "exempt", "reverse_charge", "intra_community", "export", "outside"]
    put.add_argument("--treatment", choices=treatments, help="of tax; default auto: by countries and VAT ids")
    put.add_argument("--exemption", metavar="TEXT", help="the reason that invoices shall state")
    put.add_argument("--detail", choices=["model", "project"], help="what has lines of its own; default model")
    show = tree.leaf(buyers, "show", "billing profiles", ADMIN, _command("parties", "show_buyers"))
    show.add_tenant_first(optional=True)


def _add_audits(tree: _Parser) -> None:
    audit = tree.group("audit", "checks of what is promised")
    text = "re-check the books; exits 1 on any finding, each a line of JSON"
    money = tree.leaf(audit, "money", text, ADMIN, _command("audits", "audit_money"))
    money.add_argument("--period", help="only what belongs to this billing period, such as 2026-11")

    text = "a period's journals, events, ledger, rollups and invoices against each other; kept; exits 1 if they differ"
    reconcile = tree.leaf(tree.commands, "reconcile", text, ADMIN, _command("reconcile", "reconcile_period"))
    reconcile.add_argument("--period", help="such as 2026-11; default: this month (UTC)")
    reconcile.add_argument("--format", choices=["table", "json"], default="table")

    text = "what the replicas' journals counted against the usage events; exits 1 if they differ"
    tree.leaf(audit, "counts", text, ADMIN, _command("audits", "audit_counts"))


def _add_exports(tree: _Parser) -> None:
    export = tree.leaf(
        tree.commands,
        "export",
        "a period's usage, costs, invoices or books as a file for finance",
        ADMIN,
        _command("exports", "export_data"),
    )
    export.add_argument(
        "dataset", metavar="DATASET", help="usage, costs, invoices, journal, focus, focus-invoices, focus-periods"
    )
    export.add_argument("--period", help="month such as 2026-11; default: this month (UTC)")
    export.add_argument("--tenant", help="one tenant alone")
    export.add_argument("--format", default="csv", help="csv, jsonl, parquet or xlsx; default: csv")
    export.add_argument("-o", "--output", metavar="FILE", help="file or folder; default: DATASET-PERIOD.FORMAT here")


def _add_webhooks(tree: _Parser) -> None:
    hooks = tree.group("webhooks", "endpoints that are told of budgets, balances and invoices")
    add = tree.leaf(hooks, "add", "add an endpoint; stdout has its secret alone", ADMIN, _command("webhooks", "add"))
    add.add_argument("url", help="https, of a public address; see --webhook-allow-networks")
    add.add_argument("--topics", default="*", help="such as invoice.*,budget.threshold; default: %(default)s, all")
    add.add_argument("--description", default="", help="what the endpoint is for")
    listing = tree.leaf(hooks, "list", "the endpoints", ADMIN, _command("webhooks", "list_endpoints"))
    text = "a new secret on stdout; the old one signs too for a while"
    rotate = tree.leaf(hooks, "rotate", text, ADMIN, _command("webhooks", "rotate"))
    rotate.add_argument(
        "--overlap", type=int, default=24, metavar="HOURS", help="how long the old one signs too; default: 24"
    )
    remove = tree.leaf(hooks, "remove", "tell an endpoint nothing more", ADMIN, _command("webhooks", "remove"))
    enable = tree.leaf(hooks, "enable", "tell a disabled endpoint again", ADMIN, _command("webhooks", "enable"))
    text = "queue a test message; the worker sends it"
    test = tree.leaf(hooks, "test", text, ADMIN, _command("webhooks", "test"))
    for parser in (rotate, remove, enable, test):
        parser.add_argument("endpoint", help="its id, as `turnpike webhooks list` shows it")
    text = "what was delivered, the newest first"
    deliveries = tree.leaf(hooks, "deliveries", text, ADMIN, _command("webhooks", "deliveries"))
    deliveries.add_argument("--endpoint", help="of one endpoint alone")
    deliveries.add_argument("--limit", type=int, default=20, help="how many; default: %(default)s")
    resend = tree.leaf(hooks, "resend", "send a delivery's message again", ADMIN, _command("webhooks", "resend"))
    resend.add_argument("delivery", help="its id, as `turnpike webhooks deliveries` shows it")
    for parser in (add, listing, rotate, remove, enable, test, deliveries, resend):
        parser.add_argument("--tenant", metavar="NAME", required=True, help="whose endpoints they are")
    for parser in (listing, deliveries):
        parser.add_argument("--format", choices=["table", "json"], default="table")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    tree = _Parser()
    top = tree.commands

    tree.leaf(top, "serve", "everything on this machine, with nothing to set up", SERVE, _serve)
    gateway = tree.leaf(top, "gateway", "the API processes of a deployment", GATEWAY, _gateway)
    gateway.add_argument("--listen-fd", type=int, default=None, help=argparse.SUPPRESS)
    engine = tree.leaf(top, "engine", "one replica of a served model", ENGINE, _engine)
    engine.add_argument("--health", action="store_true", help="probe the replica at --listen and exit 0 if it is well")
    tree.leaf(top, "worker", "billing jobs", WORKER, _worker)
    tree.leaf(top, "migrate", "bring the database to this version", ADMIN, _command("installation", "migrate"))
    models = tree.leaf(
        top, "models", "served models: digest, context, price, replicas", ADMIN, _command("models", "models")
    )
    models.add_argument("--format", choices=["table", "json"], default="table")

    keys = tree.group("keys", "API keys")
    create = tree.leaf(keys, "create", "make a key; stdout has the key alone", ADMIN, _command("keys", "create_key"))
    create.add_argument("--tenant", help="whose key it is")
    create.add_argument("--project", help="the key's project")
    create.add_argument("--create-project", action="store_true", help="make the project if the tenant has none such")
    create.add_argument("--admin", action="store_true", help="a key for the tenant's reports, not for inference")
    create.add_argument("--operator", action="store_true", help="a key for who runs Turnpike (/admin/v1), of no tenant")
    create.add_argument("--name", default="", help="what the key is for; with --operator, who presents it")
    revoke = tree.leaf(keys, "revoke", "stop a key, everywhere within a second", ADMIN, _command("keys", "revoke_key"))
    revoke.add_argument("key", help="its public id, the part after tp_live_ (the whole key works too)")
    listing = tree.leaf(
        keys, "list", "keys by tenant and project, without secrets", ADMIN, _command("keys", "list_keys")
    )
    listing.add_argument("--tenant", help="of one tenant alone")

    tenants = tree.group("tenants", "customers: who has money and projects")
    tree.leaf(tenants, "create", "make a tenant", ADMIN, _command("tenants", "create_tenant")).add_tenant_first()
    money_arguments.declare(tree, tenants, _command)
    line = tree.leaf(
        tenants, "credit-line", "how much may be used before it is paid; 0: prepaid", ADMIN,
        _command("tenants", "set_credit_line"),
    )  # fmt: skip
    line.add_tenant_first()
    line.add_argument("amount", help="in the currency's units, such as 500.00")
    line.add_argument("--dry-run", action="store_true", help="say what would change, change nothing")
    tree.leaf(tenants, "list", "tenants with their balances", ADMIN, _command("tenants", "list_tenants"))

    price_arguments.declare(tree, _command)
    budget_arguments.declare(tree, _command)

    usage = tree.leaf(
        top, "usage", "tokens by class and exact cost, by project and model", ADMIN, _command("usage", "usage")
    )
    usage.add_argument("--period", "--month", help="such as 2026-11; default: this month (UTC)")
    usage.add_argument("--tenant", help="one tenant alone")
    usage.add_argument("--format", choices=["table", "csv", "json"], default="table")

    _add_exports(tree)
    _add_webhooks(tree)
    _add_periods(tree)
    _add_invoices(tree)
    _add_audits(tree)

    secret = tree.group("secrets", "the server's secrets file")
    make = tree.leaf(secret, "create", "make a secrets file", ADMIN, _command("installation", "create_secrets"))
    make.add_argument("file")
    tree.leaf(
        secret, "rotate-pepper", "add a new current pepper for keys", ADMIN, _command("installation", "rotate_pepper")
    )

    listing = tree.leaf(top, "settings", "the settings in force", ADMIN, _settings)
    listing.add_argument("--markdown", action="store_true", help="print the reference instead")
    return tree.root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. 2: the command line or a setting is wrong, or the role cannot start; 75: not
    now, since the database is away."""
    parsed = build_parser().parse_args(arguments)
    try:
        given = settings.load(vars(parsed))
    except SettingError as error:
        print(f"turnpike: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    logs.configure(given.log_level, given.log_format)
    if parsed.parent_pid is not None:
        stop_with_parent(parsed.parent_pid)
    run: Command = parsed.run
    try:
        return run(given, parsed)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    except Exception as error:
        if not isinstance(error, failures.known()):
            raise
        print(f"turnpike: {error}", file=sys.stderr)
        return EXIT_TEMPORARY if isinstance(error, failures.temporary()) else EXIT_UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
