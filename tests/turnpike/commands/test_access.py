"""`turnpike keys`, `tenants suspend`, `approvals`: access, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.turnpike.commands.test_prices import Run, _operator, run  # noqa: F401  # a fixture

PLAIN = "--uncached 0.40 --read 0.04 --output 1.60"


def _keys(run: Run) -> dict[str, dict[str, object]]:  # noqa: F811
    return {key["key"]: key for key in json.loads(run("keys list --format json")[1])}


def test_keys_are_limited_changed_rotated_and_revoked(run: Run) -> None:  # noqa: F811
    run("tenants create acme")
    made = "keys create --tenant acme --project default --scopes inference,read --networks 192.0.2.0/24 --expires 30d"
    status, out = run(f"{made} --dry-run")
    assert (status, "it would allow: caches.read, inference" in out, "limited to networks" in out) == (0, True, True)
    assert _keys(run) == {}
    key = run(f"{made} --models stdlib-qa --lanes batch")[1].strip()
    public_id = key.split("_")[2]
    (listed,) = _keys(run).values()
    limits = {name: listed[name] for name in ("networks", "models", "lanes")}
    assert "inference" in listed["permissions"]  # type: ignore[operator]
    assert limits == {"networks": ["192.0.2.0/24"], "models": ["stdlib-qa"], "lanes": ["batch"]}
    assert listed["expires_at"] is not None
    assert run(f"keys change {key} --networks none --expires none --name renamed --reason moved")[0] == 0
    (listed,) = _keys(run).values()
    assert (listed["networks"], listed["expires_at"], listed["name"]) == (None, None, "renamed")
    assert "would give" in run(f"keys rotate {public_id} --dry-run")[1]
    out = run(f"keys rotate {public_id} --overlap 2h --reason yearly")[1]
    assert (out.count(public_id), "works until" in out, key in out) == (2, True, False)
    assert _keys(run)[public_id]["old_secret_until"] is not None
    assert "two secrets until" in run("keys list")[1]
    assert "would revoke" in run(f"keys revoke {public_id} --dry-run")[1]
    assert run(f"keys revoke {public_id} --reason leaked")[0] == 0
    assert _keys(run)[public_id]["state"] == "revoked"
    assert "was revoked" in run(f"keys rotate {public_id}")[1]
    for wrong, problem in (
        ("--scopes flying", "scopes"), ("--networks here", "networks"), ("--lanes fast", "--lanes"),
        ("--expires soon", "--expires"), ("--role admin", "--role"), ("--expires 30", "--expires: '30' is neither"),
        ("--expires 2020-01-01", "--expires: '2020-01-01' has passed"), ("--expires 0s", "--expires"),
        ("--scopes inference,balance.read", "'balance.read' is nothing that the key of a project"),
    ):  # fmt: skip
        status, out = run(f"keys create --tenant acme --project default {wrong}")
        assert (status, problem in out) == (2, True), out
    assert run("keys create --tenant acme --admin --role viewer")[0] == 0
    other = run("keys create --tenant acme --project default")[1].strip().split("_")[2]
    for wrong, problem in (
        ("change {} --expires 2020-01-01", "--expires: '2020-01-01' has passed"),
        ("change {} --scopes budgets", "'budgets' is nothing"),
        ("rotate {} --overlap 0", "--overlap: '0' is neither"),
        ("rotate {} --overlap 2020-01-01", "--overlap: '2020-01-01' has passed"),
    ):
        status, out = run("keys " + wrong.format(other))
        assert (status, problem in out) == (2, True), out
    assert _keys(run)[other]["rotated_at"] is None
    assert run(f"keys rotate {other} --overlap 0s")[0] == 0
    assert "viewer" in run("keys list")[1]


def test_a_tenant_is_suspended_and_resumed(run: Run) -> None:  # noqa: F811
    run("tenants create acme")
    assert "nothing was written" in run("tenants suspend acme --dry-run --running end")[1]
    assert "suspended" not in run("tenants list")[1]
    assert "suspended tenant acme" in run("tenants suspend acme --running end --reason fraud")[1]
    assert "suspended" in run("tenants list")[1]
    assert "suspended project default of acme" in run("tenants suspend acme --project default")[1]
    assert run("tenants resume acme")[0] == 0
    assert "suspended" not in run("tenants list")[1]
    assert run("tenants suspend acme --project none")[0] == 2
    assert run("tenants suspend nobody")[0] == 2


@pytest.mark.slow
def test_terms_and_grants_wait_for_a_second_operator(run: Run, tmp_path: Path) -> None:  # noqa: F811
    ann, bob = [_operator(run, tmp_path, name) for name in ("ann", "bob")]
    (tmp_path / "terms.toml").write_text("[[discounts]]\nbasis_points = 500\n")
    run("tenants create acme")
    run(f"prices set qwen {PLAIN} --by ann")
    assert run(f"platform set approvals on {ann}")[0] == 0
    terms = f"terms set acme {tmp_path / 'terms.toml'}"
    status, out = run(f"{terms} {ann} --reason contract-7")
    assert (status, "waits for another operator's approval" in out) == (3, True)
    change = out.split("`turnpike approvals approve ")[1].split("`")[0]
    assert run("terms list")[1].count("acme") == 0
    assert run("tenants grant acme 5.00")[0] == 2, "nobody is proven"
    assert run(f"tenants grant acme 5.00 {ann}")[0] == 3
    assert change in run("approvals list")[1]
    assert json.loads(run(f"approvals show {change}")[1])["reason"] == "contract-7"
    assert run(f"approvals approve {change}")[0] == 2
    status, out = run(f"approvals approve {change} {ann}")
    assert (status, "another person must approve it" in out) == (2, True)
    assert "nothing written" in run(f"approvals approve {change} {bob} --dry-run")[1]
    status, out = run(f"approvals approve {change} {bob} --reason as-agreed")
    assert (status, ": approved: terms " in out) == (0, True)
    assert "acme" in run("terms list")[1]
    (grant,) = json.loads(run("approvals list --format json")[1])
    assert "withdrawn" in run(f"approvals withdraw {grant['id']} {bob} --reason no")[1]
    assert json.loads(run("approvals list --format json")[1]) == []
    assert run(f"platform set grant_approval_over 50.00 {ann}")[0] == 3
    (setting,) = json.loads(run("approvals list --format json")[1])
    assert run(f"approvals approve {setting['id']} {bob}")[0] == 0
    assert run(f"tenants grant acme 50.00 {ann}")[0] == 0
    assert run(f"tenants grant acme 50.01 {ann}")[0] == 3
    # A key that may not decide is nobody's second.
    run(f"keys create --operator --name vera --role viewer {ann} --second-operator-key-file {tmp_path / 'bob'}")
    assert run(f"keys revoke {(tmp_path / 'bob').read_text().strip()}")[0] == 2


@pytest.mark.slow
def test_terms_show_what_a_commitment_will_ask_for_and_draw(run: Run, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "terms.toml"
    file.write_text(
        '[commitment]\namount = "30.00"\nfirst = "2998-01"\nlast = "2998-02"\n'
        '[[commitment.payments]]\namount = "10.00"\nreference = "bank 1"\nreason = "before"\n'
    )
    run("tenants create acme")
    status, out = run(f"terms set acme {file} --from 2998-02 --dry-run")
    assert (status, "commitment.first: 2998-01 is before 2998-02" in out) == (2, True), out
    for dry_run in (" --dry-run", ""):
        status, out = run(f"terms set acme {file} --from 2998-01 --by ann{dry_run}")
        rows = [line.split() for line in out.splitlines()]
        assert rows[0] == ["month", "invoiced", "funded", "drawn", "left"]
        assert rows[-3:-1] == [["2998-01", "20.00", "30.00", "–", "30.00"], ["2998-02", "–", "30.00", "–", "30.00"]]
        assert status == 0
    assert "30.00 committed for 2998-01 to 2998-02, invoiced, 10.00 of it paid otherwise" in run("terms list")[1]


@pytest.mark.slow
def test_the_command_asks_what_http_asks(run: Run, tmp_path: Path) -> None:  # noqa: F811
    ann, bob = [_operator(run, tmp_path, name) for name in ("ann", "bob")]
    second = f"{ann} --second-operator-key-file {tmp_path / 'bob'}"
    carl = _operator(run, tmp_path, "carl", "--role finance")
    assert run(f"users create ann@x.com --role owner {ann}")[0] == 0
    assert run(f"platform set approvals on {ann}")[0] == 0
    status, out = run(f"platform set approvals off {ann}")
    change = out.split("`turnpike approvals approve ")[1].split("`")[0]
    assert status == 3
    for action in ("approve", "withdraw"):
        status, out = run(f"approvals {action} {change} {carl}")
        assert (status, "platform.write" in out) == (2, True), out
    for alone in (
        *("users create eve@x.com --role owner", "users invite eve@x.com --role finance"),
        *("users reset ann@x.com --sign-in", "keys create --operator --name ann2 --user ann@x.com"),
    ):
        status, out = run(f"{alone} {ann}")
        assert (status, "--second-operator-key-file" in out) == (2, True), out
    assert run(f"users create eve@x.com --role owner {second}")[0] == 0
    (tmp_path / "ann2").write_text(run(f"keys create --operator --name ann2 --user ann@x.com {second}")[1])
    ann2 = f"--operator-key-file {tmp_path / 'ann2'}"
    status, out = run(f"approvals approve {change} {ann2}")
    assert (status, "another person must approve it" in out) == (2, True), "nobody knows that ann is not ann2"
    status, out = run(f"users create dora@x.com --role owner {ann2} --second-operator-key-file {tmp_path / 'ann'}")
    assert (status, "it takes another's" in out) == (2, True), out
    assert run(f"approvals approve {change} {bob}")[0] == 0


@pytest.mark.slow
def test_once_an_operator_has_a_key_making_operators_takes_it(run: Run, tmp_path: Path) -> None:  # noqa: F811
    """Who has the machine makes the first key, and another one when all are gone, but none beside what there is."""
    run("users create ann@x.com --role owner")
    assert run("users reset ann@x.com --sign-in")[0] == 0, "nobody has a key yet"
    assert run("keys create --operator --name vic --role admin")[0] == 0
    ann = _operator(run, tmp_path, "ann")
    key = (tmp_path / "ann").read_text().strip()
    acts = (
        *("keys create --operator --name eve", "keys create --operator --name eve --dry-run"),
        *("users create eve@x.com --role viewer", "users invite eve@x.com --role finance"),
        *("users reset ann@x.com --sign-in", f"keys rotate {key}", f"keys change {key} --scopes none"),
    )
    for act in acts:
        status, out = run(act)
        assert (status, "operators have keys, so this takes one: --operator-key-file" in out) == (2, True), out
    run("users create dan@x.com")
    run("users disable ann@x.com")
    for act in ("users role dan@x.com owner", "users disable ann@x.com --undo"):
        assert run(act)[0] == 2, act
    for act in (
        "users create fay@x.com --role owner --tenant acme",
        "users reset dan@x.com",
        f"keys revoke {key} --dry-run",
    ):
        run("tenants create acme")
        assert run(act)[0] == 0, act
    for act in (*acts[:4], "users disable ann@x.com --undo", acts[4]):
        assert run(f"{act} {ann}".replace("eve@x.com", f"e{len(act)}@x.com"))[0] == 0, act
    assert run(f"keys revoke {key}")[0] == 0
    assert "is valid" in run(f"keys create --operator --name gus {ann}")[1], "a revoked key is none"
    assert run("keys create --operator --name gus")[0] == 2, "eve has one"
    for public_id, shown in _keys(run).items():
        if shown["state"] == "active" and shown["role"] == "owner":
            run(f"keys revoke {public_id}")
    assert run("keys create --operator --name gus")[0] == 0


@pytest.mark.slow
def test_nobody_widens_a_key_of_one_s_own(run: Run, tmp_path: Path) -> None:  # noqa: F811
    """Else who may not decide would be the second person after all."""
    ann, bob, carl = [
        _operator(run, tmp_path, name, more) for name, more in (("ann", ""), ("bob", ""), ("carl", "--role finance"))
    ]
    second = f"{ann} --second-operator-key-file {tmp_path / 'bob'}"
    more = _operator(run, tmp_path, "more", "--expires 30d")
    keys = {name: (tmp_path / name).read_text().strip() for name in ("ann", "carl", "more")}
    for approvals in ("off", "on"):
        if approvals == "on":
            assert run(f"platform set approvals on {ann}")[0] == 0
        for act in (f"change {keys['carl']} --role owner", f"rotate {keys['ann']}"):
            status, out = run(f"keys {act} {carl}")
            assert (status, "does not allow this (platform.write)" in out) == (2, True), out
        assert run(f"keys change {keys['more']} --expires none {more}")[0] == 2
        assert run(f"keys change {keys['carl']} --networks 192.0.2.0/24 {carl}")[0] == 0, "narrower"
        rotated = run(f"keys rotate {keys['carl']} {carl}")[1].split()
        keys["carl"] = next(word for word in rotated if word.startswith("tp_"))
        (tmp_path / "carl").write_text(keys["carl"])
    assert run(f"keys change {keys['more']} --expires none {second}")[0] == 0
    assert run(f"keys change {keys['carl']} --networks none {bob}")[0] == 2
