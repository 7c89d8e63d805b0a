"""The server's secrets: one versioned JSON file, mode 0600, made at the first start or given.

Key peppers are versioned: a new one becomes the current one, the old ones stay until no key uses them. The others are
one value each. `docs/operations.md` describes rotation and backup.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from storage.database.keyring import Keyring
from storage.reported_error import ReportedError

if TYPE_CHECKING:
    from billing.receipts.signing_keys import ReceiptKeys

FILE_VERSION = 1
SECRET_BYTES = 32


class SecretsError(ReportedError):
    """The secrets file cannot be read or written, is not of this version, or is open to others."""


class Secrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the secrets file; byte values are base64 there.

    `peppers`: keys of the MACs of API keys, by version. `scope_secret`: key of the roots of cache domains. The keys
    that wrap projects' data keys and webhook secrets are derived from `master_key`. `receipt_key` signs receipts;
    `retired_receipt_keys` are the public halves of those before it. `seal_keys`: keys of the books' seals, by version;
    `seal_current` is 0 where there are none. `link_key` proves a gateway to a replica.
    """

    version: int
    pepper_current: int
    peppers: dict[int, bytes]
    scope_secret: bytes
    master_key: bytes
    receipt_key: bytes
    link_key: bytes
    retired_receipt_keys: tuple[bytes, ...] = ()
    seal_current: int = 0
    seal_keys: dict[int, bytes] = {}

    @property
    def keyring(self) -> Keyring:
        """The keys of the books' seals."""
        return Keyring(self.seal_current, self.seal_keys)

    def __repr__(self) -> str:
        return f"Secrets(version={self.version}, …)"


class LinkSecret(msgspec.Struct, frozen=True):
    """What a replica needs of the secrets, in a file of its own or in the whole one."""

    version: int
    link_key: bytes

    def __repr__(self) -> str:
        return f"LinkSecret(version={self.version}, …)"


_Content = TypeVar("_Content", Secrets, LinkSecret)


def generate() -> Secrets:
    """Fresh secrets from the operating system's random source."""
    pepper, scope, master, receipt, link = (secrets.token_bytes(SECRET_BYTES) for _ in range(5))
    return Secrets(FILE_VERSION, 1, {1: pepper}, scope, master, receipt, link)


def save(content: Secrets | LinkSecret, path: Path) -> None:
    """Write the file atomically: with mode 0600, or with the owner and the mode that it had, since a server of another
    user may read it. Raises SecretsError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".secrets-")
        try:
            with os.fdopen(handle, "wb") as file:
                if path.exists():
                    before = path.stat()
                    os.fchown(handle, before.st_uid, before.st_gid)
                    os.fchmod(handle, stat.S_IMODE(before.st_mode))
                file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SecretsError(f"secrets_file: cannot write {path}: {error.strerror}") from error


def load(path: Path) -> Secrets:
    """Read the file. Raises SecretsError naming it."""
    content = _read(path, Secrets)
    if content.seal_current and content.seal_current not in content.seal_keys:
        raise SecretsError(f"secrets_file: {path} has no seal key {content.seal_current}")
    if content.pepper_current not in content.peppers:
        raise SecretsError(f"secrets_file: {path} has no pepper {content.pepper_current}")
    return content


def load_link_key(path: Path) -> bytes:
    """Read the key of the links to replicas, from a replica's file or from the whole one. Raises SecretsError."""
    return _read(path, LinkSecret).link_key


def _read(path: Path, kind: type[_Content]) -> _Content:
    try:
        mode = path.stat().st_mode
        content = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise SecretsError(f"secrets_file: there is no {path}: `turnpike secrets create {path}`") from error
    except OSError as error:
        raise SecretsError(f"secrets_file: cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise SecretsError(f"secrets_file: {path} is damaged: {error}") from error
    if mode & 0o077:
        raise SecretsError(f"secrets_file: {path} is open to others (mode {mode & 0o777:04o}); run: chmod 600 {path}")
    if content.version != FILE_VERSION:
        raise SecretsError(f"secrets_file: {path} has version {content.version}, this program knows {FILE_VERSION}")
    return content


def load_or_make(path: Path) -> Secrets:
    """The secrets of the file, which is made if it does not exist. Raises SecretsError."""
    if not path.exists():
        save(generate(), path)
    return load(path)


def with_new_pepper(content: Secrets) -> Secrets:
    """The secrets with one more pepper, which becomes the current one."""
    version = max(content.peppers) + 1
    peppers = content.peppers | {version: secrets.token_bytes(SECRET_BYTES)}
    return msgspec.structs.replace(content, peppers=peppers, pepper_current=version)


def with_new_seal_key(content: Secrets) -> Secrets:
    """The secrets with one more key of seals, which becomes the current one. Earlier ones stay: seals were made by
    them."""
    version = max(content.seal_keys, default=0) + 1
    keys = content.seal_keys | {version: secrets.token_bytes(SECRET_BYTES)}
    return msgspec.structs.replace(content, seal_keys=keys, seal_current=version)


def with_new_receipt_key(content: Secrets) -> Secrets:
    """The secrets with another key that signs receipts. The public half of the one before stays."""
    from billing.receipts.signing_keys import public_key_of

    retired = (public_key_of(content.receipt_key), *content.retired_receipt_keys)
    return msgspec.structs.replace(content, receipt_key=secrets.token_bytes(SECRET_BYTES), retired_receipt_keys=retired)


def receipt_keys(content: Secrets) -> ReceiptKeys:
    """The keys that sign receipts."""
    from billing.receipts.signing_keys import ReceiptKeys

    return ReceiptKeys(content.receipt_key, content.retired_receipt_keys)
