"""Checks text that people write for others to read (names, addresses, reasons): one line of bounded length."""

from __future__ import annotations

from storage.reported_error import ReportedError

NAME, REASON = 200, 500
"""The most characters of a name and of a reason."""
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


class InvalidText(ReportedError, ValueError):
    """A text is empty, too long, or has a control character; `field` names it and `problem` says what is wrong."""

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
    if not text.isprintable():
        return "it has a control character or a line break"
    return ""


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
