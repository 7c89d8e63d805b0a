"""`turnpike models`: list the served models with digest, context, price and replicas, or say what their files hold."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices
    from turnpike.settings.settings import Settings

_LONGEST_VALUE = 80


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike models`."""
    parser.runs(models)
    parser.add_argument("--files", action="store_true", help="say what the models' files hold instead")
    parser.add_format("json")


def models(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike models`."""
    return describe_files(settings, arguments) if arguments.files else list_models(settings, arguments)


def describe_files(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike models --files`: the configuration, and of a GGUF file its tensors by type."""
    described = [_description(folder) for folder in settings.model_folders]
    if arguments.format == "json":
        print(json.dumps(described, indent=2))
        return 0
    for model in described:
        print(f"{model['model']}: {', '.join(model['files']) or 'no GGUF file'}\n")
        print_table(("field", "value"), [(name, _short(value)) for name, value in model["config"].items()])
        if model["tensors"]:
            print()
            rows = [(kind, *sizes.values()) for kind, sizes in model["tensors"].items()]
            print_table(("type", "tensors", "elements", "bytes"), rows)
    return 0


def _description(folder: Path) -> dict[str, Any]:
    from model_files.gguf_file import GgufModel
    from model_files.gguf_values import GgufError
    from model_files.model_documents import gguf_of, read_document

    try:
        config: dict[str, Any] = json.loads(read_document(folder / "config.json"))
        path = gguf_of(folder)
        if path is None:
            return {"model": str(folder), "files": [], "config": config, "tensors": {}}
        with GgufModel(path) as model:
            tensors = list(model.tensors.values())
            files = [str(part) for part in model.paths]
            kind, pre = (str(model.values.get(f"tokenizer.ggml.{key}", "")) for key in ("model", "pre"))
            tokens = len(model.texts("tokenizer.ggml.tokens"))
            template = "tokenizer.chat_template" in model.values
    except (GgufError, OSError, ValueError) as error:
        raise CommandError(f"model: {error}") from error
    types: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        sizes = types.setdefault(tensor.type.name, {"tensors": 0, "elements": 0, "bytes": 0})
        sizes["tensors"] += 1
        sizes["elements"] += math.prod(tensor.shape)
        sizes["bytes"] += tensor.nbytes
    about = {"tokenizer": f"{kind} {pre}".strip(), "tokens": tokens, "chat_template": template}
    return {"model": str(folder), "files": files, "config": {**config, **about}, "tensors": types}


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


@admin_command
async def list_models(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike models`: what the model folders say, what the replicas say, what the tokens cost."""
    from billing.prices import PriceMissing
    from billing.prices.grid import amount
    from gateway.served_models.registry import ModelRegistry
    from turnpike.processes.replica_probe import probe_replicas

    probes = await probe_replicas(admin.settings)
    hellos, uploaded = [probe.hello for probe in probes], await admin.adapters.count_by_model()
    ready: dict[str, int] = {}
    for probe in probes:
        beat, name = probe.heartbeat, probe.hello.model.name
        ready[name] = ready.get(name, 0) + sum(one.ready for one in (beat.adapters if beat is not None else ()))
    rows = []
    for model in ModelRegistry.load(admin.settings.model_folders):
        try:
            version = await admin.prices.current(model.name)
            currency: str | None = version.currency
            price = {
                meter: amount(version.price(meter, "standard", 0)) for meter in ("uncached", "read_automatic", "output")
            }
        except PriceMissing:
            currency, price = None, {}
        own = [hello for hello in hellos if hello.model.name == model.name]
        rows.append(
            {
                "name": model.name,
                "digest": own[0].model.digest if own else "",
                "text_digest": model.text_digest,
                "context_tokens": min([model.context_tokens, *(hello.capacity.context_tokens for hello in own)]),
                "min_cacheable_tokens": model.min_cacheable_tokens,
                "currency": currency,
                "price_per_million": price,
                "adapters": uploaded.get(model.name, 0),
                "adapters_ready": ready.get(model.name, 0),
                "replicas": [f"{hello.replica} (epoch {hello.epoch}, {hello.model.dtype})" for hello in own],
            }
        )
    if arguments.format == "json":
        print(json.dumps(rows, indent=2))
        return
    print_table(
        ("model", "digest", "context", "uncached / read / output per million", "adapters", "replicas"),
        [
            (
                row["name"],
                str(row["digest"])[:12] or "(no replica)",
                row["context_tokens"],
                f"{' / '.join(row['price_per_million'].values())} {row['currency']}"  # type: ignore[attr-defined]
                if row["price_per_million"]
                else "no price",
                f"{row['adapters']}, {row['adapters_ready']} ready" if row["adapters"] else "-",
                ", ".join(row["replicas"]) or "none answers",  # type: ignore[arg-type]  # a list of text
            )
            for row in rows
        ],
    )
