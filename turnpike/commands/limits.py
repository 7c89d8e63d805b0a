"""`turnpike limits`: how much a project or key may use a minute, and at once."""

from __future__ import annotations

import argparse

from turnpike.api.actions import Flag, Object, add_fields, add_work, field_values, print_json, print_objects
from turnpike.api.client import Api, ApiError
from turnpike.command_context import DEFAULT_PROJECT
from turnpike.command_line import CommandError, CommandParser

_NONE = "none"
_LIMITS = {
    "requests_per_minute": ("requests", "requests a minute"),
    "input_tokens_per_minute": ("input-tokens", "input tokens a minute that are not read from the cache"),
    "output_tokens_per_minute": ("output-tokens", "output tokens a minute"),
    "concurrent_requests": ("concurrent", "requests that run at once"),
}
"""Limit → the flag that sets it, and what it is."""


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike limits …`."""
    put = add_work(parser, "set", "set limits of a project or key; those not named stay", _set)
    _add_subject(put)
    flags = {
        name: Flag(f"{text}; {_NONE}: no limit", flag, _number, "NUMBER") for name, (flag, text) in _LIMITS.items()
    }
    add_fields(put, "set_project_limits", (), flags | {"reason": Flag("is recorded", default="")})
    listing = add_work(parser, "list", "limits by tenant and project", _list)
    listing.add_tenant_first(optional=True)
    listing.add_format("json")
    remove = add_work(parser, "remove", "remove all limits of a project or key", _remove)
    _add_subject(remove)
    add_fields(remove, "remove_project_limits", (), {"reason": Flag("is recorded", default="")})


def _add_subject(action: CommandParser) -> None:
    action.add_tenant_first()
    action.add_argument("--project", help=f"the project; default: {DEFAULT_PROJECT}")
    action.add_argument("--key", help="one key instead: its public id")


async def _subject(api: Api, parsed: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """`key` or `project`, and which."""
    if parsed.key is None:
        project = await api.call("retrieve_project", tenant=parsed.tenant, project=parsed.project or DEFAULT_PROJECT)
        return "project", {"project": project["id"]}
    if parsed.project is not None:
        raise CommandError("limits are of --project or of --key, not of both")
    key = await api.call("retrieve_key", tenant=parsed.tenant, key=parsed.key)
    return "key", {"key": key["id"]}


async def _set(api: Api, parsed: argparse.Namespace) -> None:
    named = field_values(parsed, "set_project_limits")
    if not named.keys() - {"reason"}:
        raise CommandError(f"say at least one of {', '.join(f'--{flag} NUMBER' for flag, _ in _LIMITS.values())}")
    kind, subject = await _subject(api, parsed)
    try:
        before = await api.call(f"retrieve_{kind}_limits", **subject)
    except ApiError as error:
        if error.status != 404:
            raise
        before = {}
    values = {name: before.get(name) for name in _LIMITS} | named
    limits = {name: None if value == _NONE else value for name, value in values.items()}
    after = await api.call(f"set_{kind}_limits", **subject, **limits)
    if not print_json(parsed, after):
        print("set: " + ", ".join(f"{_shown(after, name)} {text}" for name, (_, text) in _LIMITS.items()))


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    of = {"tenant_id": (await api.call("retrieve_tenant", tenant=parsed.tenant))["id"]} if parsed.tenant else {}
    limits = await api.call("list_limits", **of)
    if print_json(parsed, limits):
        return
    columns = {"tenant": "tenant", "project": "project"}
    print_objects(
        limits["data"],
        {
            **columns,
            "key": lambda one: one["key"] or "(project)",
            **{flag.replace("-", " "): name for name, (flag, _) in _LIMITS.items()},
        },
    )


async def _remove(api: Api, parsed: argparse.Namespace) -> None:
    kind, subject = await _subject(api, parsed)
    try:
        await api.call(f"remove_{kind}_limits", **subject, **field_values(parsed, "remove_project_limits"))
    except ApiError as error:
        if error.status != 404:
            raise
        raise CommandError("no limits are set there: see `turnpike limits list`") from error
    print("removed")


def _number(text: str) -> int | str:
    if text == _NONE:
        return text
    if not (text.isascii() and text.isdigit()):
        raise CommandError(f"a whole number or {_NONE}, not {text!r}")
    return int(text[:20])


def _shown(limits: Object, name: str) -> object:
    return "-" if limits[name] is None else limits[name]
