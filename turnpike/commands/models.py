"""`turnpike models`: list the served models with digest, context, price and replicas."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike models`."""
    parser.runs(list_models)
    parser.add_format("json")


@admin_command
async def list_models(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike models`: what the model folders say, what the replicas say, what the tokens cost."""
    from billing.prices import PriceMissing
    from billing.prices.grid import amount
    from gateway.served_models.registry import ModelRegistry
    from turnpike.processes.replica_probe import probe_replicas

    hellos = [probe.hello for probe in await probe_replicas(admin.settings)]
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
                "replicas": [f"{hello.replica} (epoch {hello.epoch}, {hello.model.dtype})" for hello in own],
            }
        )
    if arguments.format == "json":
        print(json.dumps(rows, indent=2))
        return
    print_table(
        ("model", "digest", "context", "uncached / read / output per million", "replicas"),
        [
            (
                row["name"],
                str(row["digest"])[:12] or "(no replica)",
                row["context_tokens"],
                f"{' / '.join(row['price_per_million'].values())} {row['currency']}"  # type: ignore[attr-defined]
                if row["price_per_million"]
                else "no price",
                ", ".join(row["replicas"]) or "none answers",  # type: ignore[arg-type]  # a list of text
            )
            for row in rows
        ],
    )
