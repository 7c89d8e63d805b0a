"""A role whose settings cannot work says which one is wrong and ends with 2: it never waits and looks well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.processes import command


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--account-codes", "revenu=4400", ("account_codes", "revenu")),
        ("--webhook-allow-networks", "10.0.0.0/33", ("webhook_allow_networks", "10.0.0.0/33")),
    ],
)
def test_a_worker_with_a_setting_that_is_wrong_ends(
    tmp_path: Path, flag: str, value: str, says: tuple[str, ...]
) -> None:
    folder = ("--data-dir", str(tmp_path / "data"))
    assert command("secrets", "create", str(tmp_path / "data" / "secrets.json")).returncode == 0
    ended = command("worker", *folder, flag, value)
    assert ended.returncode == 2, ended.stderr
    assert all(word in ended.stderr for word in says), ended.stderr
    well = command("worker", *folder, "--health")
    assert (well.returncode, "no sign of a worker" in well.stderr) == (2, True), well
