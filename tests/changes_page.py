"""Whether docs/changes.md lists every file that a kind of change touches: each kind is known by words in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.architecture import ROOMS, modules

PAGE = Path("docs", "changes.md")

WORDS: Mapping[str, str] = {
    "A model family": r"[\"']mixtral[\"']|\bMIXTRAL\b",
    "A dialect": r"(?<!docs\.)anthropic",
    "A cache tier": r"nvme|\bTierLimit\b|\bDiskTier\b|\bdisk_folder\b",
    "A meter": r"read_automatic|[\"']uncached[\"']|\bLEASE_CLASSES\b|cache_write_tokens|[\"'](read|write)_[\"'{]",
    "An export": r"focus-periods|\bBILLING_PERIOD\b",
    "A lane's share": r"\bLANE_WEIGHTS\b|\blane_weights\b",
    "A response header": r"x-turnpike-max-tokens|\bcache-status\b|\bretry-after\b|\bx-accel-|\bcontent-security-policy",
    "A wait": r"\brequest_timeout\b|\bRequestTimeouts\b|\bqueue_timeout_|\bclient_timeout:",
    "A logo on the PDF": r"invoice\.typ|\"\*\.typ|\bto_pdf\b",
}
"""The heading of each change -> what the files have that one before it touched: a family, a vendor, a tier, a header.

Not looked for are commands: a module in `turnpike/commands/` is one.
"""
ELSEWHERE: Mapping[str, frozenset[str]] = {
    "A cache tier": frozenset(  # these are listed as a count of the engine
        {"billing/usage.py", "billing/events/columns.py", "billing/integrity/leaf_forms.py"}
    ),
    "A response header": frozenset({"webhooks/sending.py"}),  # it reads what others answer to us
    "A wait": frozenset({"turnpike/demonstration/requests.py"}),  # it waits for nothing
}
"""Files that have the words, and that such a change does not touch."""


def unlisted_files(root: Path) -> list[str]:
    """Files that have the words of a change and that its section does not list; exceptions that are none any more."""
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (root / PAGE).read_text(), re.M | re.S))
    wrong = []
    for heading, words in WORDS.items():
        if heading not in sections:
            wrong.append(f"{PAGE} has no section {heading!r}")
            continue
        listed = [_pattern(path) for path in re.findall(r"`([\w./-]+)`", sections[heading])]
        for path in product_files(root):
            name = path.relative_to(root).as_posix()
            excepted = name in ELSEWHERE.get(heading, ())
            if not excepted and any(pattern.fullmatch(name) for pattern in listed):
                continue
            if excepted != bool(re.search(words, path.read_text())):
                wrong.append(f"{name}: {'no exception' if excepted else 'not listed'} in {PAGE} under {heading!r}")
    return wrong


def product_files(root: Path) -> Iterator[Path]:
    """The modules of all rooms but the schema's history, the console's, the invoice's layout and what is packed."""
    yield from modules(root, (room for room in ROOMS if room != "migrations"))
    for path in sorted((root / "web" / "src").rglob("*.ts*")):
        if ".test." not in path.name and path.name != "schema.d.ts":
            yield path
    yield from sorted((root / "billing").rglob("*.typ"))
    if (root / "pyproject.toml").exists():
        yield root / "pyproject.toml"


def _pattern(path: str) -> re.Pattern[str]:
    """What a listed path stands for: itself, all in a folder, any word for NAME or VENDOR."""
    text = re.escape(path + (".*" if path.endswith("/") else ""))
    return re.compile(text.replace(r"\.\*", ".*").replace("NAME", r"\w+").replace("VENDOR", r"\w+"))
