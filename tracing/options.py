"""Which requests are traced, and who is told."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class TraceOptions(Struct, frozen=True, kw_only=True):
    """`endpoint`: the collector's address, to which `/v1/traces` is added; empty: nothing is traced. `ratio`: the part
    of requests that is traced whatever comes of them. `slow`: seconds to the first token beyond which one always is.
    `headers`: what the collector is sent beside the traces."""

    endpoint: str = ""
    ratio: float = 0.01
    slow: float = 10.0
    headers: tuple[tuple[str, str], ...] = ()


def read_headers(path: str) -> dict[str, str]:
    """The headers of a file, `NAME: VALUE` a line; lines that begin with # say nothing. Raises OSError, and ValueError
    for a line that is no header."""
    headers = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip() or line.startswith("#"):
            continue
        if not (colon and name and value.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise ValueError(f"line {number} of {path} is not NAME: VALUE")
        headers[name] = value
    return headers
