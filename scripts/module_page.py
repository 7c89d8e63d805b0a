"""Write docs/modules.md, a table of all modules, from the modules' own first sentences.

`python scripts/module_page.py` rewrites the page; a test fails when the page is not what this would write.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "modules.md"
ROOMS = (
    *("turnpike", "gateway", "protocol", "engine", "prompt_cache", "tenancy", "billing", "webhooks", "response_store"),
    *("file_store", "batch_store", "tracing", "waterfall", "audit_log", "model_files", "storage", "migrations"),
)
HEAD = """# Modules

Every module and the first sentence of its docstring. `make docs` writes this page; `structure.md` is the map.
"""


def first_sentence(path: Path) -> str:
    """The docstring's first sentence on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    match = re.match(r"(.*?[.!?])(?:\s+[A-Z`(]|$)", text)
    return (match.group(1) if match else text).replace("|", "\\|")


def page() -> str:
    """The page: one table a room, one row a folder or module."""
    parts = [HEAD]
    for room in ROOMS:
        parts.append(f"## `{room}/`\n\n{first_sentence(ROOT / room / '__init__.py')}\n\n| module | what |\n|---|---|")
        folders = sorted({path.parent for path in (ROOT / room).rglob("*.py") if "versions" not in path.parts})
        for folder in folders:
            if folder != ROOT / room:
                parts.append(
                    f"| **`{folder.relative_to(ROOT).as_posix()}/`** | {first_sentence(folder / '__init__.py')} |"
                )
            parts += (
                f"| `{path.relative_to(ROOT).as_posix()}` | {first_sentence(path)} |"
                for path in sorted(folder.glob("*.py"))
                if path.name != "__init__.py"
            )
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
