"""`turnpike cache share|unshare|shared`: prompts' beginnings whose KV projects have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from gateway.served_models.served_model import ServedModel
    from prompt_cache.promise.shared_prefixes import SharedPrefixes
    from turnpike.admin_services import AdminServices
    from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare the actions on shared prefixes."""
    text = "compute and store a system prompt once for a tenant's projects, or for everybody's"
    share = parser.add_action("share", text, share_prefix)
    share.add_argument("file", type=Path, metavar="FILE", help="the system prompt's text, as the requests have it")
    share.add_argument("--served", required=True, metavar="NAME", help="the served model whose prompts begin so")
    with_whom = share.add_mutually_exclusive_group(required=True)
    with_whom.add_argument("--tenant", metavar="NAME", help="with this tenant's projects")
    with_whom.add_argument("--public", action="store_true", help="with every project of every tenant")
    unshare = parser.add_action("unshare", "share it no longer, and erase its KV", unshare_prefix)
    unshare.add_argument("id", type=UUID, metavar="ID", help="from `turnpike cache shared`")
    for action in (share, unshare):
        action.add_argument("--reason", required=True, help="why; kept for ever")
    listing = parser.add_action("shared", "what is shared, by whom and why", list_shared)
    listing.add_argument("--ended", action="store_true", help="also what is shared no longer")
    listing.add_format("json")


@admin_command
async def share_prefix(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache share FILE --served NAME (--tenant NAME | --public) --reason WHY`."""
    from prompt_cache.promise.shared_prefixes import EVERYBODY

    model = _served(admin.settings, arguments.served)
    tokens = _system_tokens(model, arguments.file)
    tenant = EVERYBODY if arguments.public else (await admin.tenancy.tenant(arguments.tenant)).id
    made = await _shared(admin).share(
        "public" if arguments.public else "tenant",
        tenant,
        model.names,
        tokens,
        reason=arguments.reason,
    )
    whom = "everybody" if arguments.public else f"all projects of {arguments.tenant}"
    print(f"{made.id}: {made.tokens} of {len(tokens)} tokens are shared with {whom}; gateways know within seconds")


@admin_command
async def unshare_prefix(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache unshare ID --reason WHY`."""
    ended = await _shared(admin).end(arguments.id, reason=arguments.reason)
    print(f"{ended.id}: shared no longer; gateways tell replicas within seconds to forget its KV")


@admin_command
async def list_shared(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache shared`."""
    from storage.database.base import from_instant

    listed = await _shared(admin).listed(ended=arguments.ended)
    if arguments.format == "json":
        rows = [msgspec.to_builtins(one) | {"digest": one.digest.hex()} for one in listed]
        print(msgspec.json.encode(rows).decode())
        return
    print_table(
        ("id", "with", "model", "tokens", "since", "by", "reason", "until"),
        [
            (
                one.id,
                "everybody" if one.reach == "public" else one.tenant_id,
                one.model,
                one.tokens,
                from_instant(one.shared_at).isoformat(timespec="seconds"),
                one.shared_by,
                one.reason,
                "" if one.ended_at is None else from_instant(one.ended_at).isoformat(timespec="seconds"),
            )
            for one in listed
        ],
    )


def _served(settings: Settings, name: str) -> ServedModel:
    from gateway.served_models.served_model import load_served_model

    served = [load_served_model(folder) for folder in settings.model_folders]
    for model in served:
        if model.name == name:
            return model
    raise CommandError(f"--served: {name!r} is not served here, but {', '.join(model.name for model in served)}")


def _system_tokens(model: ServedModel, file: Path) -> list[int]:
    """The tokens of a prompt up to the end of this system text."""
    from gateway.generation_request import Text, Turn

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from error
    turns = (Turn("system", (Text(text, "system"),)), Turn("user", (Text("?", "user"),)))
    prompt = model.prompt(turns)
    end = next((span.end for span in prompt.spans if span.path == "system"), 0)
    if not end:
        raise CommandError("the model's chat template says nothing of where a system text ends")
    return list(prompt.tokens[:end])


def _shared(admin: AdminServices) -> SharedPrefixes:
    from prompt_cache.promise.scope_keys import ScopeKeys
    from prompt_cache.promise.shared_prefixes import SharedPrefixes
    from turnpike.settings.data_folder import read_secrets

    keys = ScopeKeys(admin.database, read_secrets(admin.settings).master_key)
    return SharedPrefixes(admin.database, keys)
