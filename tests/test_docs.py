"""The documents say what is there: invariants with their tests, paths that exist, a map of two pages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture import ROOMS, modules
from tests.changes_page import PAGE, unlisted_files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INVARIANT = re.compile(r"(?<![\w-])([CEGI])([1-9]\d?)(?![\w-])")
NAMED_LIKE_ONE = {"E501"}


def rows() -> dict[str, list[str]]:
    """Each invariant's name and the tests that hold it."""
    found = re.findall(r"^\| ([CEGI]\d+) \|[^|]*\|([^|]*)\|$", (DOCS / "invariants.md").read_text(), re.M)
    return {name: re.findall(r"`([^`]+::[^`]+)`", held_by) for name, held_by in found}


def test_each_invariant_has_a_test_that_is_there() -> None:
    for name, tests in rows().items():
        assert tests or name == "E5", name
        for test in tests:
            file, function = test.split("::")
            assert re.search(rf"^(async )?(def|class) {function}\b", (ROOT / file).read_text(), re.M), test


def test_each_invariant_that_code_cites_is_stated() -> None:
    stated = rows().keys()
    cited = {
        match.group(0): path.relative_to(ROOT).as_posix()
        for path in modules(ROOT)
        if "migrations" not in path.parts
        for line in path.read_text().splitlines()
        for match in INVARIANT.finditer(re.sub(r"G1 to G6", "G1 G6", line))
        if "UNCL" not in line and '"' + match.group(0) + '"' not in line
    }
    assert {name: where for name, where in cited.items() if name not in stated} == {}


def test_paths_in_the_documents_exist() -> None:
    rooms = "|".join([*ROOMS, "tests", "benchmarks", "scripts", "docs", "models"])
    missing = [
        f"{page.name}: {path}"
        for page in [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
        for path in re.findall(rf"`((?:{rooms})/[\w./-]*)`", page.read_text())
        if not (ROOT / path).exists() and not re.search(r"\b(NAME|VENDOR)\b", path)
    ]
    assert missing == []


def test_the_map_stays_a_map() -> None:
    assert (DOCS / "structure.md").stat().st_size <= 12 * 1024


def test_every_file_that_a_change_touches_is_listed() -> None:
    wrong = unlisted_files(ROOT)
    assert not wrong, "\n".join(wrong)


def test_a_file_that_is_not_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / PAGE).parent.mkdir()
    (tmp_path / PAGE).write_text((ROOT / PAGE).read_text().replace("## An export\n", "## Exports\n"))
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing" / "tiers.py").write_text('TIERS = ("dram", "nvme")\n')
    assert unlisted_files(tmp_path) == [
        "billing/tiers.py: not listed in docs/changes.md under 'A cache tier'",
        "docs/changes.md has no section 'An export'",
    ]
