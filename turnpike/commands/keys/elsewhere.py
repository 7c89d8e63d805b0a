"""`turnpike keys …` by the operations of /admin/v1: the list, and what is done at a gateway elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from turnpike.api.actions import Object, print_json, print_objects
from turnpike.api.client import NULL, Api, ApiError
from turnpike.command_line import CommandError
from turnpike.commands.keys.typed import BATCHES, LIMITS, NO_LIMIT, check_kind, listed, public_id, when


async def create_key(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike keys create`: the key alone on stdout."""
    check_kind(parsed)
    names = ("scopes", "networks") if parsed.operator else LIMITS
    fields: dict[str, Any] = {name: listed(getattr(parsed, name)) for name in names}
    fields |= {"role": parsed.role, "name": parsed.name, "expires_at": _instant(parsed.expires, "--expires")}
    fields["dry_run"] = parsed.dry_run or None
    if parsed.operator:
        made = await api.call("create_operator_key", user=parsed.user, **fields)
    else:
        if parsed.create_project and not parsed.dry_run:
            await _make_project(api, parsed)
        made = await api.call("create_key", tenant=parsed.tenant, project=parsed.project, **fields)
    if print_json(parsed, made):
        return
    if parsed.dry_run:
        print(f"checked, nothing written; it would allow: {', '.join(made['permissions'])}")
    else:
        print(made["key"])


async def _make_project(api: Api, parsed: argparse.Namespace) -> None:
    try:
        await api.call("create_project", tenant=parsed.tenant, name=parsed.project)
    except ApiError as error:
        if error.code != "name_taken":
            raise


async def change_key(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike keys change KEY`."""
    _check_no_dry_run(parsed)
    fields: dict[str, Any] = {"name": parsed.name, "role": parsed.role}
    for name in LIMITS:
        if (text := getattr(parsed, name)) is not None:
            fields[name] = NULL if text == NO_LIMIT else listed(text)
    if parsed.expires is not None:
        fields["expires_at"] = _instant(parsed.expires, "--expires") or NULL
    if all(value is None for value in fields.values()):
        raise CommandError("nothing to change: say --name, --role, --expires or a limit")
    _show(parsed, await _call(api, "change", parsed, **fields), "changed {id}")


async def rotate_key(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike keys rotate KEY`: the key with its new secret alone on stdout."""
    _check_no_dry_run(parsed)
    until = _instant(parsed.overlap, "--overlap")
    if until is None:
        raise CommandError("--overlap: the present secret has to end; say when, such as 24h")
    key = await _call(api, "rotate", parsed, old_secret_until=until)
    print(f"the earlier secret of {key['id']} works until {key['old_secret_until'] or 'now'}", file=sys.stderr)
    _show(parsed, key, "{key}")


async def revoke_key(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike keys revoke KEY`."""
    _check_no_dry_run(parsed)
    fields = {"leaked": True} if parsed.leaked else {}
    _show(parsed, await _call(api, "revoke", parsed, **fields), f"revoked {{id}}{'' if parsed.leaked else BATCHES}")


async def _call(api: Api, verb: str, parsed: argparse.Namespace, **fields: Any) -> Object:
    """Change a key, of whatever tenant that the caller may see, or an operator's."""
    key, reason = public_id(parsed.key), parsed.reason or None
    for tenant in await api.list("list_tenants"):
        try:
            await api.call("retrieve_key", tenant=tenant["id"], key=key)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
        else:
            changed: Object = await api.call(f"{verb}_key", tenant=tenant["id"], key=key, reason=reason, **fields)
            return changed
    fields.pop("leaked", None)  # operators order no batches
    operators: Object = await api.call(f"{verb}_operator_key", key=key, reason=reason, **fields)
    return operators


def _check_no_dry_run(parsed: argparse.Namespace) -> None:
    if parsed.dry_run:
        raise CommandError("--dry-run: at --url only a new key can be checked")


def _show(parsed: argparse.Namespace, key: Object, text: str) -> None:
    if not print_json(parsed, key):
        print(text.format_map(key))


def _instant(text: str | None, flag: str) -> str | None:
    from billing.calendar import format_instant

    at = when(text, flag)
    return None if at is None else format_instant(at)


async def list_keys(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike keys list`: the keys of tenants, the first made first, then those of operators."""
    of = [await api.call("retrieve_tenant", tenant=parsed.tenant)] if parsed.tenant else await api.list("list_tenants")
    keys: list[Object] = []
    for tenant in of:
        projects = {one["id"]: one["name"] for one in await api.list("list_projects", tenant=tenant["id"])}
        keys += [
            key | {"key": key["id"], "tenant": tenant["name"], "project": projects.get(key["project_id"], "(admin)")}
            for key in reversed(await api.list("list_keys", tenant=tenant["id"]))
        ]
    if not parsed.tenant:
        try:
            operators = await api.list("list_operator_keys")
        except ApiError as error:
            if error.status != 403:  # an admin key of a tenant sees none
                raise
            operators = []
        keys += [key | {"key": key["id"], "tenant": "-", "project": "(operator)"} for key in reversed(operators)]
    if print_json(parsed, keys):
        return
    print_objects(
        keys,
        {
            **{"key": "id", "tenant": "tenant", "project": "project", "role": "role", "state": _state},
            "made": lambda key: key["created_at"][:10],
            "last used": lambda key: _minute(key["last_used_at"]) if key["last_used_at"] else "never",
            **{"limits": lambda key: ", ".join(_limits(key)) or "-", "name": "name"},
        },
    )


def _state(key: Object) -> str:
    """The state, and when it ends by itself."""
    state, ends = key["state"], key["expires_at"]
    if state == "active" and key["old_secret_until"]:
        state, ends = "two secrets", key["old_secret_until"]
    return f"{state} until {_minute(ends)}" if ends and state in ("active", "two secrets") else state


def _limits(key: Object) -> Iterator[str]:
    for name in LIMITS:
        if key[name] is not None:
            yield f"{'permissions' if name == 'scopes' else name} {' '.join(key[name])}"


def _minute(instant: str) -> str:
    return instant[:16].replace("T", " ")
