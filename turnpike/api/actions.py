"""Commands that are declared: which operation, its arguments, and how its answer is shown.

Arguments and flags are the operation's fields. A declaration has words for them, other names where a command line has
always had others, and what is typed otherwise than the field is written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from turnpike.api.client import Api, ApiError, ChangeWaits, open_api
from turnpike.api.operations import Field, operations
from turnpike.command_context import EXIT_PENDING, print_table
from turnpike.command_line import Command, CommandError, CommandParser, remote_url
from turnpike.settings.settings import Settings

Object: TypeAlias = dict[str, Any]
Show: TypeAlias = Callable[[Any, argparse.Namespace], str | None]
Cell: TypeAlias = "str | Callable[[Object], object]"
Work: TypeAlias = Callable[[Api, argparse.Namespace], Awaitable[int | None]]
_TENANT = "tenant"
_ELSEWHERE = (_TENANT, "reason")
"""Fields that several commands take by an argument of their own."""


class Flag(Struct, frozen=True):
    """A field on the command line. `name`: of the flag, without dashes, or of the argument; `read`: what is typed → the
    field's value."""

    help: str = ""
    name: str = ""
    read: Callable[[Any], Any] | None = None
    metavar: str | None = None
    default: Any = None
    required: bool = False
    nargs: str | None = None


def add_action(
    parser: CommandParser,
    name: str,
    text: str,
    operation: str,
    *,
    arguments: Sequence[str] = (),
    flags: Mapping[str, str | Flag] | None = None,
    columns: Mapping[str, Cell] | None = None,
    empty: str = "",
    show: str | Show = "",
    alone: str = "",
    after: Callable[[Object], None] | None = None,
) -> CommandParser:
    """Declare `turnpike … NAME`, which calls one operation.

    `arguments`: fields that are positional arguments; every other one of `flags` is a flag. `columns`: header → field
    of each listed object; `empty`: what is printed when there are none. `show`: what is printed of another answer, with
    `{field}` of it. `alone`: the field that is printed alone, when `show` goes to stderr. `after`: prints what follows
    the table.
    """

    async def work(api: Api, parsed: argparse.Namespace) -> None:
        values = field_values(parsed, operation)
        if columns is not None:
            answer = await api.pages(operation, **values)
        else:
            answer = await api.call(operation, **values)
        if print_json(parsed, answer):
            return
        if columns is not None:
            print_objects(answer["data"], columns, empty)
            if after is not None:
                after(answer)
        else:
            said = show(answer, parsed) if callable(show) else show.format_map(answer)
            if said:
                print(said, file=sys.stderr if alone in answer else sys.stdout)
            if alone in answer:
                print(answer[alone])

    action = add_work(parser, name, text, work)
    if columns is not None:
        action.add_format("json")
    add_fields(action, operation, arguments, flags or {})
    return action


def add_work(parser: CommandParser, name: str, text: str, work: Work, by_hand: Command | None = None) -> CommandParser:
    """Declare `turnpike … NAME`, which calls operations as `work` does. `by_hand`: what is run on the data folder here,
    where that does more than the operations."""
    action = parser.add_action(name, text, _command(work, by_hand), calls_api=True)
    action.add_argument("--json", dest="format", action="store_const", const="answer", default="table",
                        help="print what the API answers")  # fmt: skip
    action.set_defaults(api_names={}, api_readers={})
    return action


def _command(work: Work, by_hand: Command | None) -> Command:
    def command(settings: Settings, arguments: argparse.Namespace) -> int:
        if by_hand is not None and remote_url(arguments) is None:
            return by_hand(settings, arguments)
        return asyncio.run(_run(settings, arguments, work))

    return command


async def _run(settings: Settings, arguments: argparse.Namespace, work: Work) -> int:
    async with open_api(settings, arguments) as api:
        try:
            if getattr(arguments, "by", None):
                api.act_for(arguments.by)
            return await work(api, arguments) or 0
        except ChangeWaits as waits:
            print(f"{waits}: `turnpike approvals approve {waits.change['id']}`")
            return EXIT_PENDING
        except ApiError as error:
            name = arguments.api_names.get(error.field, error.field.replace("_", "-"))
            raise ApiError(error.status, f"{name}: {error}" if name else str(error)) from error


def add_fields(
    action: CommandParser, operation: str, arguments: Sequence[str], flags: Mapping[str, str | Flag]
) -> None:
    """Take fields of an operation, the positional ones first."""
    names: dict[str, str] = {}
    readers: dict[str, Callable[[Any], Any]] = {}
    for name in (*arguments, *(name for name in flags if name not in arguments)):
        field = operations()[operation].field(name)
        assert field is not None, f"{operation} has no {name}"
        flag = flags.get(name, "")
        flag = Flag(flag) if isinstance(flag, str) else flag
        if name == _TENANT and name in arguments and not flag.name:
            action.add_tenant_first()
            continue
        readers[name] = flag.read or _reader(field)
        names[name] = _add_field(action, field, flag, positional=name in arguments)
    if operations()[operation].field("dry_run"):
        action.add_argument(
            "--dry-run", dest="api_dry_run", action="store_true", help="check everything and write nothing"
        )
    action.set_defaults(api_names=names, api_readers=readers)


def _add_field(action: CommandParser, field: Field, flag: Flag, *, positional: bool) -> str:
    shown = flag.name or field.name.replace("_", "-")
    options: dict[str, Any] = {
        "help": flag.help or field.about or None,
        "metavar": flag.metavar or shown.upper(),
        "nargs": flag.nargs,
    }
    if field.choices and flag.read is None:
        options |= {"choices": field.choices, "metavar": None}
    if positional:
        action.add_argument(f"api_{field.name}", **options)
        return shown.upper()
    if field.type == "boolean":
        action.add_argument(f"--{shown}", dest=f"api_{field.name}", action="store_true", help=options["help"])
    else:
        required = flag.required or (field.required and flag.default is None)
        action.add_argument(f"--{shown}", dest=f"api_{field.name}", required=required, default=flag.default, **options)
    return f"--{shown}"


def _reader(field: Field) -> Callable[[Any], Any]:
    """Reads what is typed for a field, by its type."""
    if field.type == "array":
        return lambda text: [_integer(part) if field.items == "integer" else part.strip() for part in text.split(",")]
    return _integer if field.type == "integer" else str


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CommandError(f"{text!r} is not a whole number") from None


def field_values(parsed: argparse.Namespace, operation: str) -> dict[str, Any]:
    """The values of an operation's fields that the command line gives. Raises CommandError."""
    values: dict[str, Any] = {}
    for field in operations()[operation].fields:
        typed = getattr(parsed, f"api_{field.name}", None)
        if field.name in _ELSEWHERE and typed is None:
            typed = getattr(parsed, field.name, None)
        if typed is None or typed is False:
            continue
        try:
            values[field.name] = parsed.api_readers.get(field.name, str)(typed) if typed is not True else True
        except CommandError as error:
            raise CommandError(f"{parsed.api_names[field.name]}: {error}") from error
    return values


async def tenant_names(api: Api) -> dict[str, str]:
    """The names of the tenants by their ids."""
    return {tenant["id"]: tenant["name"] for tenant in await api.list("list_tenants")}


def day(text: str) -> str:
    """The instant at which a day begins (UTC). Raises CommandError."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).strftime("%Y-%m-%dT00:00:00Z")
    except ValueError:
        raise CommandError(f"{text!r} is not a day such as 2026-12-31") from None


def print_json(parsed: argparse.Namespace, answer: Any) -> bool:
    """Print what the API answers, with `--format json` the objects of a list alone; whether either was asked for."""
    if parsed.format == "table":
        return False
    is_list = parsed.format == "json" and isinstance(answer, dict) and answer.get("object") == "list"
    print_answer(answer["data"] if is_list else answer)
    return True


def print_answer(answer: Any) -> None:
    """Print an answer as JSON."""
    print(msgspec.json.format(msgspec.json.encode(answer)).decode())


def print_objects(objects: Sequence[Object], columns: Mapping[str, Cell], empty: str = "") -> None:
    """Print objects as a table, or that there are none."""
    if objects or not empty:
        print_table(list(columns), [[_shown(one, cell) for cell in columns.values()] for one in objects])
    else:
        print(empty)


def _shown(one: Object, cell: Cell) -> object:
    value = cell(one) if callable(cell) else one[cell]
    return "-" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else value
