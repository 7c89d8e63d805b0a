"""Messages: a command that a message names can be given so, and one thing is not in the plural."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from storage.free_text import counted
from turnpike.cli import build_parser

ROOT = Path(__file__).parents[3]
ROOMS = ("turnpike", "gateway", "billing", "storage")
_HINT = re.compile(r"`turnpike ([^`]+)`")
_BARE = re.compile(r"(?<!`)\bturnpike (\w[\w-]*)( [a-z-]+)?")
_NAMED = re.compile(r"\bturnpike[ \"']")
_REFERENCES = {"settings.py", "cli.py"}
"""Help and reference, which name commands without their arguments."""


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts that are no docstrings; what is put into them is `1`."""
    nodes = list(ast.walk(tree))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    inside = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "1" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
            and node not in inside
        ):
            yield node.lineno, node.value


@cache
def _all_messages() -> list[tuple[str, str]]:
    """Of the modules that name the program."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.name in _REFERENCES or not _NAMED.search(written := path.read_text()):
                continue
            name = path.relative_to(ROOT)
            found += [(f"{name}:{line}", text) for line, text in _messages(ast.parse(written))]
    return found


HINTS = sorted({hint for _, text in _all_messages() for hint in _HINT.findall(text)})


@pytest.mark.parametrize("hint", HINTS)
def test_a_command_that_a_message_names_can_be_given(hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Capitals stand for what the reader knows; with … the rest is left to the command's help."""
    given = hint.split()
    words = [
        "1" if word.isupper() or (word == "…" and before.startswith("--")) else word
        for before, word in zip(["", *given], given, strict=False)
    ]
    if "…" not in words:
        build_parser().parse_args(words)
        return
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args([*(word for word in words if word != "…"), "--help"])
    assert end.value.code == 0, capsys.readouterr().err


def test_commands_stand_in_backticks() -> None:
    """So that a reader sees where one ends; and so that each is tried above."""
    names = {"budgets", "export", "invoices", "journals", "keys", "migrate", "periods", "platform", "prices", "secrets",
             "tenants", "terms", "usage", "webhooks"}  # fmt: skip
    bare = [
        f"{at}: {text.strip()}"
        for at, text in _all_messages()
        for match in _BARE.finditer(_HINT.sub("", text))
        if match.group(1) in names
    ]
    assert bare == []


def test_one_thing_is_in_the_singular() -> None:
    assert [counted(n, "line") for n in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]
