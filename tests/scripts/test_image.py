"""What Docker copies into the image: every room of the program, and nothing that an operator keeps beside it; and when
Compose takes the database for ready."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def copied(path: str) -> bool:
    """Whether `COPY . .` takes a file: the last pattern counts that matches it or a folder that it lies in."""
    taken = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and re.match(_expression(pattern), path):
            taken = line.startswith("!")
    return taken


def _expression(pattern: str) -> str:
    """A pattern without `?`, `[` and `\\`: `*` within a name, `**/` for any number of folders."""
    assert not set(pattern) & set("?[\\"), pattern
    parts = (re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("**/"))
    return "(?:.*/)?".join(parts) + "(?:/|$)"


@pytest.mark.parametrize(
    "path",
    ["secrets.json", ".env", "operator.key", "turnpike-data/secrets.json", "turnpike-demo/turnpike.db", "data/api-key",
     "turnpike.toml", ".git/config", ".venv/bin/python", ".console/node/x", ".clients/x", "web/node_modules/a/b.js",
     "billing/ledger/__pycache__/entries.pyc"],
)  # fmt: skip
def test_what_lies_beside_the_program_stays_out_of_the_image(path: str) -> None:
    assert not copied(path)


def test_every_part_of_the_program_comes_into_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rooms = [name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    needed = [f"{room}/__init__.py" for room in rooms if (ROOT / room / "__init__.py").exists()]
    assert len(needed) >= 13
    needed += ["pyproject.toml", "README.md", "LICENSE", "requirements/base.txt", "requirements/torch.txt"]
    needed += ["requirements/base.in", "requirements/node.txt", "scripts/build_console.py", "web/src/main.tsx"]
    needed += ["models/stdlib-qa/model.safetensors", "web/package-lock.json"]
    assert [path for path in needed if not (ROOT / path).exists()] == []
    assert [path for path in needed if not copied(path)] == []


def test_git_takes_no_secrets_that_the_documented_set_up_makes() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    made = ["secrets.json", ".env", "turnpike-demo/turnpike.db", "turnpike-data/secrets.json"]
    ignored = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == made


def test_the_database_is_well_when_it_answers_by_the_network_as_the_roles_ask_it() -> None:
    """PostgreSQL's image initialises the database with a server of its own that listens on the Unix socket alone."""
    (check,) = re.findall(r"pg_isready.*", (ROOT / "docker-compose.yml").read_text())
    assert "-h, 127.0.0.1" in check


def test_an_engine_has_neither_the_database_nor_the_secrets() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    given = {name: " ".join(map(str, service.get("environment", {}).values())) for name, service in services.items()}
    assert {name for name, values in given.items() if "POSTGRES_PASSWORD" in values} == {
        *("gateway", "worker", "migrate", "postgres"),
    }
    assert {name for name, service in services.items() if "turnpike" in service.get("secrets", ())} == {
        "gateway",
        "worker",
    }
    assert services["engine"]["secrets"] == ["link"]
    assert {name for name, service in services.items() if "outside" in service["networks"]} == {"gateway", "worker"}


@pytest.mark.parametrize(
    ("well", "healthy_ago_s", "ended"),
    [(True, None, False), (False, None, False), (False, 20, False), (False, 300, True), (True, 300, False)],
)
def test_an_engine_that_was_healthy_and_is_not_is_ended(
    tmp_path: Path, well: bool, healthy_ago_s: int | None, ended: bool
) -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["engine"]
    shell, script = service["healthcheck"]["test"]
    mark = tmp_path / "healthy"
    if healthy_ago_s is not None:
        mark.touch()
        os.utime(mark, (time.time() - healthy_ago_s,) * 2)
    script = script.replace("$$", "$").replace("/tmp/healthy", str(mark))
    stand_ins = f"turnpike() {{ return {0 if well else 1}; }}; kill() {{ echo ended $*; }}; "
    ran = subprocess.run(["sh", "-c", stand_ins + script], capture_output=True, text=True, check=False)
    assert shell == "CMD-SHELL"
    assert (ran.returncode, ran.stdout) == (0 if well else 1, "ended -KILL -1\n" if ended else "")
    assert mark.exists() == (well or healthy_ago_s is not None)
