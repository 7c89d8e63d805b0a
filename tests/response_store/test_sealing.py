"""Signatures of thinking: what comes back is what was sent, and nothing else passes for it."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from response_store.sealing import ThinkingSeal

SEAL = ThinkingSeal(b"m" * 32)
OURS, OTHERS = UUID(int=1), UUID(int=2)


@given(text=st.text(), other=st.text())
def test_a_text_is_read_under_its_own_signature_alone(text: str, other: str) -> None:
    signature = SEAL.sign(OURS, text)
    assert SEAL.read(OURS, text, signature) == text
    assert SEAL.read(OTHERS, text, signature) is None
    assert ThinkingSeal(b"n" * 32).read(OURS, text, signature) is None
    if other != text:
        assert SEAL.read(OURS, other, signature) is None


@given(text=st.text(), shown=st.text())
def test_what_was_not_shown_comes_back_from_its_signature(text: str, shown: str) -> None:
    signature = SEAL.seal(OURS, text)
    assert SEAL.read(OURS, "", signature) == text
    assert SEAL.read(OURS, text, signature) == text
    assert SEAL.read(OURS, shown, signature) == (text if shown in ("", text) else None)
    assert SEAL.read(OTHERS, "", signature) is None
    assert signature != SEAL.seal(OURS, text)


@given(text=st.text(), cut=st.integers(1, 60), junk=st.text(min_size=1))
def test_what_is_cut_or_made_up_is_left_out(text: str, cut: int, junk: str) -> None:
    for signature in (SEAL.sign(OURS, text), SEAL.seal(OURS, text)):
        assert SEAL.read(OURS, text, signature[:-cut] or "x") is None
    assert SEAL.read(OURS, text, junk) is None


def test_half_of_a_surrogate_pair_is_a_character_like_any_other() -> None:
    for signature in (SEAL.sign(OURS, "\ud800"), SEAL.seal(OURS, "\ud800")):
        assert SEAL.read(OURS, "\ud800", signature) == "\ud800"
    assert SEAL.read(OURS, "", "\ud800") is None


def test_a_text_without_a_signature_is_taken_as_it_is() -> None:
    assert SEAL.read(OURS, "hm", "") == "hm"
