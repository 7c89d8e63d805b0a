"""Write the module tables of docs/structure.md from the modules' own first sentences.

`python scripts/structure_page.py` rewrites the page; a test fails when the page is not what this would write.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "structure.md"
ROOMS = ("turnpike", "gateway", "engine", "prompt_cache", "billing", "storage", "migrations")
BEGIN, END = "<!-- modules: made by scripts/structure_page.py -->", "<!-- /modules -->"


@cache
def parsed(path: Path) -> ast.Module:
    """The module, parsed once for all that look at it."""
    return ast.parse(path.read_text())


def first_sentence(path: Path) -> str:
    """The docstring's first sentence on one line."""
    text = " ".join((ast.get_docstring(parsed(path)) or "").split("\n\n")[0].split())
    match = re.match(r"(.*?[.!?])(?:\s+[A-Z`(]|$)", text)
    return (match.group(1) if match else text).replace("|", "\\|")


def tables() -> str:
    """One table a room: module and sentence."""
    parts = []
    for room in ROOMS:
        parts.append(f"### `{room}/`\n\n{first_sentence(ROOT / room / '__init__.py')}\n\n| module | what |\n|---|---|")
        parts += (
            f"| `{path.relative_to(ROOT).as_posix()}` | {first_sentence(path)} |"
            for path in sorted((ROOT / room).rglob("*.py"), key=lambda p: (len(p.parts), p))
            if path.name != "__init__.py" and "versions" not in path.parts
        )
        parts.append("")
    return "\n".join(parts)


def page() -> str:
    """The page with fresh tables."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
