"""The files of the console, which `make console` builds into the folder `static` beside this module, kept in memory.

Each asset's name has a digest of its content, so that browsers may keep it for a year. Vite writes beside each the same
bytes compressed, `NAME.br` and `NAME.gz`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from litestar.datastructures import Headers
from msgspec import Struct

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
NONCE = b"__CSP_NONCE__"
"""What stands in the index for the nonce of the Content-Security-Policy."""
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
}
Coding: TypeAlias = Literal["br", "gzip"]
_CODINGS: tuple[tuple[Coding, str], ...] = (("br", ".br"), ("gzip", ".gz"))


class Asset(Struct, frozen=True):
    """A file below /console/assets: its media type, its bytes, and those of each coding that it was compressed with."""

    media_type: str
    content: bytes
    compressed: Mapping[Coding, bytes]

    def for_client(self, headers: Headers) -> tuple[bytes, Coding | None]:
        """The bytes that a client gets, and their coding: the smallest that it accepts (RFC 9110, section 12.5.3)."""
        accepted = _accepted_codings(headers.get("accept-encoding", ""))
        for coding, _ in _CODINGS:
            if coding in accepted and coding in self.compressed:
                return self.compressed[coding], coding
        return self.content, None


class BuiltConsole(Struct, frozen=True):
    """A built console: the page that every route of it answers, and the assets that the page loads, by name."""

    index: bytes
    assets: Mapping[str, Asset]

    @classmethod
    def load(cls, folder: Path = STATIC) -> BuiltConsole | None:
        """The console in a folder; None if it was not built."""
        try:
            index = (folder / INDEX).read_bytes()
        except FileNotFoundError:
            return None
        return cls(index, dict(_read_assets(folder / "assets")))

    def page(self, nonce: str) -> bytes:
        """The index with a nonce for the styles that it adds to the document."""
        return self.index.replace(NONCE, nonce.encode())


def _read_assets(folder: Path) -> list[tuple[str, Asset]]:
    return [
        (path.name, Asset(_TYPES[path.suffix], path.read_bytes(), _read_compressed(path)))
        for path in sorted(folder.iterdir())
        if path.suffix in _TYPES
    ]


def _read_compressed(path: Path) -> dict[Coding, bytes]:
    beside = {coding: path.with_name(path.name + suffix) for coding, suffix in _CODINGS}
    return {coding: file.read_bytes() for coding, file in beside.items() if file.exists()}


def _accepted_codings(header: str) -> frozenset[str]:
    """The codings that an Accept-Encoding header names, but those with `q=0`."""
    parts = (part.partition(";") for part in header.lower().split(","))
    return frozenset(name.strip() for name, _, weight in parts if weight.replace(" ", "") not in {"q=0", "q=0.0"})
