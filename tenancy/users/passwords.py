"""Passwords: argon2id with the library's defaults, at most two at once, each in a thread.

One hash takes 64 MiB and some 50 ms of four threads, of less importance to the system than those that answer requests.
Of those who wait, there are at most MOST_WAITING, for at most MOST_WAIT_S. This is no waiting for the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from storage.database.circuit_breaker import beside_the_database
from tenancy.users.errors import FieldRefused, PasswordsBusy

LEAST_LENGTH, MOST_LENGTH = 12, 256
AT_ONCE = 2
MOST_WAITING = 50
MOST_WAIT_S = 10.0
_BUSY_S = 5.0
_NICER, _NICEST = 10, 19
"""How much nicer the threads are than the process, as nice(2) counts."""
_FEWEST_DIFFERENT = 5
"""Different characters that a password must have."""
Result = TypeVar("Result")


def check_password(password: str, email: str = "", *, field: str = "password") -> None:
    """Raise FieldRefused for a password that is too short, too long, or easily guessed from the e-mail address."""
    if not LEAST_LENGTH <= len(password) <= MOST_LENGTH:
        raise FieldRefused(field, f"it must have {LEAST_LENGTH} to {MOST_LENGTH} characters")
    if len(set(password)) < _FEWEST_DIFFERENT:
        raise FieldRefused(field, f"it must have {_FEWEST_DIFFERENT} different characters")
    name = email.partition("@")[0].casefold()
    if email and (password.casefold() == email.casefold() or password.casefold().strip("0123456789") == name):
        raise FieldRefused(field, "it must not be the e-mail address")


class Passwords:
    """Hashes and verifies. `verifications` counts the hashes computed to check a password, for tests of their number.

    Call `close` at the end.
    """

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._threads = ThreadPoolExecutor(AT_ONCE, "passwords", initializer=_lower_priority)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._dummy: str | None = None
        self.verifications = 0

    async def hash(self, password: str) -> bytes:
        """What the database keeps. Raises PasswordsBusy."""
        text = _normal(password)
        return (await self._run(lambda: self._hasher.hash(text))).encode()

    async def verify(self, kept: bytes | None, password: str) -> bool:
        """Whether this is the password. Without one that is kept, takes as long and is false. Raises PasswordsBusy."""
        text = _normal(password[: MOST_LENGTH + 1])
        return await self._run(lambda: self._verify(kept, text))

    def check_room(self) -> None:
        """Raise PasswordsBusy if too many wait already."""
        if self._waiting >= MOST_WAITING:
            raise PasswordsBusy(_BUSY_S)

    def is_outdated(self, kept: bytes) -> bool:
        """Whether the parameters of a hash are no longer those of today."""
        return self._hasher.check_needs_rehash(kept.decode())

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verify(self, kept: bytes | None, text: str) -> bool:
        self.verifications += 1
        dummy = self._dummy_hash()  # in every case: the first call takes as long for a known user
        try:
            self._hasher.verify(dummy if kept is None else kept.decode(), text)
        except (VerificationError, InvalidHashError):
            return False
        return kept is not None

    def _dummy_hash(self) -> str:
        if self._dummy is None:
            self._dummy = self._hasher.hash("nobody's password")
        return self._dummy

    async def _run(self, work: Callable[[], Result]) -> Result:
        self.check_room()
        self._waiting += 1
        try:
            with beside_the_database():
                return await self._in_turn(work)
        finally:
            self._waiting -= 1

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        try:
            await asyncio.wait_for(self._turns.acquire(), MOST_WAIT_S)
        except TimeoutError as error:
            raise PasswordsBusy(_BUSY_S) from error
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._turns.release()


def _lower_priority() -> None:
    """Let requests go before this thread, and before those that argon2 starts from it, which inherit that."""
    with contextlib.suppress(OSError, AttributeError):  # only on Linux a priority is a thread's
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(_NICEST, os.getpriority(os.PRIO_PROCESS, thread) + _NICER))


def _normal(password: str) -> str:
    """The same password from keyboards that compose characters differently."""
    return unicodedata.normalize("NFKC", password)
