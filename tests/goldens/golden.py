"""Golden files: values that the outside or a disk holds, and that no change may alter by accident.

A test gives a value and the name of its file. `make golden` writes all files anew: read what differs before you commit.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "files"
REWRITE = "REWRITE_GOLDENS"
"""The environment variable under which the files are written, not compared."""
_SHOWN_LINES = 60
_BYTES_A_LINE = 16


def check(name: str, value: Any) -> None:
    """Fail unless `value`, as JSON, is what the file of this name holds; show the lines that differ."""
    _check(FOLDER / f"{name}.json", json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n")


def check_bytes(name: str, data: bytes) -> None:
    """Fail unless `data` is what the file of this name holds; show the lines of a hex dump that differ."""
    _check(FOLDER / f"{name}.bin", data)


def read_bytes(name: str) -> bytes:
    """What the file of this name holds."""
    return (FOLDER / f"{name}.bin").read_bytes()


def _check(path: Path, data: bytes) -> None:
    if os.environ.get(REWRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return
    kept = path.read_bytes() if path.exists() else b""
    if kept == data:
        return
    lines = [_lines(path, content) for content in (kept, data)]
    diff = list(difflib.unified_diff(*lines, f"{path.name} (golden)", f"{path.name} (now)", n=2, lineterm=""))
    rest = [f"… {len(diff) - _SHOWN_LINES} more lines"] if len(diff) > _SHOWN_LINES else []
    text = "\n".join([*diff[:_SHOWN_LINES], *rest])
    pytest.fail(f"{path.name} differs; if that is meant: make golden, and read what differs\n{text}", pytrace=False)


def _lines(path: Path, data: bytes) -> list[str]:
    return data.decode().splitlines() if path.suffix == ".json" else hex_dump(data)


def hex_dump(data: bytes) -> list[str]:
    """The bytes in hexadecimal and as text, 16 a line."""
    rows = [data[at : at + _BYTES_A_LINE] for at in range(0, len(data), _BYTES_A_LINE)]
    return [f"{row.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}" for row in rows]
