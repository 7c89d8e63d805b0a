"""Names and reasons: what looks the same is the same, so nothing that nobody sees is in them."""

from __future__ import annotations

import pytest

from storage.free_text import InvalidText, check_text

UNSEEN = {
    "a zero-width space": "\u200b",
    "a zero-width joiner": "\u200d",
    "a byte order mark": "\ufeff",
    "a soft hyphen": "\u00ad",
    "a bidi override": "\u202e",
    "a bidi isolate": "\u2066",
    "a control character": "\x07",
    "a line break": "\n",
    "a line separator": "\u2028",
    "a no-break space": "\u00a0",
    "a Hangul filler": "\u3164",
    "a combining grapheme joiner": "\u034f",
    "a variation selector": "\ufe00",
    "a style after a letter": "\ufe0f",
    "an ideographic variation selector": "\U000e0101",
    "an empty Braille pattern": "\u2800",
    "a tag": "\U000e0041",
    "a lone surrogate": "\ud800",
}


@pytest.mark.parametrize("letter", UNSEEN.values(), ids=UNSEEN)
def test_what_nobody_sees_is_refused_by_its_name(letter: str) -> None:
    for text in (f"ac{letter}me", f"acme{letter}"):
        with pytest.raises(InvalidText) as caught:
            check_text("name", text, 200)
        assert caught.value.field == "name"
        assert caught.value.problem == f"it has a character that nobody sees, U+{ord(letter):04X}"


@pytest.mark.parametrize(
    "text", ["acme", "Ünïcode, S.à r.l.", "株式会社", "شركة", "हिन्दी", "e\u0301", "a \u2764\ufe0f b", "☎︎"]
)
def test_what_people_write_is_let_through(text: str) -> None:
    check_text("name", text, 200)
