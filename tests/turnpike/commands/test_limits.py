"""`turnpike limits …`: set, changed in part, listed, removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.turnpike.commands.test_invoices import Terminal


def test_limits_are_set_listed_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tmp_path / "data", capsys, monkeypatch)
    terminal.run("tenants", "create", "acme")
    terminal.run("tenants", "create", "other")
    key = terminal.run("keys", "create", "--tenant", "acme", "--project", "default").split("_")[2]

    assert "60 requests a minute" in terminal.run("limits", "set", "acme", "--requests", "60", "--concurrent", "4")
    terminal.run("limits", "set", "--tenant", "acme", "--input-tokens", "9000", "--requests", "none")
    terminal.run("limits", "set", "acme", "--key", key, "--output-tokens", "500")
    header, project, own = (line.split() for line in terminal.run("limits", "list").splitlines())
    assert header[:3] == ["tenant", "project", "key"]
    assert project == ["acme", "default", "(project)", "-", "9000", "-", "4"]
    assert own == ["acme", "default", key, "-", "-", "500", "-"]
    assert len(terminal.run("limits", "list", "other").splitlines()) == 1

    assert "removed" in terminal.run("limits", "remove", "acme", "--key", key, "--reason", "moved on")
    assert "moved on" in terminal.run("audit", "log", "--action", "limits.removed")
    assert len(terminal.run("limits", "list", "acme").splitlines()) == 2


def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tmp_path / "data", capsys, monkeypatch)
    terminal.run("tenants", "create", "acme")
    terminal.run("tenants", "create", "other")
    key = terminal.run("keys", "create", "--tenant", "acme", "--project", "default").split("_")[2]
    for words, said in (
        (("set", "acme"), "--requests NUMBER"),
        (("set", "acme", "--requests", "many"), "a whole number or none"),
        (("set", "acme", "--requests", "0"), "--requests: it must be from 1"),
        (("set", "acme", "--requests", "none"), "remove the limits instead"),
        (("set", "other", "--key", key, "--requests", "1"), "there is no key"),
        (("set", "acme", "--key", "nobody", "--requests", "1"), "nobody"),
        (("remove", "acme"), "turnpike limits list"),
    ):
        assert said in terminal.run("limits", *words, status=2), words
