"""Whether docs/changes.md lists every file that a kind of change touches, by words that these files have.

The case that was there before is looked for: what a new header touches, for instance, is what has `retry-after` today.
The page's flags and names are compared with the settings and the code, so that it says nothing that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

from tests.architecture import ROOMS, modules

PAGE = Path("docs", "changes.md")
FLAGS = Path("docs", "settings.md"), Path("tests", "goldens", "files", "commands.json")

WORDS: Mapping[str, str] = {
    "A model family": r"[\"']mixtral[\"']|\bMIXTRAL\b|\bgroup\.window\b|\bRopeKind\b|\brope\.stretched\(",
    "A dialect": r"(?<!docs\.)anthropic",
    "A cache tier": r"nvme|\bTierLimit\b|\bDiskTier\b|\bdisk_folder\b|\b(read_)?disk_rate\b|\bLOOK_S\b",
    "A count of the engine": r"count_recomputed|_recomputed_tokens|\brecomputed(: int|=0)\b|[\"']recomputed[\"']",
    "A meter": r"read_automatic|[\"']uncached[\"']|\bLEASE_CLASSES\b|cache_write_tokens|[\"'](read|write)_[\"'{]",
    "An export": r"focus-periods|\bBILLING_PERIOD\b|\bexport_job\b|\bopen_writer\(|\bExportQuery\b",
    "A lane's share": r"\bLANE_WEIGHTS\b|\blane_weights\b|\bweight_of\b|\bexpected_share\b|\bborrow_share\b",
    "A response header": r"x-turnpike-max-tokens|\bcache-status\b|\bretry-after\b|\bx-accel-|\bcontent-security-policy",
    "A wait": (
        r"\b(request|database|drain)_timeout\b|RequestTimeouts\b|\bqueue_timeout|\bclient_timeout:|\bCircuitBreaker\("
        r"|\basyncio\.(timeout|timeout_at|wait_for)\(|\basyncio\.wait\(.*\btimeout=|TIMEOUT\w*(: float)? = \d"
    ),
    "A logo on the PDF": r"invoice\.typ|\"\*\.typ|\bto_pdf\b",
}
"""The heading of each change -> what the files have that one before it touched: a family, a vendor, a tier, a header.

Not looked for are commands: a module in `turnpike/commands/` is one.
"""
WORDS_BESIDE_THE_PRODUCT: Mapping[str, str] = {
    "An export": r"focus-periods|\bBILLING_PERIOD\b",
    "A meter": r"\bMETERS\b|\bMETER_WORDS\b",
    "A response header": r"x-turnpike-max-tokens",
    "A wait": r"--queue-timeout-|\bqueue_timeouts\b|\bdatabase_timeout\b|\bRequestTimeouts\b",
}
"""The same for tests, benchmarks and pages, where they read or use more than such a change touches."""
ELSEWHERE: Mapping[str, frozenset[str]] = {
    "A cache tier": frozenset(  # these are listed as a count of the engine
        {
            "billing/usage.py",
            "billing/events/columns.py",
            "billing/integrity/leaf_forms.py",
            "tests/goldens/test_books.py",
        }
    ),
    "A meter": frozenset({"gateway/http/cache_status.py", "engine/core/output_processor.py"}),  # counts of the engine
    "An export": frozenset({"billing/integrity/recorded_tables.py"}),  # the jobs that make any of them
    "A response header": frozenset({"webhooks/sending.py"}),  # it reads what others answer to us
}
"""Files that have the words, and that such a change does not touch."""
MAPS = frozenset(f"docs/{name}.md" for name in ("changes", "decisions", "modules", "settings", "structure"))
"""Pages that name everything, or are written by a program; `Every change` on the page says which."""
CHECKS = frozenset({"tests/architecture.py", "tests/changes_page.py", "tests/test_docs.py"})

_AS_THEY_ARE = re.compile(r"^As (?:they are|it is).*?(?=^\s*$|\Z)", re.M | re.S)
_PATH = re.compile(r"`([\w./-]+)`")
_FLAG = re.compile(r"`(--[\w{},-]+)")
_NAME = re.compile(r"`(_?[A-Za-z]\w*(?:\.\w+)*)`")


class Change:
    """One section of the page: the files that it lists, those that stay as they are, and the words that tell."""

    def __init__(self, heading: str, text: str) -> None:
        self.heading = heading
        words = WORDS[heading]
        self._words = re.compile(words), re.compile(WORDS_BESIDE_THE_PRODUCT.get(heading, words))
        same = _PATH.findall("".join(_AS_THEY_ARE.findall(text)))
        self._same = frozenset(same) | ELSEWHERE.get(heading, frozenset())
        self._listed = re.compile("|".join(map(_pattern, _PATH.findall(_AS_THEY_ARE.sub("", text)))))

    def wrong(self, name: str, text: str, *, beside: bool) -> str | None:
        """What is wrong with a file. `beside`: it is no part of the product."""
        same = name in self._same
        if not same and self._listed.fullmatch(name):
            return None
        if same == bool(self._words[beside].search(text)):
            return None
        return f"{name}: {'no exception' if same else 'not listed'} in {PAGE} under {self.heading!r}"


def unlisted_files(root: Path) -> list[str]:
    """Files that have the words of a change and that its section does not list; exceptions that are none any more."""
    found = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (root / PAGE).read_text(), re.M | re.S))
    wrong = [f"{PAGE} has no section {heading!r}" for heading in WORDS if heading not in found]
    changes = [Change(heading, found[heading]) for heading in WORDS if heading in found]
    for files, beside in ((product_files(root), False), (other_files(root), True)):
        for path in files:
            name, text = path.relative_to(root).as_posix(), path.read_text()
            wrong += [line for change in changes if (line := change.wrong(name, text, beside=beside))]
    return wrong


def wrong_names(root: Path) -> list[str]:
    """Flags on the page that nothing has, and names in its tables that stand in no file of their row."""
    flags = {flag for page in FLAGS for flag in re.findall(r"--[\w-]+", (root / page).read_text())}
    text = (root / PAGE).read_text()
    wrong = [f"{flag} is no flag" for written in _FLAG.findall(text) for flag in _braces(written) if flag not in flags]
    for line in text.splitlines():
        files = [file for path in _PATH.findall(line) if (root / path).exists() for file in _texts(root / path)]
        if line.startswith("|") and files:
            row = "\n".join(file.read_text(errors="ignore") for file in files) + " ".join(map(str, files))
            names = {part for name in _NAME.findall(line) for part in name.split(".")}
            stand_ins = re.compile(r"NAME|VENDOR|TIER$")
            wrong += [
                f"{name} is in no file of its row: {line[:80]}"
                for name in sorted(names)
                if name not in row and not stand_ins.search(name)
            ]
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


def other_files(root: Path) -> Iterator[Path]:
    """Tests, benchmarks and pages."""
    found: Iterable[Path] = (
        *modules(root, ("tests", "benchmarks")),
        *sorted((root / "web" / "src").rglob("*.test.ts*")),
        *sorted((root / "docs").glob("*.md")),
        *(root / name for name in ("README.md", "SECURITY.md") if (root / name).exists()),
    )
    yield from (path for path in found if path.relative_to(root).as_posix() not in MAPS | CHECKS)


def _pattern(path: str) -> str:
    """What a listed path stands for: itself, any word for NAME or VENDOR; of tests and new folders all in a folder."""
    folder = path.endswith("/") and (path.startswith("tests/") or "VENDOR" in path)
    text = re.escape(path) + (".*" if folder else "")
    return text.replace("NAME", r"\w+").replace("VENDOR", r"\w+")


def _braces(flag: str) -> Iterator[str]:
    """`--a-{b,c}` -> `--a-b`, `--a-c`."""
    parts = [part.split(",") for part in re.split(r"[{}]", flag)]
    return ("".join(chosen) for chosen in product(*parts))


def _texts(path: Path) -> Iterator[Path]:
    yield from (
        (path,) if path.is_file() else (file for file in path.rglob("*") if file.suffix in (".py", ".ts", ".tsx"))
    )
