"""Text that people write for others to read: names, addresses, reasons. Each has bounds, and one line."""

from __future__ import annotations

from storage.reported_error import ReportedError


def counted(count: int, noun: str) -> str:
    """The noun in the singular for one thing and with an s for any other number: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


NAME, REASON = 200, 500
"""Characters that a name and a reason have at most."""


class InvalidText(ReportedError, ValueError):
    """Text that is empty, too long, or more than a line; `field` says which."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def problem_of_text(text: str, most: int, *, empty: bool = False) -> str:
    """What is wrong with a text of at most so many characters; "" if nothing is."""
    if not empty and not text.strip():
        return "it is empty"
    if len(text) > most:
        return f"longer than {most} characters"
    if not text.isprintable():
        return "it has a control character or a line break"
    return ""


def check_text(field: str, text: str, most: int, *, empty: bool = False) -> None:
    """Raise InvalidText unless the text has 1 to `most` printable characters; none are enough where it may be empty."""
    if problem := problem_of_text(text, most, empty=empty):
        raise InvalidText(field, problem)
