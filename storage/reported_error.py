"""The base of errors whose message is for the user: a command prints it as one line, without a traceback."""

from __future__ import annotations

from typing import ClassVar


class ReportedError(Exception):
    """The message says what is wrong and what to do. `temporary`: the same may work later, with nothing changed."""

    temporary: ClassVar[bool] = False
