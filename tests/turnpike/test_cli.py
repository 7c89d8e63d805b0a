"""The command line: its commands register themselves, and none of them imports the database to say what it takes."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

from turnpike import cli, commands

HEAVY = ("sqlalchemy", "numpy", "litestar", "torch", "tokenizers")


@pytest.mark.parametrize("arguments", ["build_parser()", "main(['worker', '--health'])"])
def test_help_and_health_import_no_heavy_library(arguments: str) -> None:
    program = f"import sys; from turnpike import cli; cli.{arguments}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_each_module_is_a_command_with_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    helped = {words[0] for words in shown}
    names = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert names <= helped
    assert "keys" in names
