"""What is typed of a key: which kind it is, its limits, until when, and its id."""

from __future__ import annotations

import argparse
import re
import time

from turnpike.command_line import CommandError

_DURATION = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LIMITS = ("scopes", "networks", "models", "lanes")
NO_LIMIT = "none"
BATCHES = "; batches that it ordered go on (--leaked stops them)"
"""What is said of a key that was revoked and not leaked."""


def check_kind(arguments: argparse.Namespace) -> None:
    """Raise CommandError unless the flags say of one kind of key all that it needs."""
    if [bool(arguments.project), arguments.admin, arguments.operator].count(True) != 1:
        raise CommandError("say one of --project NAME (for inference), --admin (for the tenant's reports), --operator")
    if arguments.operator == bool(arguments.tenant):
        needed = "--operator is for a key of no tenant" if arguments.operator else "say --tenant NAME: whose key it is"
        raise CommandError(needed)
    if arguments.operator and not arguments.name.strip():
        raise CommandError("say --name WHO: operators are told apart by it")
    if arguments.user and not arguments.operator:
        raise CommandError("--user is for --operator: which user the operator is")
    if arguments.project and arguments.role:
        raise CommandError("--role is for --admin and --operator: the key of a project has none")
    if arguments.operator and (arguments.models or arguments.lanes):
        raise CommandError("--models and --lanes are for inference, which an operator's key is not for")


def listed(text: str | None) -> list[str] | None:
    """The values of a list; None for no limit."""
    return None if text in (None, NO_LIMIT) else [part.strip() for part in str(text).split(",") if part.strip()]


def when(text: str | None, flag: str) -> int | None:
    """The instant that a duration from now or a day says, in microseconds since the Unix epoch; None for none.

    Raises CommandError, also for a day that has passed.
    """
    from billing.calendar import InvalidInstant, parse_instant

    if text in (None, NO_LIMIT):
        return None
    assert text is not None
    now = time.time_ns() // 1000
    if match := _DURATION.fullmatch(text):
        if not int(match[1]) and flag == "--expires":
            raise CommandError(f"{flag}: {text!r} is an end at once; `turnpike keys revoke KEY` stops a key")
        return now + int(match[1]) * _SECONDS[match[2]] * 1_000_000
    try:
        moment = None if text.isdecimal() else parse_instant(text)  # 30 is a mistake for 30d, no instant
    except InvalidInstant:
        moment = None
    if moment is None:
        raise CommandError(f"{flag}: {text!r} is neither a duration such as 30d nor a day such as 2027-01-01")
    if moment <= now:
        raise CommandError(f"{flag}: {text!r} has passed")
    return moment


def public_id(whole_key_or_id: str) -> str:
    """The public id of a key that was typed whole, or by its id."""
    from tenancy.keys import PREFIX

    return whole_key_or_id.removeprefix(PREFIX + "_").split("_")[0]
