"""`turnpike prices what-if`: a closed month rated again, by tenant: by a draft, other cache rules or other leases."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from billing.money import format_pico
from turnpike.command_context import long_admin_command, print_table
from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare this action of `turnpike prices`."""
    action = parser.add_action("what-if", "what a closed month would have cost each tenant", print_impacts)
    action.add_argument("--period", required=True, help="a closed month such as 2026-11")
    action.add_argument("--sheet", type=int, help="at the prices of this sheet, a draft too")
    action.add_argument(
        "--move",
        action="append",
        default=[],
        metavar="METER=METER",
        help="tokens of the first meter count on the second, such as write_1h=write_5m; repeatable",
    )
    action.add_argument(
        "--least-read", type=int, default=0, metavar="TOKENS", help="fewer tokens read in a class are uncached ones"
    )
    action.add_format("json")


@long_admin_command
async def print_impacts(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices what-if`."""
    from billing.reports.what_if import Scenario, parse_move, what_if

    moves = dict(map(parse_move, arguments.move))
    scenario = Scenario(moves=moves, least_read=max(0, arguments.least_read))
    if arguments.sheet is not None:
        sheet = await admin.sheets.get(arguments.sheet)
        _, rows, _ = await admin.sheets.effect(sheet)
        scenario = msgspec.structs.replace(scenario, sheet=sheet, rows=rows)
    impacts = await what_if(admin.database, admin.prices, arguments.period, scenario)
    if arguments.format == "json":
        print(msgspec.json.encode(impacts).decode())
        return
    names = await admin.tenant_names()
    print_table(
        ("tenant", "model", "events", "currency", "cost", "would cost", "difference"),
        [
            (
                names.get(one.tenant_id, one.tenant_id),
                one.model,
                one.events,
                one.currency,
                format_pico(one.cost_pico),
                one.problem if one.would_cost_pico is None else format_pico(one.would_cost_pico),
                "" if one.would_cost_pico is None else format_pico(one.would_cost_pico - one.cost_pico),
            )
            for one in impacts
        ],
    )
