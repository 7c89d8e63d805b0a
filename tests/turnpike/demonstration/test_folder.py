"""A demonstration is made in a folder of its own, and its seller stays alone in its database."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from billing.invoices.parties.parties import InvalidParty
from billing.invoices.parties.store import Parties
from storage.database.database import Database
from tests.billing.invoices.documents import SELLER as REAL
from turnpike.cli import main
from turnpike.demonstration.cast import SELLER
from turnpike.demonstration.folder import MARK, NotADemonstration, claim, finish, new_mark, read_mark
from turnpike.settings.settings import Settings

MARKED = new_mark(7, 2, 1_795_000_000_000_000)


def _settings(folder: Path, **others: str) -> Settings:
    return Settings(data_dir=str(folder), **others)


def test_an_empty_folder_is_marked_and_its_demonstration_is_found_again(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "demo")
    assert claim(settings, MARKED) is None
    assert (tmp_path / "demo" / MARK).stat().st_mode & 0o777 == 0o600
    finish(settings, MARKED)
    found = claim(settings, new_mark(8, 1, 1))
    assert found == msgspec.structs.replace(MARKED, state="made")


def test_half_a_demonstration_is_not_taken_for_one(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "demo")
    claim(settings, MARKED)
    with pytest.raises(NotADemonstration, match="was interrupted: delete the folder"):
        claim(settings, MARKED)


@pytest.mark.parametrize("name", ["turnpike.db", "secrets.json", "notes.txt"])
def test_a_folder_with_anything_in_it_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(NotADemonstration, match="is not empty"):
        claim(_settings(tmp_path), MARKED)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("database_url", "postgresql://turnpike@db/turnpike"),
        ("redis_url", "redis://cache"),
        ("secrets_file", "/etc/turnpike/secrets.json"),
        ("export_dir", "/srv/exports"),
        ("disk_folder", "/srv/kv"),
    ],
)
def test_nothing_outside_the_folder_is_used(tmp_path: Path, setting: str, value: str) -> None:
    with pytest.raises(NotADemonstration, match=f"^{setting}: "):
        claim(_settings(tmp_path / "demo", **{setting: value}), MARKED)
    assert not (tmp_path / "demo").exists()


def test_a_mark_that_cannot_be_read_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text("{}")
    with pytest.raises(NotADemonstration, match="cannot be read"):
        read_mark(tmp_path)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "turnpike.db").write_text("")
    assert main(["demo", "--make-only", "--data-dir", str(tmp_path)]) == 2
    assert "no demonstration's folder" in capsys.readouterr().err
    assert main(["demo", "--days", "0", "--data-dir", str(tmp_path / "new")]) == 2
    assert "--days: 0 is not from 1 to 62" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


async def test_a_real_seller_and_the_demonstrations_never_meet(database: Database) -> None:
    parties = Parties(database)
    await parties.set_seller(REAL)
    with pytest.raises(InvalidParty, match="a demonstration's database has"):
        await parties.set_seller(SELLER)
    assert await parties.sellers() == [REAL]


async def test_no_real_seller_enters_a_demonstration(database: Database) -> None:
    parties = Parties(database)
    await parties.set_seller(SELLER)
    with pytest.raises(InvalidParty, match="a demonstration's database has"):
        await parties.set_seller(REAL)
    for field, value in (("series", "INV"), ("credit_series", "CN"), ("name", "Real Ltd")):
        with pytest.raises(InvalidParty, match=f"^{field}: "):
            await parties.set_seller(msgspec.structs.replace(SELLER, **{field: value}))
    assert await parties.sellers() == [SELLER]
