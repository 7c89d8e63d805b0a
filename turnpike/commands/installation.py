"""`turnpike migrate` and `turnpike secrets …`: the schema, and the server's secrets."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from storage.database import migrate as migrations
from turnpike.failures import CommandError
from turnpike.settings import secrets
from turnpike.settings.data_folder import prepare_data_folder
from turnpike.settings.settings import Settings


def migrate(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike migrate`."""
    if settings.database.startswith("sqlite"):
        prepare_data_folder(settings)
    asyncio.run(migrations.upgrade(settings.database))
    print(f"the database is at {migrations.head()}")
    return 0


def create_secrets(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike secrets create FILE`."""
    path = Path(arguments.file)
    if path.exists():
        raise CommandError(f"{path} exists; it is never overwritten")
    secrets.save(secrets.generate(), path)
    print(f"wrote {path} (mode 0600); back it up apart from the database")
    return 0


def rotate_pepper(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike secrets rotate-pepper`."""
    rotated = secrets.with_new_pepper(secrets.load(settings.secrets))
    secrets.save(rotated, settings.secrets)
    print(f"new keys use pepper {rotated.pepper_current}; restart the gateways so that they know it")
    return 0
