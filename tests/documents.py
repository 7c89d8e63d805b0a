"""What the documents tell a reader to type: programs and commands."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:^|[\s(|&;])(?:\.venv/bin/)?turnpike ([a-z].*)$")
_GENERATED = {"modules.md", "changes.md", "settings.md"}


class Program(Struct, frozen=True):
    """A program in Python, and where it stands: the page and which of its programs."""

    page: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def pages() -> list[Path]:
    """What people read: the README, the pages of docs/ that are written by hand, and what lies beside the models."""
    written = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in _GENERATED]
    return [ROOT / "README.md", ROOT / "SECURITY.md", *written, *sorted((ROOT / "models").glob("*/README.md"))]


def python_programs() -> list[Program]:
    """The programs that use a client. A function alone is none."""
    return [
        Program(page.stem, number, text)
        for page in pages()
        for number, (language, text) in enumerate(_FENCED.findall(page.read_text()))
        if language == "python" and "client" in text
    ]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language, in their order."""
    return [block for found, block in _FENCED.findall(text) if found == language]


def commands(text: str) -> list[str]:
    """The commands of ours in a page, without `turnpike`, and without what the shell does with their output."""
    lines = [line for _, block in _FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    prose = _FENCED.sub("", text)
    lines += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose) if "turnpike " in code]
    calls = (match.group(1) for line in lines if (match := _CALL.search(line)))
    return [re.split(r"\s+(?:#|>|\||&&|<)", call)[0].rstrip(";)") for call in calls]


PYTHON_PROGRAMS = python_programs()
