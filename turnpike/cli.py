"""`turnpike …`: parse the command line, load the settings, run one command, turn known failures into one clear line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from storage.disk_space import is_disk_full
from turnpike import failures, logs
from turnpike.commands import budget_arguments, invoice_arguments, money_arguments, platform_arguments, price_arguments
from turnpike.commands.tenant_argument import CommandParser
from turnpike.processes.children import EXIT_TEMPORARY, EXIT_UNUSABLE, stop_with_parent
from turnpike.settings import settings
from turnpike.settings.data_folder import OWNER_ONLY
from turnpike.settings.settings import ADMIN, ENGINE, GATEWAY, SERVE, WORKER, SettingError, Settings

Command = Callable[[Settings, argparse.Namespace], int]
Actions: TypeAlias = "argparse._SubParsersAction[CommandParser]"


def _serve(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike.commands import serve  # noqa: PLC0415  # each role imports only what it runs

    return serve.serve(given)


def _gateway(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike.commands import gateway as roles  # noqa: PLC0415

    return roles.gateway(given, listen_fd=arguments.listen_fd, metrics_fd=arguments.metrics_fd)


def _engine(given: Settings, arguments: argparse.Namespace) -> int:
    from turnpike.commands import engine as replica_process  # noqa: PLC0415

    if arguments.health:
        return replica_process.probe_engine(given)
    return replica_process.engine(given, parent=arguments.parent_pid)


def _worker(given: Settings, arguments: argparse.Namespace) -> int:
    if arguments.health:
        from turnpike.commands import worker_health  # noqa: PLC0415

        return worker_health.check_worker(given)
    from turnpike.commands import gateway as roles  # noqa: PLC0415

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


def _add_journals(tree: _Parser) -> None:
    journals = tree.group("journals", "replicas' journals: which there are, and which are lost")
    text = "the journals that gateways have met, and what waits for their word"
    listing = tree.leaf(journals, "list", text, ADMIN, _command("journals", "list_journals"))
    listing.add_argument("--format", choices=["table", "json"], default="table")
    text = "wait no more for a journal that is lost with its disk: holds that it may have known are given back"
    lost = tree.leaf(journals, "declare-lost", text, ADMIN, _command("journals", "declare_journal_lost"))
    lost.add_argument("journal", metavar="REPLICA", help="the replica's name, or the journal's id by `journals list`")
    lost.add_argument("--reason", required=True, help="what happened to it; kept for ever")
    lost.add_argument("--by", help="who says so; default: who runs the command")


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


def _add_keys(tree: _Parser) -> None:
    keys = tree.group("keys", "API keys")
    create = tree.leaf(keys, "create", "make a key; stdout has the key alone", ADMIN, _command("keys", "create_key"))
    create.add_argument("--tenant", help="whose key it is")
    create.add_argument("--project", help="the key's project")
    create.add_argument("--create-project", action="store_true", help="make the project if the tenant has none such")
    create.add_argument("--admin", action="store_true", help="a key for the tenant's reports, not for inference")
    create.add_argument("--operator", action="store_true", help="a key for who runs Turnpike (/admin/v1), of no tenant")
    create.add_argument("--name", default="", help="what the key is for; with --operator, who presents it")
    platform_arguments.add_second_operator(create)
    revoke = tree.leaf(keys, "revoke", "stop a key, everywhere within a second", ADMIN, _command("keys", "revoke_key"))
    revoke.add_argument("key", help="its public id, the part after tp_live_ (the whole key works too)")
    listing = tree.leaf(
        keys, "list", "keys by tenant and project, without secrets", ADMIN, _command("keys", "list_keys")
    )
    listing.add_argument("--tenant", help="of one tenant alone")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    tree = _Parser()
    top = tree.commands

    tree.leaf(top, "serve", "everything on this machine, with nothing to set up", SERVE, _serve)
    gateway = tree.leaf(top, "gateway", "the API processes of a deployment", GATEWAY, _gateway)
    gateway.add_argument("--listen-fd", type=int, default=None, help=argparse.SUPPRESS)
    gateway.add_argument("--metrics-fd", type=int, default=None, help=argparse.SUPPRESS)
    engine = tree.leaf(top, "engine", "one replica of a served model", ENGINE, _engine)
    engine.add_argument("--health", action="store_true", help="probe the replica at --listen and exit 0 if it is well")
    worker = tree.leaf(top, "worker", "billing jobs", WORKER, _worker)
    worker.add_argument("--health", action="store_true", help="exit 0 if the worker on this host does its jobs")
    tree.leaf(top, "migrate", "bring the database to this version", ADMIN, _command("installation", "migrate"))
    models = tree.leaf(
        top, "models", "served models: digest, context, price, replicas", ADMIN, _command("models", "models")
    )
    models.add_argument("--format", choices=["table", "json"], default="table")

    _add_keys(tree)

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
    platform_arguments.declare(tree, _command)
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
    _add_journals(tree)
    invoice_arguments.declare(tree, _command)
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
    now, since the database is away or the disk is full."""
    parsed = build_parser().parse_args(arguments)
    try:
        given = settings.load(vars(parsed))
    except SettingError as error:
        print(f"turnpike: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    logs.configure(given.log_level, given.log_format)
    before = os.umask(OWNER_ONLY)
    try:
        return _run(given, parsed)
    finally:
        os.umask(before)


def _run(given: Settings, parsed: argparse.Namespace) -> int:
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
        if is_disk_full(error):
            print(f"turnpike: the disk is full: {error}", file=sys.stderr)
            return EXIT_TEMPORARY
        if not isinstance(error, failures.known()):
            raise
        print(f"turnpike: {error}", file=sys.stderr)
        return EXIT_TEMPORARY if isinstance(error, failures.temporary()) else EXIT_UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
