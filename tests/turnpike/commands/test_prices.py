"""`turnpike prices …`, as an operator types it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.billing.prices.test_litellm import FILE
from turnpike import cli, logs
from turnpike.admin_services import system_user

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a fresh database of either kind; its status, and what it printed."""
    monkeypatch.setenv("TURNPIKE_DATABASE_URL", database_url)
    monkeypatch.setenv("TURNPIKE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TURNPIKE_SECRETS_FILE", str(tmp_path / "secrets.json"))
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # of this process, which is the tests'
    assert cli.main(["secrets", "create", str(tmp_path / "secrets.json")]) == 0
    capsys.readouterr()

    def command(line: str, **environment: str) -> tuple[int, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        status = cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return status, out + err

    return command


PLAIN = "--uncached 0.40 --read 0.04 --output 1.60"


def test_one_operator_sets_and_lists(run: Run) -> None:
    status, out = run(f"prices set qwen {PLAIN} --derive write-5m=1.25x --derive batch=0.5x --reason launch --by ann")
    assert (status, "price sheet 1, active, from 2" in out) == (0, True), out
    assert "write_5m" in out
    assert "0.25" in out  # the batch lane's
    status, out = run("prices list --format json")
    (model,) = json.loads(out)
    prices = {(p["meter"], p["lane"]): p["price"] for p in model["prices"]}
    assert prices["write_5m", "*"] == "0.50"
    assert prices["read_24h", "batch"] == "0.02"
    status, out = run("prices set qwen --uncached 0.40 --read 0.04 --output 1.80 --by ann --dry-run")
    assert (status, "checked, nothing written" in out) == (0, True)
    assert "+0.20 (+12.5 %)" in out
    assert len(json.loads(run("prices history --format json")[1])) == 1
    assert "set ann" in run("prices history")[1]
    assert "launch" in run("prices show 1")[1]


@pytest.mark.slow
def test_two_people(run: Run) -> None:
    status, out = run(f"prices draft qwen {PLAIN} --by ann")
    assert (status, "price sheet 1, draft" in out, "prices approve 1" in out) == (0, True, True)
    assert "no prices" in run("prices list")[1]
    status, out = run("prices approve 1 --by ann")
    assert status == 2
    assert "ann wrote price sheet 1" in out
    assert "0.40" in run("prices diff 1")[1]
    status, out = run("prices approve 1 --by ann --dry-run")
    assert (status, "ann wrote price sheet 1" in out) == (2, True)
    assert "price sheet 1 would be active; nothing written" in run("prices approve 1 --by bob --dry-run")[1]
    assert "price sheet 1 would be withdrawn; nothing written" in run("prices withdraw 1 --dry-run")[1]
    status, out = run("prices approve 1 --by bob")
    assert (status, "active" in out) == (0, True)
    shown = run("prices show 1")[1]
    assert f"draft by ann ({system_user()})" in shown  # two names, one user: the log says so
    assert f"approve by bob ({system_user()})" in shown
    run(f"prices draft qwen {PLAIN} --by ann --at 2999-01-01")
    assert "scheduled, from 2999-01-01T00:00:00Z" in run("prices approve 2 --by bob")[1]
    assert "withdrawn" in run("prices withdraw 2 --by ann")[1]
    assert "no price changes" in run("prices diff 1 2")[1]


def _operator(run: Run, folder: Path, name: str, more: str = "") -> str:
    """Make an operator's key; the flag that presents it."""
    first = folder / "ann"
    by = f"--operator-key-file {first}" if first.exists() else ""
    (folder / name).write_text(run(f"keys create --operator --name {name} {more} {by}")[1].splitlines()[-1])
    return f"--operator-key-file {folder / name}"


@pytest.mark.slow
def test_approvals_are_the_platforms_and_take_two_keys(run: Run, tmp_path: Path) -> None:
    assert run("platform set approvals on")[0] == 2, "nobody has a key yet"
    ann = _operator(run, tmp_path, "ann")
    status, out = run(f"platform set approvals on {ann}")
    assert (status, "approvals take two operators" in out) == (2, True)
    bob = _operator(run, tmp_path, "bob")
    run(f"prices set qwen {PLAIN} --by carl")
    assert "set carl" in run("prices history")[1]  # where one person's word is enough, nothing has to be proved
    assert run(f"platform set approvals on {ann} --reason audit")[0] == 0
    assert "approvals on by ann" in run("platform show")[1]

    # Without two operators' keys nothing could be approved, nor approvals turned off, any more.
    status, out = run(f"keys revoke {(tmp_path / 'ann').read_text().strip()}")
    assert (status, "approvals take two operators" in out) == (2, True)

    draft = f"prices draft qwen {PLAIN}"
    for command in (draft, f"prices set qwen {PLAIN} --force urgent", "prices approve 2", "prices withdraw 2"):
        status, out = run(f"{command} --by ann")
        assert (status, "--operator-key-file" in out) == (2, True)
    assert run(f"{draft} --by ann --dry-run")[0] == 0
    out = run(f"prices set qwen {PLAIN} {ann} --force urgent")[1]
    assert "price sheet 2, draft" in out
    assert "prices approve 2 --operator-key-file FILE" in out
    assert "is ann's" in run(f"prices approve 2 --by bob {ann}")[1]
    assert "ann wrote price sheet 2" in run(f"prices approve 2 {ann}")[1]
    assert "price sheet 2, active" in run(f"prices approve 2 {bob}")[1]
    assert f"approve by bob (operator key, {system_user()})" in run("prices show 2")[1]

    second = f"--second-operator-key-file {tmp_path / 'bob'}"
    for guarded in ("platform set approvals off", "keys create --operator --name eve"):
        status, out = run(f"{guarded} {ann}")
        if guarded.startswith("platform"):
            assert (status, "waits for another operator's approval" in out) == (3, True)
        else:
            assert "second operator's key" in out, "one alone would be two by another name"
        assert "both keys are bob's" in run(f"{guarded} {bob} {second}")[1]
    assert run(f"keys create --operator --name eve {ann} {second}")[0] == 0
    run("tenants create acme")
    run("prices book cheap --currency USD")
    other_prices = "prices book acme-book --tenant acme --base cheap"
    assert run(other_prices)[0] == 2, "another base is other prices"
    assert "second operator's key" in run(f"{other_prices} {ann}")[1]
    assert run(f"{other_prices} {ann} {second}")[0] == 0
    assert run(f"platform set approvals off {ann} {second}")[0] == 0
    assert run(f"prices set qwen {PLAIN} --by carl")[0] == 0

    vic = _operator(run, tmp_path, "vic", "--role admin")  # proposes, and may not approve
    found = re.search(r"price sheet (\d+), draft", run(f"{draft} {ann} --force urgent")[1])
    assert found is not None
    status, out = run(f"prices withdraw {found[1]} {vic}")
    assert (status, "allows prices.approve" in out) == (2, True)
    assert "would be withdrawn; nothing written" in run(f"prices withdraw {found[1]} {ann} --dry-run")[1]
    assert "withdrawn" in run(f"prices withdraw {found[1]} {bob}")[1]

    (tmp_path / "bob").write_text("tp_live_guess")
    status, out = run(f"prices withdraw 2 {bob}")
    assert (status, "no operator's key" in out) == (2, True)
    assert "cannot read" in run("prices withdraw 2 --operator-key-file nowhere")[1]
    assert "no platform setting" in run(f"platform set colour on {ann}")[1]
    status, out = run("prices list", TURNPIKE_PRICE_APPROVALS="1")
    assert (status, "unset it" in out, "turnpike platform set approvals" in out) == (2, True, True)


@pytest.mark.slow
def test_a_tenants_book_says_what_stays(run: Run) -> None:
    run("tenants create acme")
    assert run(f"prices set qwen {PLAIN} --derive batch=0.5x --derive 200000=2x")[0] == 0
    run("prices book acme-book --tenant acme")
    out = run("prices set qwen --tenant acme --price output@batch=0.70")[1]
    assert "0.70" in out
    stays = [line.split() for line in out.partition("stays (USD per million):")[2].splitlines()]
    for row in (["output", "*", "0", "1.60"], ["output", "*", "200000", "3.20"], ["output", "batch", "200000", "1.60"]):
        assert row in stays
    assert "all other meters stay" in out


TEXTS = ("", "x" * 501, "two\nlines")


@pytest.mark.slow
def test_texts_are_bounded_and_named(run: Run) -> None:
    """Each in one line, which names the field; a traceback would end the run."""
    run("tenants create acme")
    for text in TEXTS:
        said = shlex.quote(text)
        for command, field in (
            (f"tenants create {said}", "name"),
            (f"keys create --tenant acme --project {said} --create-project", ""),
            (f"invoices seller set eu --name {said} --address a --city b --country DE", "name"),
            (f"invoices seller set eu --name a --address a --city {said} --country DE", "city"),
            (f"invoices seller set eu --name a --address {said} --city b --country DE", "address"),
            (f"invoices seller set eu --name a --address a --city b --country DE --payment {said}", "payment"),
            (f"prices book {said} --currency EUR", "name"),
            (f"prices set {said} {PLAIN}", ""),
        ):
            status, out = run(command)
            assert status == 2, command
            assert field in out, command
        if not text:
            continue  # it may be left out
        for command, field in (
            (f"tenants credit acme 5 --reason {said}", "reason"),
            (f"tenants grant acme 5 --for-model {said}", "model"),
            (f"tenants grant acme 5 --priority {2**40}", "Priority"),
            (f"tenants refund acme 5 --reason {said}", "reason"),
            (f"keys create --tenant acme --admin --name {said}", "name"),
            (f"keys create --operator --name {said}", "name"),
            (f"prices set qwen {PLAIN} --by {said}", "by"),
            (f"prices set qwen {PLAIN} --reason {said}", "reason"),
            (f"prices set qwen {PLAIN} --force {said}", "force"),
            (f"invoices seller set eu --name a --address a --city b --country DE --email {said}", "email"),
            (f"periods declare-dead e --reason {said}", "reason"),
        ):
            status, out = run(command)
            assert (status, field in out) == (2, True), command


WRONG = [
    (f"set qwen {PLAIN} --at 2020-01-01", "past"),
    (f"set qwen {PLAIN} --at yesterday", "--at: 'yesterday' is not an instant"),
    (f"set qwen {PLAIN} --currency EUR --book nowhere", "'nowhere' does not exist"),
    ("set qwen", "say NAME and its prices"),
    ("set qwen --uncached 0.40 --read 0.04", "--output: price of output: it is missing"),
    ("set qwen --uncached 0.40 --read -1 --output 1.60", "--read -1: "),
    (f"set qwen {PLAIN} --write-5m cheap", "--write-5m cheap: "),
    (f"set qwen {PLAIN} --price output@batch=x", "--price output@batch=x: "),
    (f"set qwen {PLAIN} --derive write-5m=0.5x", "--uncached: price of uncached: "),
    ("set qwen --uncached 0.40 --read 0.50 --output 1.60", "--force REASON"),
    (f"set qwen {PLAIN} --derive write-5m=1.25", "--derive write-5m=1.25: '1.25' is not a multiplier"),
    (f"set qwen {PLAIN} --derive batch=0.0000001x", "0.40 × 0.0000001 has more than 6 decimal places"),
    (f"set qwen {PLAIN} --derive batch", "write WHAT=FACTORx"),
    (f"set qwen {PLAIN} --price output@batch", "METER[@LANE]"),
    (f"set qwen {PLAIN} --price out!put=1", "is not METER"),
    (f"set qwen {PLAIN} --price output@batch=0.80", "missing"),
    (f"set qwen {PLAIN} --price thing=0.80", "there is no such meter"),
    (f"set qwen {PLAIN} --tenant nobody", "nobody"),
    ("list qwen", "model qwen has no price"),
    ("show 9", "There is no price sheet 9"),
    ("approve 9", "price sheet 9 does not exist"),
    ("book acme", "say either --tenant"),
    ("import no-such.csv", "cannot read"),
]


@pytest.mark.slow
def test_what_is_wrong_is_said_in_one_line(run: Run) -> None:
    for line, problem in WRONG:
        status, out = run(f"prices {line}")
        assert status == 2, line
        assert problem in out
        assert len(out.splitlines()) == 1
    assert "no prices" in run("prices list")[1]


@pytest.mark.slow
def test_what_a_tenant_gets_first_is_in_the_currency_of_its_prices(run: Run) -> None:
    """A tenant with a book in euros, no money yet: the commands that take no --currency take the book's."""
    for line in (
        "tenants create client",
        "prices book euro --currency EUR",
        "prices book own --tenant client --base euro",
    ):
        assert run(line)[0] == 0, line
    assert "EUR" in run("tenants list")[1]
    status, out = run("budgets set client 50")
    assert (status, "50.000000000000 EUR" in out) == (0, True), out
    assert run("tenants credit-line client 500") == (
        0,
        "client has 500.000000000000 EUR, of it on credit 500.000000000000\n",
    )


def test_a_tenants_own_book(run: Run) -> None:
    run("tenants create acme")
    run(f"prices set qwen {PLAIN} --derive interactive=1.75x --currency USD")
    status, out = run("prices set qwen --tenant acme --output 1.20")
    assert (status, "turnpike prices book BOOK --tenant acme" in out) == (2, True)
    assert run("prices book acme-2026 --tenant acme") == (0, "made the price book acme-2026 in USD\n")
    status, out = run("prices set qwen --tenant acme --output 1.20 --until 2999-01-01")
    assert status == 0
    assert "-0.40 (-25.0 %)" in out
    assert "in the book acme-2026" in out
    assert "1.20" in run("prices list qwen --tenant acme")[1]
    assert "1.20" not in run("prices list qwen")[1]
    assert "acme-2026  USD       base  acme" in run("prices books")[1]
    status, out = run(f"prices set qwen {PLAIN} --currency EUR")
    assert (status, "in USD, not in EUR" in out) == (2, True)
    run("prices book euro --currency EUR")
    assert run(f"prices set qwen {PLAIN} --book euro")[0] == 0
    assert "EUR per million" in run("prices list --book euro")[1]


@pytest.mark.slow
def test_prices_through_a_spreadsheet(run: Run, tmp_path: Path) -> None:
    run(f"prices set qwen {PLAIN} --derive batch=0.5x --derive 200000=2x")
    text = run("prices list --format csv")[1]
    file = tmp_path / "prices.csv"
    file.write_text(text.replace(",1.60,", ",1.80,").replace("qwen,output,batch,0,0.80", "qwen,output,batch,0,0.90"))
    status, out = run(f"prices import {file} --dry-run")
    assert status == 0
    assert out.count("(+12.5 %)") == 3  # 1.60 is the price of two cells
    assert run(f"prices import {file} --by ann")[0] == 0
    assert run("prices list --format csv")[1] == file.read_text()
    file.write_text(text.replace(",0.04,", ",0.41,"))
    status, out = run(f"prices import {file}")
    assert (status, "refused: price of read_automatic" in out) == (1, True)


@pytest.mark.slow
def test_litellms_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "model_prices_and_context_window.json"
    file.write_text(FILE)
    status, out = run(f"prices import {file}")
    assert (status, "--model-map ENTRY=NAME" in out) == (2, True)
    status, out = run(f"prices import {file} --model-map nope=x")
    assert (status, "no entry 'nope'" in out) == (2, True)
    line = f"prices import {file} --model-map gpt=big --model-map claude=clever --model-map sample_spec=free"
    status, out = run(f"{line} --dry-run")
    assert status == 0
    assert "search_context_cost_per_query has no meter here" in out
    assert "assumed: cached input costs as much as input" in out
    assert "no prices" in run("prices list")[1]
    assert run(line)[0] == 0
    assert "200001" in run("prices list clever")[1]
    file.write_text(FILE.replace('"output_cost_per_token": 5e-06', '"output_cost_per_token": 5e-03'))
    status, out = run(f"prices import {file} --model-map plain=plain")
    assert (status, "plain: refused: output at 5000.00 beside input at 1.00" in out) == (1, True)


def test_the_models_page_says_when_there_is_no_price(run: Run) -> None:
    assert "no price" in run("models")[1]
    run("prices set --from-model-folder --by ann")
    out = run("models")[1]
    assert "0.40" in out
    assert "no price" not in out


@pytest.mark.slow
def test_a_tenant_is_named_in_one_way_everywhere(run: Run) -> None:
    assert run("tenants create --tenant acme")[0] == 0
    for line in (
        "tenants credit --tenant acme 20.00",
        "tenants credit acme --reason bank 20.00",
        "tenants credit 20.00 --tenant=acme --dry-run",
        "budgets set 5.00 --window day --tenant acme",
        "budgets list acme",
        "terms list --tenant acme",
        "terms list",
        "tenants statement --tenant acme --format json",
        "keys create --tenant acme --admin",
        "usage --tenant acme",
    ):
        status, out = run(line)
        assert status == 0, out
    assert "40.00" in run("tenants list")[1]
    for line in ("tenants credit acme 20.00 --tenant acme", "tenants credit --tenant", "budgets list"):
        with pytest.raises(SystemExit):
            run(line)


@pytest.mark.slow
def test_money_says_what_it_would_come_to(run: Run) -> None:
    run("tenants create acme")
    assert "acme would have 0.00005" in run("tenants credit acme 0.00005 --dry-run")[1]
    assert "EUR; nothing" in run("tenants credit acme 1 --currency EUR --dry-run")[1]
    once = "tenants credit acme 20 --id 01a20052-c944-72d1-a7c7-a100361121e3"
    assert "acme has 20.00" in run(once)[1]
    assert "acme would have 20.00" in run(f"{once} --dry-run")[1]  # it counts once
    assert "acme would have 25.00" in run("tenants grant acme 5 --dry-run")[1]
    assert "acme would have 20.00" in run("tenants grant acme 5 --for-model qwen --dry-run")[1]
    assert "acme would have 17.50" in run("tenants refund acme 2.50 --dry-run")[1]
    assert "acme has 17.50" in run("tenants refund acme 2.50")[1]


@pytest.mark.slow
def test_a_misspelt_name_makes_and_finds_nothing(run: Run) -> None:
    run("tenants create acme")
    status, out = run("keys create --tenant acme --project defualt")
    assert (status, "has no project defualt, but default" in out) == (2, True)
    assert "defualt" not in run("keys list")[1]
    assert "made project nightly" in run("keys create --tenant acme --project nightly --create-project")[1]
    assert "for the project nightly, window month" in run("budgets set acme 1 --project nightly")[1]
    assert "would set 1 for acme;" in run("budgets set acme 1 --dry-run")[1]
    for command in ("test", "rotate", "enable", "resend"):
        status, out = run(f"webhooks {command} --tenant acme 01a20052-c944-72d1-a7c7-a100361121e3")
        assert (status, "here is no webhook" in out) == (2, True)


def test_help_tells_a_commands_own_arguments_first(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("budgets set --help")
    out = capsys.readouterr().out
    usage, _, rest = out.partition("\n\n")
    assert "--window" in usage
    assert "--database-url" not in usage
    assert "--database-url" in rest
