"""`turnpike models`: what the folders say, what the replicas say, what it costs."""

from __future__ import annotations

import argparse
import json

from billing.prices import PriceMissing
from billing.prices.grid import amount
from turnpike.admin_services import AdminServices
from turnpike.commands.running import table, with_admin_services
from turnpike.processes.replica_probe import probe_replicas
from turnpike.settings.settings import Settings


def models(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike models`: what the folders say, what the replicas say, what it costs."""
    from gateway.served_models.registry import ModelRegistry  # noqa: PLC0415  # tokenizers take a moment to load

    async def work(admin: AdminServices) -> int:
        replicas = await probe_replicas(settings)
        rows = []
        for model in ModelRegistry.load(settings.model_folders):
            try:
                version = await admin.prices.current(model.name)
                currency: str | None = version.currency
                price = {
                    meter: amount(version.price(meter, "standard", 0))
                    for meter in ("uncached", "read_automatic", "output")
                }
            except PriceMissing:
                currency, price = None, {}
            mine = [found.hello for found in replicas if found.hello.model.name == model.name]
            rows.append(
                {
                    "name": model.name,
                    "digest": mine[0].model.digest if mine else "",
                    "text_digest": model.text_digest,
                    "context_tokens": min([model.context_tokens, *(hello.capacity.context_tokens for hello in mine)]),
                    "min_cacheable_tokens": model.min_cacheable_tokens,
                    "currency": currency,
                    "price_per_million": price,
                    "replicas": [f"{hello.replica} (epoch {hello.epoch}, {hello.model.dtype})" for hello in mine],
                }
            )
        if arguments.format == "json":
            print(json.dumps(rows, indent=2))
        else:
            table(
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
        return 0

    return with_admin_services(settings, work)
