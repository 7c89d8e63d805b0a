"""The goldens themselves: a difference fails and can be read, and no file is left that nothing compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens import golden


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    monkeypatch.setenv(golden.REWRITE, "1")
    golden.check("table", {"kept": 1, "changed": [1, 2]})
    golden.check_bytes("bytes", b"0123456789abcdef!")
    monkeypatch.delenv(golden.REWRITE)
    return tmp_path


def test_the_same_passes(folder: Path) -> None:
    golden.check("table", {"changed": [1, 2], "kept": 1})
    golden.check_bytes("bytes", b"0123456789abcdef!")


def test_a_difference_is_shown(folder: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        golden.check("table", {"kept": 1, "changed": [1, 3]})
    assert {"-  2", "+  3"} <= set(str(failed.value).splitlines())
    assert "table.json differs" in str(failed.value)
    with pytest.raises(pytest.fail.Exception) as failed:
        golden.check_bytes("bytes", b"0123456789abcdef?")
    changed = [line for line in str(failed.value).splitlines() if line[:1] in "+-" and "bytes.bin" not in line]
    assert [line.split() for line in changed] == [["-21", "!"], ["+3f", "?"]]


def test_a_missing_golden_fails(folder: Path) -> None:
    with pytest.raises(pytest.fail.Exception):
        golden.check("new", [])


def test_every_file_is_compared() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    unread = [path.name for path in golden.FOLDER.iterdir() if f'"{path.stem}"' not in source]
    assert not unread, f"no test names these goldens: {unread}"
