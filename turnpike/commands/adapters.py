"""`turnpike adapters`: LoRA adapters of a tenant's projects: checked, uploaded, listed, removed, and where they are."""

from __future__ import annotations

import argparse
import asyncio
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnpike.api.actions import Cell, Flag, Object, add_action, add_work, print_json, print_objects
from turnpike.api.client import Api
from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from model_files.adapter_file import AdapterFile
    from turnpike.admin_services import AdminServices
    from turnpike.settings.settings import Settings

_TENANT = Flag("whose adapters they are", metavar="NAME", required=True)
_ADAPTER = Flag("its id, from the list", metavar="ID")
_FILES = ("adapter_config.json", "adapter_model.safetensors")
_MIB = 1 << 20


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike adapters …`."""
    flags: dict[str, Any] = {
        "tenant": _TENANT,
        "project": Flag("only of this project", metavar="NAME"),
        "limit": Flag("how many; default: all"),
    }
    add_action(
        parser,
        "list",
        "the adapters, the newest first, with this month's use",
        "list_adapters",
        flags=flags,
        columns={
            **{"id": "id", "project": "project", "model": "model", "rank": "rank", "bytes": "bytes"},
            **{"made": "created_at", "ready at": _ready_at},
            "requests": lambda adapter: adapter["use"]["requests"],
            "tokens": lambda adapter: adapter["use"]["input_tokens"] + adapter["use"]["output_tokens"],
            "cost": _cost,
        },
        empty="none",
    )
    of_one = {"tenant": _TENANT, "adapter": _ADAPTER}
    add_action(
        parser,
        "show",
        "one adapter: what it changes, where it is ready, what it cost this month",
        "retrieve_adapter",
        arguments=("adapter",),
        flags=of_one,
        show=_described,
    )
    add_action(
        parser,
        "delete",
        "delete an adapter; requests that run with it go on to their end",
        "delete_adapter",
        arguments=("adapter",),
        flags=of_one,
        show="the adapter {id} is deleted",
    )
    checking = parser.add_action("check", "say whether a folder of PEFT's has an adapter that can be served", check)
    _add_folder(checking)
    checking.add_argument("--base", metavar="DIR", help="folder of the base model, whose shapes it must have")
    text = "upload the adapter in a folder of PEFT's, at a gateway (--url)"
    uploading = add_work(parser, "upload", text, _upload, by_hand=_nowhere)
    _add_folder(uploading)
    uploading.add_argument("--base", metavar="MODEL", required=True, help="the served model that it changes")
    uploading.add_argument("--name", required=True, help="its name: requests ask for MODEL:NAME")
    uploading.add_argument("--tenant", metavar="NAME", help="whose it is; without it the key is a project's")
    uploading.add_argument("--project", default="default", metavar="NAME", help="of that tenant; default: default")
    uploading.add_argument("--dry-run", action="store_true", help="let the gateway check it, and keep nothing")
    add_work(parser, "replicas", "which replica has which adapters ready", _replicas, by_hand=replicas)


def _add_folder(action: CommandParser) -> None:
    action.add_argument("folder", type=Path, metavar="FOLDER", help=f"has {' and '.join(_FILES)}")


def check(_: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike adapters check`: 0 if the adapter can be served."""
    file = _read(arguments.folder, None if arguments.base is None else Path(arguments.base))
    layers = len({name.split(".layers.")[1].split(".")[0] for name in file.modules})
    print(f"{arguments.folder}: can be served")
    print(f"  rank     {file.rank}, alpha {file.config.alpha:g}")
    print(f"  changes  {', '.join(file.targets)} in {layers} layers")
    if file.config.invocation:
        print(f"  acts     from the tokens {', '.join(map(str, file.config.invocation))} on")
    print(f"  bytes    {file.bytes}")
    return 0


def _read(folder: Path, base: Path | None = None) -> AdapterFile:
    """The adapter in a folder, checked as a gateway would. Raises CommandError."""
    from model_files.adapter_config import AdapterRefused
    from model_files.adapter_file import read_adapter
    from model_files.adapter_trial import check_shapes, configuration

    try:
        config, tensors = ((folder / name).read_bytes() for name in _FILES)
    except OSError as error:
        raise CommandError(f"{folder}: cannot read {error.filename}; PEFT's save_pretrained writes it") from error
    try:
        file = read_adapter(config, tensors, "")
        if base is not None:
            check_shapes(file, configuration(base))
    except (AdapterRefused, OSError, ValueError) as error:
        raise CommandError(f"{folder}: {error}") from error
    return file


class _Told(BytesIO):
    """A file that says on a terminal how much of it was sent."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._size = len(content)
        self._told = -1

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        percent = self.tell() * 100 // max(self._size, 1)
        if content and percent != self._told and sys.stderr.isatty():
            self._told = percent
            end = "\n" if percent == 100 else ""
            print(f"\r{percent:3} % of {self._size / _MIB:.1f} MiB sent", end=end, file=sys.stderr, flush=True)
        return content


def _nowhere(_: Settings, __: argparse.Namespace) -> int:
    raise CommandError("an adapter is uploaded to a gateway: say which, before the command: --url URL --key KEY")


async def _upload(api: Api, arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    await asyncio.to_thread(_read, folder)  # what is refused is not sent
    config, tensors = ((folder / name).read_bytes() for name in _FILES)
    texts = {"model": arguments.base, "name": arguments.name, "config": config.decode()}
    texts |= {"dry_run": "true"} if arguments.dry_run else {}
    path = "/v1/adapters"
    if arguments.tenant is not None:
        path = f"/admin/v1/tenants/{arguments.tenant}/projects/{arguments.project}/adapters"
    answer = await api.upload(path, texts, (_FILES[1], _Told(tensors)))
    if print_json(arguments, answer):
        return
    if arguments.dry_run:
        print(f"{answer['model']} would be made: rank {answer['rank']}, {answer['bytes']} bytes; nothing is kept")
    else:
        print(f"{answer['id']}: requests ask for the model {answer['model']}")


async def _replicas(api: Api, arguments: argparse.Namespace) -> None:
    answer = await api.call("show_fleet")
    if print_json(arguments, answer):
        return
    rows = [{"replica": one["name"], **adapter} for one in answer["data"] for adapter in one["adapters"]]
    columns: dict[str, Cell] = {
        "replica": "replica",
        "model": "model",
        "project": "project_id",
        "digest": _short_digest,
    }
    print_objects(rows, columns, "no replica has an adapter ready")


@admin_command
async def replicas(admin: AdminServices, _: argparse.Namespace) -> None:
    """`turnpike adapters replicas` on the data folder: what the replicas themselves say."""
    from protocol.adapters import digest_of, project_of
    from turnpike.processes.replica_probe import ask_replicas

    ready = [
        (probe.hello.replica, one.name)
        for probe in (await ask_replicas(admin.settings)).values()
        if probe is not None and probe.heartbeat is not None
        for one in probe.heartbeat.adapters
        if one.ready
    ]
    keys = {name: key for _, name in ready if (key := project_of(name)) is not None}
    known, names = await admin.adapters.of_digests(set(keys.values())), await admin.display_names()
    rows = []
    for replica, name in sorted(ready):
        adapter = known.get(keys[name]) if name in keys else None
        whose = ("-", "-", "deleted")
        if adapter is not None:
            whose = (names.tenants[adapter.tenant_id], names.projects[adapter.project_id], adapter.full_name)
        rows.append((replica, *whose, digest_of(name)[:12]))
    if rows:
        print_table(("replica", "tenant", "project", "model", "digest"), rows)
    else:
        print("no replica has an adapter ready")


def _short_digest(adapter: Object) -> str:
    return str(adapter["digest"])[:12]


def _ready_at(adapter: Object) -> object:
    return adapter["resident"] or None


def _cost(adapter: Object) -> str:
    return ", ".join(f"{one['amount']} {one['currency']}" for one in adapter["use"]["cost"]) or "-"


def _described(adapter: Object, _: argparse.Namespace) -> str:
    use = adapter["use"]
    lines = [
        f"{adapter['id']}: {adapter['model']}",
        f"  project  {adapter['project'] or adapter['project_id']}",
        f"  rank     {adapter['rank']}, alpha {adapter['alpha']:g}",
        f"  changes  {', '.join(adapter['targets'])} in {adapter['layers']} layers of {adapter['base']}",
        f"  bytes    {adapter['bytes']}",
        f"  digest   {adapter['digest']}",
        f"  made     {adapter['created_at']}",
    ]
    if adapter["resident"] is not None:
        lines.append(f"  ready    {', '.join(adapter['resident']) or 'at no replica'}")
    lines += [
        f"  {use['month']}  {use['requests']} requests, {use['input_tokens']} input and {use['output_tokens']} output "
        f"tokens, {use['ready_hours']:g} hours ready",
        f"  cost     {_cost(adapter)}",
    ]
    return "\n".join(lines)
