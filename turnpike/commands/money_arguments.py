"""What `turnpike tenants credit|grant|refund|adjust|statement` takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from turnpike.settings.settings import ADMIN


def declare(tree: Any, tenants: Any, command: Callable[[str, str], Any]) -> None:
    """Add the commands to the group `turnpike tenants`."""
    credit = tree.leaf(tenants, "credit", "note down money that was paid", ADMIN, command("money", "credit_tenant"))
    grant = tree.leaf(tenants, "grant", "give credit for nothing", ADMIN, command("money", "grant_tenant"))
    refund = tree.leaf(
        tenants, "refund", "note down that unused paid money was paid back", ADMIN, command("money", "refund_tenant")
    )
    adjust = tree.leaf(
        tenants, "adjust", "correct one request's usage by a new event", ADMIN, command("money", "adjust_usage")
    )
    statement = tree.leaf(
        tenants, "statement", "what changed the balance, and how much it was then", ADMIN,
        command("money", "show_statement"),
    )  # fmt: skip
    for parser in (credit, grant, refund, adjust, statement):
        parser.add_tenant_first()
    for parser in (credit, grant, refund):
        parser.add_argument("amount", help="in the currency's units, such as 25.00")
        parser.add_argument("--currency", help="such as EUR; default: the balance's, else USD")
    _use(credit)
    _use(grant)
    grant.add_argument("--for-model", help="for requests to this model only")
    grant.add_argument("--for-project", help="for requests of this project only")
    adjust.add_argument("event", help="the id of the usage event: the request's id")
    adjust.add_argument("units", nargs="+", metavar="METER=UNITS", help="what to add, such as output=-120")
    defaults = {"manual payment": credit, "goodwill": grant, "refund": refund, "correction": adjust}
    for reason, parser in defaults.items():
        parser.add_argument("--reason", default=reason, help="what the statement says; default: %(default)s")
        parser.add_argument("--id", help="an id of your own (a UUIDv7): repeated under the same one, it counts once")
        parser.add_argument("--dry-run", action="store_true", help="check it, and write nothing")
    statement.add_argument("--since", help="the first day, such as 2026-11-01 (UTC)")
    statement.add_argument("--until", help="the day after the last")
    statement.add_argument("--every", action="store_true", help="each posting of usage; default: a day's usage is one")
    statement.add_argument("--format", choices=["table", "json"], default="table")


def _use(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--priority", type=int, help="the lowest is used first; default: 50 if given, 100 if paid")
    parser.add_argument(
        "--expires", metavar="DAY", help="unused, it is lost from this day on, such as 2027-01-01 (UTC)"
    )
