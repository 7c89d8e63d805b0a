"""Checks text that people write for others to read (names, addresses, reasons): one line of bounded length."""

from __future__ import annotations

import unicodedata

from storage.reported_error import ReportedError

NAME, REASON = 200, 500
"""The most characters of a name and of a reason."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U00016fe4") | frozenset(
    map(chr, (*range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0)))
)
"""Letters, marks and symbols that are printable by their category, and show nothing: those of Unicode's property
Default_Ignorable_Code_Point, and the empty Braille pattern."""
_STYLES = frozenset("\ufe0e\ufe0f")
"""Whether the symbol before is shown as text or as a picture. After a letter they show nothing."""
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


class InvalidText(ReportedError, ValueError):
    """A text is empty, too long, or has a character that nobody sees; `field` names it, `problem` says which."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def problem_of_text(text: str, most: int, *, empty: bool = False) -> str:
    """What is wrong with a text that may have `most` characters; "" if nothing is. `empty`: it may be empty."""
    if not empty and not text.strip():
        return "it is empty"
    if len(text) > most:
        return f"longer than {most} characters"
    if (unseen := _unseen(text)) is not None:
        return f"it has a character that nobody sees, U+{ord(unseen):04X}"
    return ""


def _unseen(text: str) -> str | None:
    """The first character that shows nothing, or changes how others are shown: two texts that look the same would be
    different ones. A plain space is seen between others."""
    for place, letter in enumerate(text):
        if letter in _STYLES:
            if not place or unicodedata.category(text[place - 1]) != "So":
                return letter
        elif not letter.isprintable() or letter in _BLANK:
            return letter
    return None


def check_text(field: str, text: str, most: int, *, empty: bool = False) -> None:
    """Raise InvalidText unless the text has 1 to `most` printable characters, or none where it may be `empty`."""
    if problem := problem_of_text(text, most, empty=empty):
        raise InvalidText(field, problem)


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless the count is 1: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def safe_cell(text: str) -> str:
    """Text that no spreadsheet evaluates: a leading formula character gets an apostrophe in front.

    Source: OWASP, CSV Injection.
    """
    return f"'{text}" if text[:1] in _FORMULA else text
