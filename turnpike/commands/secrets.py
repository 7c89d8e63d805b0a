"""`turnpike secrets`: make the server's secrets file, or rotate a secret in it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from turnpike.command_line import CommandError, CommandParser
from turnpike.settings import secrets
from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike secrets …`."""
    parser.add_action("create", "make a secrets file", create_secrets).add_argument("file", metavar="FILE")
    text = "make a replica's secrets file: the link key alone, of those in --secrets-file"
    parser.add_action("link", text, create_link_secret).add_argument("file", metavar="FILE")
    parser.add_action("rotate-pepper", "add a pepper for API keys; new keys use it", rotate_pepper)
    text = "add a key for the seals of the books, or another one; earlier ones stay"
    parser.add_action("add-seal-key", text, add_seal_key)
    text = "make another key that signs receipts; the public half of the old one stays listed"
    parser.add_action("rotate-receipt-key", text, rotate_receipt_key)


def create_secrets(_settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike secrets create FILE`."""
    path = _new_file(arguments.file)
    secrets.save(secrets.generate(), path)
    print(f"wrote {path} (mode 0600); back it up apart from the database")
    return 0


def create_link_secret(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike secrets link FILE`."""
    path = _new_file(arguments.file)
    content = secrets.load(settings.secrets)
    secrets.save(secrets.LinkSecret(content.version, content.link_key), path)
    print(f"wrote {path} (mode 0600): --secrets-file of replicas that other hosts or containers run")
    return 0


def _new_file(name: str) -> Path:
    path = Path(name)
    if os.path.lexists(path):  # False where the folder cannot be read: writing says so
        raise CommandError(f"{path} exists; it is never overwritten")
    return path


def rotate_pepper(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike secrets rotate-pepper`."""
    rotated = secrets.with_new_pepper(secrets.load(settings.secrets))
    secrets.save(rotated, settings.secrets)
    print(f"new keys use pepper {rotated.pepper_current}; restart the gateways so that they know it")
    return 0


def add_seal_key(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike secrets add-seal-key`."""
    added = secrets.with_new_seal_key(secrets.load(settings.secrets))
    secrets.save(added, settings.secrets)
    print(f"seals are made by key {added.seal_current}; restart all processes, then run `turnpike audit checkpoint`")
    return 0


def rotate_receipt_key(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike secrets rotate-receipt-key`."""
    rotated = secrets.with_new_receipt_key(secrets.load(settings.secrets))
    secrets.save(rotated, settings.secrets)
    print(f"receipts are signed by key {secrets.receipt_keys(rotated).id}; restart gateways and workers")
    return 0
