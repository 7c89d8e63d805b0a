"""API keys: their form, their checksum, and texts that are almost keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.keys import Peppers, generate_key, parse_key


def test_a_key_looks_as_documented_and_no_two_are_alike() -> None:
    issued = [generate_key()[0] for _ in range(200)]
    for key in issued:
        assert re.fullmatch(r"tp_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", key.key)
        presented = parse_key(key.key)
        assert presented is not None
        assert presented.public_id == key.public_id
        assert presented.secret in key.key
    assert len({key.key for key in issued}) == len({key.public_id for key in issued}) == 200


@given(st.integers(0, 71), st.sampled_from("0aZ_- é"))
def test_every_typo_is_refused_without_a_database(place: int, letter: str) -> None:
    key = generate_key()[0].key
    place %= len(key)
    wrong = key[:place] + letter + key[place + 1 :]
    assert (parse_key(wrong) is None) == (wrong != key)


@given(st.text())
def test_anything_else_is_no_key(text: str) -> None:
    assert parse_key(text) is None


def test_peppers_matter_and_do_not_show() -> None:
    one, other = Peppers({1: b"a" * 16}, 1), Peppers({1: b"b" * 16, 2: b"a" * 16}, 1)
    assert one.mac(1, "s") != other.mac(1, "s")
    assert other.mac(1, "s") != other.mac(2, "s")
    assert one.mac(9, "s") != one.mac(1, "s")
    assert "aaa" not in repr(one) + str(one)
    for versions, current in (({}, 1), ({1: b"a" * 16}, 2), ({1: b"short"}, 1)):
        with pytest.raises(ValueError, match="peppers"):
            Peppers(versions, current)
