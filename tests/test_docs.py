"""The documents say what is there: invariants with their tests, paths and commands that exist, a map of two pages."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests import documents
from tests.architecture import ROOMS, modules
from tests.changes_page import PAGE, unlisted_files, wrong_names
from turnpike import cli

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INVARIANT = re.compile(r"(?<![\w-])([CEGI])([1-9]\d?)(?![\w-])")


def invariants(root: Path) -> dict[str, list[str]]:
    """Each invariant that the page states, and the tests that hold it."""
    found = re.findall(r"^\| ([CEGI]\d+) \|[^|]*\|([^|]*)\|$", (root / "docs/invariants.md").read_text(), re.M)
    return {name: re.findall(r"`([^`]+::[^`]+)`", held_by) for name, held_by in found}


def invariants_without_a_test(root: Path) -> list[str]:
    """Invariants that name no test, and tests that they name and that are not there."""
    wrong = []
    for name, tests in invariants(root).items():
        if not tests:
            wrong.append(f"{name} names no test")
        for test in tests:
            file, function = test.split("::")
            source = (root / file).read_text() if (root / file).exists() else ""
            if not re.search(rf"^(async )?(def|class) {function}\b", source, re.M):
                wrong.append(f"{name} names {test}, which is not there")
    return wrong


def unstated_invariants(root: Path) -> list[str]:
    """Where the product or its tests cite an invariant that the page does not state."""
    stated = invariants(root).keys()
    return [
        f"{path.relative_to(root).as_posix()}:{number} cites {match.group(0)}"
        for path in (*modules(root), *sorted((root / "tests").rglob("*.py")))
        if "migrations" not in path.parts and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in INVARIANT.finditer(line)
        if match.group(0) not in stated and "UNCL" not in line and f'"{match.group(0)}"' not in line
    ]


def test_each_invariant_has_a_test_that_is_there() -> None:
    assert invariants_without_a_test(ROOT) == []


def test_each_invariant_that_code_cites_is_stated() -> None:
    assert unstated_invariants(ROOT) == []


def test_an_invariant_without_statement_or_test_is_named(tmp_path: Path) -> None:
    files = {
        "docs/invariants.md": "| C1 | Held. | `tests/test_a.py::test_a` |\n| C2 | Hoped. | |\n"
        "| C3 | Lost. | `tests/test_a.py::test_b`, `tests/test_b.py::test_a` |\n",
        "tests/test_a.py": "async def test_a():\n    # C1 holds, and so does E4\n    pass\n",
        "billing/money.py": '"""Money, as I3 wants it."""\n',
    }
    _write(tmp_path, files)
    assert invariants_without_a_test(tmp_path) == [
        "C2 names no test",
        "C3 names tests/test_a.py::test_b, which is not there",
        "C3 names tests/test_b.py::test_a, which is not there",
    ]
    assert unstated_invariants(tmp_path) == ["billing/money.py:1 cites I3", "tests/test_a.py:2 cites E4"]


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


def test_flags_and_names_of_the_page_of_changes_are_there() -> None:
    wrong = wrong_names(ROOT)
    assert not wrong, "\n".join(wrong)


def test_a_file_that_is_not_listed_is_named(tmp_path: Path) -> None:
    files = {
        PAGE.as_posix(): (ROOT / PAGE).read_text().replace("## An export\n", "## Exports\n"),
        "billing/tiers.py": 'TIERS = ("dram", "nvme")\n',
        "tests/gateway/test_prices.py": "from billing.usage import METERS\n",
        "docs/waits.md": "Set `--queue-timeout-batch`.\n",
        "gateway/news.py": "_ANSWER_TIMEOUT_S = 3.0\n",
        "gateway/weather.py": "async def ask():\n    async with asyncio.timeout(3):\n        pass\n",
        "turnpike/commands/engine.py": "def run():\n    return 0\n",
    }
    _write(tmp_path, files)
    assert unlisted_files(tmp_path) == [
        "docs/changes.md has no section 'An export'",
        'turnpike/commands/engine.py: no exception in docs/changes.md under "A lane\'s share"',
        "gateway/news.py: not listed in docs/changes.md under 'A wait'",
        "gateway/weather.py: not listed in docs/changes.md under 'A wait'",
        "billing/tiers.py: not listed in docs/changes.md under 'A cache tier'",
        "tests/gateway/test_prices.py: not listed in docs/changes.md under 'A meter'",
        "docs/waits.md: not listed in docs/changes.md under 'A wait'",
    ]


def test_a_flag_or_name_that_is_not_there_is_named(tmp_path: Path) -> None:
    files = {
        "docs/settings.md": "| `--queue-seconds-lane` |",
        "tests/goldens/files/commands.json": '"--json"',
        PAGE.as_posix(): "`--json`, `--queue-{seconds,x}-lane`\n| `billing/tiers.py` | `TIERS`, `read_TIER`, `ALL` |\n",
        "billing/tiers.py": 'TIERS = ("dram", "nvme")\n',
    }
    _write(tmp_path, files)
    assert wrong_names(tmp_path) == [
        "--queue-x-lane is no flag",
        "ALL is in no file of its row: | `billing/tiers.py` | `TIERS`, `read_TIER`, `ALL` |",
    ]


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


_WRITTEN = sorted(
    {(page.name, command) for page in documents.pages() for command in documents.commands(page.read_text())}
)
_parser = cache(cli.build_parser)
_ABRIDGED = re.compile(r"[\[…·]")
_PLACEHOLDER = re.compile(r"invalid \w+( value)?: '[A-Z]+'")


def _mistake(command: str) -> str | None:
    """What the command line says against a command of a document: a name or flag that is not there, an argument that is
    missing. An example with `[OPTIONS]` or an ellipsis is checked for its names and flags alone."""
    words = command.split()
    parser = _parser(words[0])
    place = 0
    while (nested := parser._subparsers) is not None:
        (actions,) = (action for action in nested._group_actions if action.choices is not None)
        if place == len(words):  # it names a group of commands
            return None
        if words[place] not in actions.choices:
            return f"there is no {words[place]}"
        parser = actions.choices[words[place]]
        place += 1
    flags = re.findall(r"--[a-z][a-z-]+", command.replace("focus-toolkit", ""))
    if unknown := [flag for flag in flags if flag not in parser._option_string_actions]:
        return f"there is no {unknown[0]}"
    if place == len(words) or _ABRIDGED.search(command):
        return None
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            _parser(words[0]).parse_args(shlex.split(command))
    except SystemExit as ended:
        if ended.code and not _PLACEHOLDER.search(said.getvalue()):
            return said.getvalue().strip().splitlines()[-1]
    return None


def test_commands_in_the_documents_are_there() -> None:
    assert len(_WRITTEN) > 100
    wrong = {written: mistake for written in _WRITTEN if (mistake := _mistake(written[1]))}
    assert not wrong


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        ("keyz create", "there is no keyz"),
        ("keys make --tenant demo", "there is no make"),
        ("keys create --tenant T [--prodject P]", "there is no --prodject"),
        ("cache forget demo", "required: PROJECT"),
        ("cache forget TENANT PROJECT --reason WHY", None),
    ],
)
def test_a_command_that_is_not_there_is_named(command: str, mistake: str | None) -> None:
    said = _mistake(command)
    assert said == mistake or (mistake and said and mistake in said)
