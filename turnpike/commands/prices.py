"""`turnpike prices …`: what a model's tokens cost."""

from __future__ import annotations

import argparse
import time
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from billing.prices import check_prices
from billing.usage import CLASSES, METERS
from turnpike.commands.running import CURRENCY, table, with_office
from turnpike.failures import CommandError
from turnpike.office import Office
from turnpike.settings import Settings


def meter_prices(given: dict[str, str]) -> dict[str, str]:
    """Prices by meter from prices by the words that people use: `read` is every class's read price."""
    prices: dict[str, str] = {}
    for name, price in given.items():
        names = ["read_automatic", *(f"read_{c}" for c in CLASSES)] if name == "read" else [name.replace("-", "_")]
        prices |= dict.fromkeys(names, price)
    return prices


def folder_prices(folder: Path) -> tuple[str, str, dict[str, str]] | None:
    """Name, currency and prices by meter of a model folder's `turnpike.toml`; None where it has no prices."""
    try:
        content: dict[str, Any] = tomllib.loads((folder / "turnpike.toml").read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CommandError(f"{folder / 'turnpike.toml'}: {error}") from error
    given = {name: str(value) for name, value in content.get("prices", {}).items()}
    if not given:
        return None
    currency = given.pop("currency", CURRENCY)
    return str(content.get("name", folder.name)), currency, meter_prices(given)


def set_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices set`."""
    words = ("uncached", "read", "output", *(f"write_{c}" for c in CLASSES))
    given = {word: getattr(arguments, word) for word in words if getattr(arguments, word) is not None}
    chosen: list[tuple[str, str, dict[str, str]]] = []
    if arguments.from_model_folder:
        for folder in settings.model_folders:
            found = folder_prices(folder)
            if found is None:
                raise CommandError(f"{folder / 'turnpike.toml'} has no [prices]")
            chosen.append(found)
    elif arguments.served_model and given:
        chosen.append((arguments.served_model, CURRENCY, meter_prices(given)))
    else:
        raise CommandError("say NAME and its prices (--uncached, --read, --output, …), or --from-model-folder")

    async def work(office: Office) -> int:
        for name, currency, prices in chosen:
            checked = check_prices(prices)
            if arguments.dry_run:
                print(f"{name}: checked, nothing written")
            else:
                version = await office.prices.set(name, currency, prices)
                print(f"{name}: version {version.id} from now on")
            _price_table(checked, currency)
        return 0

    return with_office(settings, work)


def _price_table(prices: dict[str, int], currency: str) -> None:
    table(
        ("meter", f"{currency} per million"),
        [(meter, f"{Decimal(prices[meter]) / 1_000_000:f}") for meter in METERS if meter in prices],
    )


def list_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices list`."""

    async def work(office: Office) -> int:
        for model in await office.prices.models():
            version = await office.prices.current(model, time.time_ns() // 1000)
            print(f"{model}: version {version.id}")
            _price_table({meter: micro for (meter, _, _), micro in version.rows.items()}, version.currency)
        return 0

    return with_office(settings, work)
