"""Why something about users is refused."""

from __future__ import annotations

from storage.reported_error import ReportedError


class UserError(ReportedError):
    """Base of all of them. The message is for whoever asked, and says nothing about others."""


class SignInRefused(UserError):
    """E-mail, password, code or link is wrong, or the user is disabled; nobody is told which."""

    def __init__(self, message: str = "The e-mail address or the password is wrong.") -> None:
        super().__init__(message)


class TooManyAttempts(UserError):
    """Somebody may be guessing. `retry_after`: seconds until another attempt may be made."""

    temporary = True

    def __init__(self, retry_after: float) -> None:
        super().__init__("Too many attempts to sign in; try again later.")
        self.retry_after = retry_after


class PasswordsBusy(UserError):
    """So many passwords wait to be checked that another one would wait for long. `retry_after`: seconds."""

    temporary = True

    def __init__(self, retry_after: float) -> None:
        super().__init__("Many people are signing in at this moment; try again shortly.")
        self.retry_after = retry_after


class LinkRefused(UserError):
    """A one-time link is unknown, used, withdrawn or expired; nobody is told which."""

    def __init__(self) -> None:
        super().__init__("The link is not valid: it was used already, is too old, or was replaced by another.")


class FieldRefused(UserError, ValueError):
    """A value is not acceptable; `field` names it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NoSuchUser(UserError, LookupError):
    """There is no such user or membership, or the asker may not know of it."""


class EmailTaken(UserError):
    """Another user has this e-mail address."""


class LastOwner(UserError):
    """The last owner of the platform or of a tenant cannot leave, be demoted or be disabled."""


class NotPermitted(UserError):
    """The role of who asks does not allow this."""


class WrongState(UserError):
    """What was asked for is not possible now, such as a second second factor."""
