"""The letters of reminders: plain text for each level, with the invoice's PDF attached.

A folder may have others: `level-1.txt` and so on. The first line is the subject, the rest the text; `$name` stands for
one of the FIELDS. The last letter serves all levels behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from string import Template

import msgspec

from storage.reported_error import ReportedError

FIELDS = frozenset(("buyer", "seller", "number", "issued", "due", "left", "total", "days", "link", "payment"))
_MOST = 20_000
_END = "\n\nIf you have paid in the meantime, please disregard this message.\n\n$seller\n"
_HOW = "\n\nThe invoice is attached. You can see it here:\n$link\n\n$payment"
_BUILT_IN = (
    (
        "Reminder: invoice $number was due on $due",
        "Dear $buyer,\n\nInvoice $number of $issued over $total was due on $due. $left are open.",
    ),
    (
        "Second reminder: invoice $number is $days days overdue",
        "Dear $buyer,\n\nInvoice $number of $issued was due on $due, $days days ago. We have reminded\n"
        "you of it before. "
        "Please pay the open amount of $left now.",
    ),
    (
        "Last reminder: invoice $number is $days days overdue",
        "Dear $buyer,\n\nInvoice $number of $issued has been due since $due, and $left are still open.\n"
        "If the amount does not come within 7 days, we have to take further steps.",
    ),
)


class InvalidLetter(ReportedError):
    """A letter that cannot be read, or has a field that there is not."""


class Letter(msgspec.Struct, frozen=True):
    """A subject and a text, with fields."""

    subject: str
    text: str

    def filled(self, values: Mapping[str, str]) -> tuple[str, str]:
        """Subject and text with these values for the FIELDS."""
        subject = " ".join(Template(self.subject).substitute(values).split())
        return subject[:200], Template(self.text).substitute(values)


def load_letters(folder: str = "") -> Sequence[Letter]:
    """The letters of a folder, the built-in ones without one. Raises InvalidLetter."""
    if not folder:
        return [Letter(subject, text + _HOW + _END) for subject, text in _BUILT_IN]
    letters: list[Letter] = []
    while (path := Path(folder) / f"level-{len(letters) + 1}.txt").exists():
        letters.append(_read(path))
    if not letters:
        raise InvalidLetter(f"reminder_folder: {folder} has no level-1.txt")
    return letters


def _read(path: Path) -> Letter:
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidLetter(f"reminder_folder: cannot read {path}: {error}") from error
    subject, _, text = content.partition("\n")
    unknown = set(Template(content).get_identifiers()) - FIELDS
    if unknown or not Template(content).is_valid():
        raise InvalidLetter(f"reminder_folder: {path}: {', '.join(sorted(unknown)) or 'a $'} is no field")
    if not subject.strip() or not text.strip() or len(content) > _MOST:
        raise InvalidLetter(f"reminder_folder: {path}: it needs a subject, an empty line and a text")
    return Letter(subject.strip(), text.strip() + "\n")


def write_message(  # noqa: PLR0917
    sender: str, recipient: str, subject: str, text: str, message_id: str, pdf: tuple[str, bytes] | None
) -> EmailMessage:
    """The e-mail, with the invoice's PDF under its name."""
    message = EmailMessage(policy=SMTP)
    # `email` decodes an encoded word in what it is given, and writes line ends that were in it as they are.
    subject = subject.replace("=?", "= ?")
    message["From"], message["To"], message["Subject"] = sender, recipient, subject
    message["Message-ID"], message["Auto-Submitted"] = message_id, "auto-generated"
    message.set_content(text)
    if pdf is not None:
        name, content = pdf
        message.add_attachment(content, maintype="application", subtype="pdf", filename=name)
    return message
