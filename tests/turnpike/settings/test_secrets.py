"""The secrets file: made once, private, refused when it is damaged or open."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.e2e.processes import command
from turnpike.settings import secrets
from turnpike.settings.secrets import SecretsError


def test_made_once_private_and_the_same_after(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secrets.json"
    first = secrets.load_or_make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert secrets.load_or_make(path) == first
    values = [*first.peppers.values(), first.scope_secret, first.master_key, first.receipt_key, first.link_key]
    assert len(set(values)) == len(values)
    assert all(len(value) == secrets.SECRET_BYTES for value in values)


def test_a_replica_needs_the_link_key_alone(tmp_path: Path) -> None:
    whole, own = tmp_path / "secrets.json", tmp_path / "link.json"
    content = secrets.load_or_make(whole)
    made = command("secrets", "link", str(own), "--secrets-file", str(whole))
    assert made.returncode == 0, made.stderr
    assert own.stat().st_mode & 0o777 == 0o600
    assert set(json.loads(own.read_bytes())) == {"version", "link_key"}
    assert secrets.load_link_key(own) == secrets.load_link_key(whole) == content.link_key
    with pytest.raises(SecretsError, match="damaged"):
        secrets.load(own)
    assert "never overwritten" in command("secrets", "link", str(own), "--secrets-file", str(whole)).stderr


def test_never_printed() -> None:
    content = secrets.generate()
    shown = f"{content!r} {content}"
    assert content.link_key.hex() not in shown
    assert repr(content.link_key) not in shown


@pytest.mark.parametrize(
    ("damage", "says"), [(b"", "damaged"), (b"{}", "damaged"), (b"\xff\xfe", "damaged"), (b"[1]", "damaged")]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: bytes, says: str) -> None:
    path = tmp_path / "secrets.json"
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(SecretsError, match=says) as refused:
        secrets.load(path)
    assert str(path) in str(refused.value)


def test_a_file_open_to_others_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    secrets.save(secrets.generate(), path)
    path.chmod(0o644)
    with pytest.raises(SecretsError, match="chmod 600"):
        secrets.load(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    content = secrets.generate()
    secrets.save(secrets.Secrets(9, 1, content.peppers, *[b"x" * 32] * 4), path)
    with pytest.raises(SecretsError, match="version 9"):
        secrets.load(path)
    missing = secrets.Secrets(1, 2, content.peppers, *[b"x" * 32] * 4)
    secrets.save(missing, path)
    with pytest.raises(SecretsError, match="pepper 2"):
        secrets.load(path)


def test_a_rotated_file_can_be_read_by_whom_it_belongs_to(tmp_path: Path) -> None:
    """An operator rotates it as root; the server that reads it is another user."""
    path = tmp_path / "secrets.json"
    secrets.save(secrets.generate(), path)
    if os.geteuid() == 0:
        os.chown(path, 10001, 10002)
    path.chmod(0o400)
    before = path.stat()
    assert command("secrets", "rotate-pepper", "--secrets-file", str(path)).returncode == 0
    after = path.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (before.st_uid, before.st_gid, 0o400)
    assert secrets.load(path).pepper_current == 2


def test_where_no_file_can_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = command("secrets", "create", str(tmp_path / "file" / "secrets.json"))
    assert made.returncode == 2
    assert made.stderr.startswith("turnpike: secrets_file: cannot write ")
