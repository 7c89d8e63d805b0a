"""The counter of code: what counts as a line, which modules are the product's, and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import count_code


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""A module."""\n', 0),
        ("\n# a comment\n\n", 0),
        ("import os\n", 1),
        ("import os  # why\n", 1),
        ("x = 1; y = 2\n", 1),
        ("x = (\n    1,\n    # why\n\n    2,\n)\n", 4),
        ('def f():\n    """Say.\n\n    More.\n    """\n    return 1\n', 2),
        ('class A:\n    """Say."""\n\n    x: int = 0\n    """What x is."""\n', 2),
        ('async def f():\n    """Say."""\n', 1),
        ('x = """a\n\n# no comment\nb"""\n', 4),
        ('f(\n    """an argument"""\n)\n', 3),
        ('x = f"""a\n{y}\n"""\n', 3),
        ('"""One.""" \\\n    """Two."""\nx = 1\n', 1),
        ('def f():\n    """Say."""; return 1\n', 2),
        ('x = """a"""  # why\n', 1),
        ("if x:\n    ...\nelse:\n    pass\n", 4),
        ("@decorated\ndef f(): pass\n", 2),
        ("x = 1 + \\\n    2\n", 2),
    ],
)
def test_lines_of_code(source: str, lines: int) -> None:
    assert count_code.count(source) == lines


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with two rooms of 41 and 3 lines, and what is not the product's."""
    for name, text in {
        "room/__init__.py": '"""A room."""\n',
        "room/large.py": "x = 1\n" * 41,
        "other/__init__.py": "",
        "other/inner/__init__.py": "y = 1\n",
        "other/inner/small.py": "# why\nx = 1\n",
        "other/inner/cuda/kernel.cu": "// why\n\n  int x;  // what\n",
        "tests/__init__.py": "",
        "tests/test_room.py": "x = 1\n" * 9,
        "scripts/__init__.py": "x = 1\n",
        "migrations/__init__.py": "x = 1\n",
        "benchmarks/__init__.py": "x = 1\n",
        "no_package/module.py": "x = 1\n",
        "scripts/code_bound.txt": "44\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_product_is_counted_by_room(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert count_code.main([], tree) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["3 other", "41 room", "44 in all; 2 modules have under 40 lines of code"]


def test_small_modules_are_listed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert count_code.main(["--modules"], tree) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["1", "other/inner/__init__.py"],
        ["1", "other/inner/small.py"],
    ]


def test_a_product_that_grew_fails_until_the_bound_is_set(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "room" / "more.py").write_text("x = 1\n")
    assert count_code.main([], tree) == 1
    assert "1 lines of code more than its bound of 44" in capsys.readouterr().err
    assert count_code.main(["--set"], tree) == 0
    assert count_code.main([], tree) == 0
    (tree / "room" / "more.py").write_text("# x = 1\n")
    assert count_code.main([], tree) == 0


def test_the_tree_has_the_rooms_that_it_says() -> None:
    """A room that is renamed is counted; a folder that is no room is not."""
    found = {room.name for room in count_code.rooms(count_code.ROOT)}
    assert {"billing", "engine", "gateway", "storage", "turnpike"} <= found
    assert not found & count_code.NOT_PRODUCT
