"""The credentials of a Stripe account: a file of mode 0600, which `--stripe-file` names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from storage.reported_error import ReportedError

API_VERSION = "2026-10-28.endive"
"""The version of the API that we ask for, whatever the account's default is. It changes with the SDK, by a commit."""
_API = "https://api.stripe.com"
_KEY = re.compile(r"(rk|sk)_(test|live)_[A-Za-z0-9_]+", re.ASCII)
_SECRET = re.compile(r"whsec_[A-Za-z0-9_+/=]{8,}", re.ASCII)
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class CredentialsError(ReportedError):
    """The file with the credentials cannot be read, is open to others, or says something that cannot be."""


class StripeCredentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says.

    - `key`: a restricted key (rk_…). A secret key (sk_…) may do everything, and is refused without `any_key`.
    - `account`: whose events are taken (acct_…). `webhook_secrets`: the newest first; two while one is rotated.
    - `return_url`: where Stripe's pages lead back to: the console.
    - `api`: another base address, on the loopback: for tests and the demonstration.
    """

    version: Annotated[int, Meta(ge=1, le=1)] = 1
    account: str
    key: str
    webhook_secrets: Annotated[list[str], Meta(min_length=1, max_length=2)]
    return_url: str
    any_key: bool = False
    api: str = _API

    def __post_init__(self) -> None:
        match = _KEY.fullmatch(self.key)
        if match is None:
            raise ValueError("key: it is no key of Stripe's, such as rk_live_…")
        if match[1] == "sk" and not self.any_key:
            raise ValueError("key: a secret key may do everything; make a restricted one (rk_…), or say any_key")
        if not self.account.startswith("acct_"):
            raise ValueError("account: it does not begin with acct_")
        for secret in self.webhook_secrets:
            if _SECRET.fullmatch(secret) is None:
                raise ValueError("webhook_secrets: a secret begins with whsec_")
        back, api = urlsplit(self.return_url), urlsplit(self.api)
        if back.scheme != "https" and back.hostname not in _LOOPBACK:
            raise ValueError("return_url: it is no https address")
        if self.api != _API and api.hostname not in _LOOPBACK:
            raise ValueError(f"api: only {_API}, or an address of this machine")

    @property
    def livemode(self) -> bool:
        """Whether the key moves real money."""
        return "_live_" in self.key

    @property
    def stand_in(self) -> bool:
        """Whether `api` is an address of this machine: not Stripe answers there."""
        return self.api != _API

    @property
    def fingerprint(self) -> str:
        """The key as it may be shown."""
        return f"{self.key[:8]}…{self.key[-4:]}"

    def __repr__(self) -> str:
        return f"StripeCredentials({self.account}, {self.fingerprint})"


def load_credentials(path: Path) -> StripeCredentials:
    """Read the file. Raises CredentialsError naming it, never what is in it."""
    try:
        mode = path.stat().st_mode
        credentials = msgspec.json.decode(path.read_bytes(), type=StripeCredentials)
    except OSError as error:
        raise CredentialsError(f"stripe_file: cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CredentialsError(f"stripe_file: {path}: {error}") from error
    if mode & 0o077:
        raise CredentialsError(f"stripe_file: {path} is open to others (mode {mode & 0o777:04o}); chmod 600 {path}")
    return credentials
