"""What is listed as too slow for `make test-fast`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fast import kind_of, measured_slow, slow_of

TESTS = Path(__file__).parent


def test_what_is_listed_exists() -> None:
    gone = []
    for name in measured_slow():
        file, *names = name.split("[")[0].split("::")
        path = TESTS / file
        written = path.read_text() if path.exists() else ""
        gone += [name for each in names if each not in written and each != "runTest"]
    assert sorted(gone) == [], "write tests/slow_tests.txt anew with `make slow-tests`"


def test_what_takes_long_is_listed_but_of_each_file_and_invariant_one_stays() -> None:
    invariant = "tests/prompt_cache/kv/test_block_keys.py::test_scopes_share_no_key"
    took = {
        "tests/a/test_b.py::test_quick": 0.1,
        "tests/a/test_b.py::test_slow[x]": 0.3,
        "tests/a/test_c.py::test_slower": 0.4,
        "tests/a/test_c.py::test_slowest": 0.5,
        "tests/a/test_d.py::test_alone": 3.0,
        invariant: 0.6,
        "tests/prompt_cache/kv/test_block_keys.py::test_other": 0.3,
        "tests/prompt_cache/kv/test_block_keys.py::test_another": 0.1,
    }
    assert slow_of(took, 0.2) == [
        "a/test_b.py::test_slow[x]",
        "a/test_c.py::test_slowest",
        "a/test_d.py::test_alone",
        "prompt_cache/kv/test_block_keys.py::test_other",
    ]


def test_a_test_that_either_kind_of_database_will_do_for_has_one() -> None:
    kinds = Counter(kind_of(f"tests/a/test_b.py::test_c{number}[sqlite-x]") for number in range(100))
    assert min(kinds["sqlite"], kinds["postgresql"]) > 30
    for number in range(10):
        assert kind_of(f"test_{number}[sqlite-x]") == kind_of(f"test_{number}[postgresql-x]")
