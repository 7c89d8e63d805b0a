"""`turnpike --url … --key …` at a real gateway, from a folder that has no data."""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.e2e.processes import DEMO_MODEL, Process, command, process

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
PRICES = "--uncached 0.40 --read 0.04 --output 1.60"
WORKS = (
    "tenants create north", "tenants list", "tenants credit north 25", "tenants grant north 5 --dry-run",
    "tenants refund north 1", "tenants credit-line north 3", "tenants statement north",
    "tenants suspend north --dry-run", "tenants suspend north", "tenants resume north",
    "budgets set north 9 --tag nightly", "budgets list north", "budgets remove north {budget} --dry-run",
    "keys create --tenant north --admin --dry-run", "keys list", "keys rotate {key}",
    "keys change {key} --name moved --networks none", "keys revoke {key} --reason tried",
    "limits set north --requests 60", "limits list", "limits remove north", "periods list",
    "periods close 2026-01 --dry-run", "approvals list --all", "platform show", "terms list",
    "terms set north {terms} --dry-run", "webhooks list --tenant north", "webhooks deliveries --tenant north",
    "webhooks add https://example.com/hook --tenant north", "invoices list", "invoices seller show",
    "invoices seller set acme --name A --address b --city Bonn --country DE", "users list", "prices books",
    "invoices buyer set north --name N --address s --city Paris --country FR --seller acme",
    "invoices buyer show north", "prices history", "prices show 1", "prices diff 1", "prices list",
    f"prices draft stdlib-qa {PRICES}", "prices withdraw 2 --reason tried",
)  # fmt: skip
"""Commands with an operation, in an order in which each can work."""


class Elsewhere:
    """A gateway, and an operator's key for it."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key

    def __call__(self, line: str, *, key: str | None = None) -> CompletedProcess[str]:
        return command("--url", self.url, "--key", key or self.key, *shlex.split(line))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    folder = tmp_path_factory.mktemp("remote")
    data = ("--data-dir", str(folder / "data"))
    assert command("migrate", *data).returncode == 0
    priced = command("prices", "set", "--from-model-folder", "--model", str(DEMO_MODEL), *data)
    assert priced.returncode == 0, priced.stderr
    key = command("keys", "create", "--operator", "--name", "ann", *data).stdout.strip()
    with process(folder, "gateway", "--port", "0", "--model", str(DEMO_MODEL), *data) as running:
        yield Elsewhere(_url(running), key)


def _url(running: Process) -> str:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if "startup complete" in running.errors and (match := re.search(r"http://[0-9.]+:\d+", running.errors)):
            return match[0]
        assert running.popen.poll() is None, running.errors
        time.sleep(0.05)
    raise AssertionError(f"the gateway does not say where it listens:\n{running.errors}")


def test_each_command_with_an_operation_works_from_another_folder(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.toml").write_text("[[discounts]]\nbasis_points = 1000\n")
    facts = {"terms": "terms.toml"}
    for line in WORKS:
        done = elsewhere(line.format_map(facts))
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if line == "tenants create north":
            made = elsewhere("keys create --tenant north --project default").stdout
            facts["key"] = made.split("_")[2]
        if line.startswith("budgets list"):
            facts["budget"] = json.loads(elsewhere("budgets list north --json").stdout)["data"][0]["id"]
    assert facts["key"] in elsewhere("keys list").stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "terms.toml"]


def test_what_is_done_there_is_done_by_the_keys_owner(elsewhere: Elsewhere) -> None:
    assert elsewhere("tenants create audited").returncode == 0
    assert "audited" in elsewhere("tenants list").stdout
    admin_key = elsewhere("keys create --tenant audited --admin --role viewer").stdout.strip()
    refused = elsewhere("tenants credit audited 5", key=admin_key)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert "balance.write" in refused.stderr
    assert "audited" in elsewhere("tenants list", key=admin_key).stdout
    assert "--by" in elsewhere(f"prices draft stdlib-qa {PRICES} --by bob").stderr


@pytest.mark.parametrize(
    ("key", "said"), [("tp_live_none", "--key: "), ("no key at all", "--key: "), ("\u2603", "--key: ")]
)
def test_a_wrong_key_is_one_clear_line(elsewhere: Elsewhere, key: str, said: str) -> None:
    _is_one_line(elsewhere("tenants list", key=key), said)


def test_without_a_key_it_says_so(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNPIKE_KEY", raising=False)
    _is_one_line(command("--url", elsewhere.url, "tenants", "list"), "TURNPIKE_KEY")
    env = {"TURNPIKE_URL": elsewhere.url, "TURNPIKE_KEY": elsewhere.key}
    assert command("tenants", "list", env=env).returncode == 0
    _is_one_line(command("reconcile", env=env), "TURNPIKE_URL")
    _is_one_line(elsewhere("prices set stdlib-qa --uncached 1"), "machine itself alone")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1", "nonsense", "http://", "http://[::1"])
def test_a_wrong_url_is_one_clear_line(url: str) -> None:
    _is_one_line(command("--url", url, "--key", "k", "tenants", "list"), "--url: no gateway answers at")


class _Other(BaseHTTPRequestHandler):
    """What is no gateway; below /old a gateway that has fewer operations."""

    def do_GET(self) -> None:  # the name that http.server calls
        old = self.path.startswith("/old")
        message = f"There is no route GET {self.path}. (request id: req_1)"
        error = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}}
        content = json.dumps(error).encode() if old else b"<html>It works</html>"
        self.send_response(404 if old else 200)
        if old:
            self.send_header("x-request-id", "req_1")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("path", "said"), [("/old", "is of another version"), ("", "is no gateway of ours")])
def test_an_old_or_another_server_is_one_clear_line(path: str, said: str) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        _is_one_line(command("--url", url, "--key", "k", "tenants", "list"), said)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _is_one_line(done: CompletedProcess[str], said: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr
