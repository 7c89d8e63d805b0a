"""What Docker copies into the image: every room of the program, and nothing that an operator keeps beside it; and when
Compose takes the database for ready."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

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
