"""`turnpike users`: from the first link to the last owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.database import migrate
from tenancy.users.errors import LinkRefused
from tenancy.users.service import Users
from tenancy.users.sessions import NewSession
from tests.gateway.browser import CLIENT, PASSWORD
from turnpike.cli import main
from turnpike.settings import loading
from turnpike.settings.data_folder import read_secrets, record_address
from turnpike.settings.settings import Settings

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a fresh database; what it printed to stdout, or where it fails to stderr."""
    asyncio.run(migrate.upgrade(f"sqlite:///{tmp_path}/turnpike.db"))

    def run(*words: str, status: int = 0) -> str:
        assert main([*words, "--data-dir", str(tmp_path)]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


@pytest.mark.slow
def test_a_user_from_its_first_link_to_its_end(run: Run, tmp_path: Path) -> None:
    run("tenants", "create", "acme")
    run("keys", "create", "--tenant", "acme", "--project", "web", "--create-project")
    link = run("users", "create", "Ann@X.com", "--role", "owner", "--url", "https://t.example/").strip()
    assert link.startswith("https://t.example/console/link#sign_in=")
    run("users", "role", "ann@x.com", "developer", "--tenant", "acme", "--project", "web")
    listed = run("users", "list")
    assert "owner, developer of acme/web" in listed
    assert "ann@x.com" in run("users", "list", "--tenant", "acme")
    assert run("users", "reset", "ann@x.com").startswith("http://127.0.0.1:8080/")
    record_address(Settings(data_dir=str(tmp_path)), "http://127.0.0.1:8931")
    reset = run("users", "reset", "ann@x.com", "--reason", "lost").strip()
    assert reset.startswith("http://127.0.0.1:8931/console/link#")
    assert "#password_reset=" in reset
    asyncio.run(_use(tmp_path, link.partition("=")[2], reset.partition("=")[2]))
    assert "password" in run("users", "sessions", "ann@x.com")
    assert "ended 1" in run("users", "sessions", "ann@x.com", "--revoke")
    assert "last owner" in run("users", "role", "ann@x.com", "none", status=2)
    assert "last owner" in run("users", "disable", "ann@x.com", status=2)
    run("users", "create", "bob@x.com", "--role", "owner")
    run("users", "role", "ann@x.com", "none")
    run("users", "disable", "ann@x.com", "--reason", "left")
    assert "disabled" in run("users", "list")
    assert "is disabled" in run("users", "reset", "ann@x.com", status=2)
    run("users", "disable", "ann@x.com", "--undo")
    assert "#invitation=" in run("users", "invite", "eve@x.com", "--role", "viewer", "--tenant", "acme")


def test_mistakes_are_one_line(run: Run) -> None:
    assert "not an e-mail address" in run("users", "create", "ann", status=2)
    assert "there is no user" in run("users", "reset", "ann@x.com", status=2)
    assert "--tenant" in run("users", "create", "a@x.com", "--role", "viewer", "--project", "web", status=2)
    assert "--role" in run("users", "create", "a@x.com", "--tenant", "acme", status=2)
    run("users", "create", "a@x.com")
    assert "another user" in run("users", "create", "A@x.com", status=2)


async def _use(folder: Path, sign_in: str, reset: str) -> None:
    """Redeem both links as a gateway on this data folder would."""
    from audit_log.actors import acting_as, anonymous
    from storage.bus import LocalBus
    from storage.database.database import Database

    settings = loading.load({"data_dir": str(folder)})
    database = await Database.open(settings.database)
    users = Users(database, read_secrets(settings).master_key, LocalBus())
    with acting_as(anonymous()):
        assert isinstance(await users.sign_in.with_link(sign_in, CLIENT), NewSession)
        await users.password_changes.reset(reset, PASSWORD, CLIENT)
        with pytest.raises(LinkRefused):
            await users.password_changes.reset(reset, PASSWORD, CLIENT)
        assert isinstance(await users.sign_in.with_password("ann@x.com", PASSWORD, CLIENT), NewSession)
    await users.close()
    await database.close()
