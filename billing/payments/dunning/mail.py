"""Sends one e-mail by SMTP, and says what is known of it afterwards: that it was taken, refused, or nothing."""

from __future__ import annotations

import re
import smtplib
import ssl
import time
from contextlib import suppress
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path
from typing import Literal

import msgspec

from storage.reported_error import ReportedError

TIMEOUT_S = 30
HANDED_OVER_WITHIN_S = 300
"""When a message is not handed over by then it is not any more: whoever sends it claims it for so long only."""
_DOTS = re.compile(rb"^\.", re.MULTILINE)
"""Dots at the beginning of a line: alone it would be the end."""
_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/^_`{|}~.-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", re.ASCII)
"""What each mail server takes, and headers hold as it is: without quotes, and without the `=?` of encoded words."""
Encryption = Literal["starttls", "tls", "none"]


class MailError(ReportedError):
    """The server did not take the message. `again`: it may take it later."""

    def __init__(self, problem: str, *, again: bool) -> None:
        super().__init__(problem)
        self.again = again


class MailUnknown(ReportedError):
    """The message was handed over, and the server's answer did not come: nobody knows whether it is delivered."""


def problem_of_recipient(recipient: str) -> str:
    """What is wrong with an address to which a message is to be sent; empty if nothing is."""
    if not recipient:
        return "the buyer has no e-mail address"
    if _ADDRESS.fullmatch(recipient) is None:
        return f"{recipient} is no address that mail servers take: ASCII, without quotes"
    return ""


class MailServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where mail goes, and as whom. `password_file` is read at each message, so that it may change."""

    host: str
    port: int = 587
    encryption: Encryption = "starttls"
    user: str = ""
    password_file: str = ""
    sender: str

    def send(self, message: EmailMessage, recipient: str) -> None:
        """Send a message to one recipient; blocks for a while. Raises MailError and MailUnknown."""
        connection: smtplib.SMTP | None = None
        began = time.monotonic()
        try:
            connection = self._connect()
            self._prepare(connection)
            _refused_for(connection.mail(parseaddr(self.sender)[1]), "the sender")
            _refused_for(connection.rcpt(recipient), "the recipient")
            if time.monotonic() - began > HANDED_OVER_WITHIN_S:
                raise MailError(f"the mail server took more than {HANDED_OVER_WITHIN_S} s to begin", again=True)
            self._hand_over(connection, message)
        except smtplib.SMTPServerDisconnected as error:
            raise MailError(f"the mail server hung up: {error}", again=True) from error
        except smtplib.SMTPResponseException as error:
            again = error.smtp_code < 500 or isinstance(error, smtplib.SMTPAuthenticationError)
            raise MailError(_said(error.smtp_code, error.smtp_error), again=again) from error
        except UnicodeError:  # whose text would show a part of the password
            raise MailError("the mail server's host, user, password or sender is not in ASCII", again=True) from None
        except (OSError, smtplib.SMTPException) as error:
            raise MailError(f"the mail server cannot be reached: {error}", again=True) from error
        finally:
            if connection is not None:  # how it ends says nothing of the message
                with suppress(OSError, smtplib.SMTPException):
                    connection.quit()
                connection.close()

    def _connect(self) -> smtplib.SMTP:
        if self.encryption == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)

    def _prepare(self, connection: smtplib.SMTP) -> None:
        """Make a connection ready for a message. Raises SMTPException, OSError."""
        if self.encryption == "starttls":
            connection.starttls(context=ssl.create_default_context())
        connection.ehlo_or_helo_if_needed()
        if self.user:
            connection.login(self.user, Path(self.password_file).read_text().strip())

    def _hand_over(self, connection: smtplib.SMTP, message: EmailMessage) -> None:
        """Hand the message over. From its last line on an answer that does not come leaves open what became of it."""
        content = _DOTS.sub(b"..", message.as_bytes()).removesuffix(b"\r\n")
        code, said = connection.docmd("DATA")
        if code != 354:
            raise MailError(_said(code, said), again=code < 500)
        try:
            connection.send(content + b"\r\n.\r\n")
            code, said = connection.getreply()
        except (OSError, smtplib.SMTPException) as error:
            raise MailUnknown(f"the mail server did not answer when it had the message: {error}") from error
        if code != 250:
            raise MailError(_said(code, said), again=code < 500)


def _refused_for(answer: tuple[int, bytes], what: str) -> None:
    code, said = answer
    if code not in (250, 251):
        raise MailError(f"{what} was refused: {_said(code, said)}", again=code < 500)


def _said(code: int, said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return f"the mail server answered {code} {text}"[:300]
