"""Time-based one-time passwords (RFC 6238, SHA-1, 6 digits, 30 s) and recovery codes, as pure functions."""

from __future__ import annotations

import base64
import hmac
import secrets
from urllib.parse import quote

from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP

KEY_BYTES, DIGITS, STEP_S = 20, 6, 30
AROUND = 1
"""How many steps before and after the present one are accepted: clocks differ, and people type slowly."""
RECOVERY_CODES = 10
_RECOVERY_BYTES, _GROUP = 10, 4


def new_key() -> bytes:
    """A random key for a new authenticator."""
    return secrets.token_bytes(KEY_BYTES)


def key_text(key: bytes) -> str:
    """The key as people type it into an authenticator: base32."""
    return base64.b32encode(key).decode()


def provisioning_uri(key: bytes, email: str, issuer: str = "Turnpike") -> str:
    """The `otpauth` URI, which authenticators read as a QR code."""
    label = f"{quote(issuer)}:{quote(email)}"
    query = f"secret={key_text(key)}&issuer={quote(issuer)}&algorithm=SHA1&digits={DIGITS}&period={STEP_S}"
    return f"otpauth://totp/{label}?{query}"


def code_at(key: bytes, step: int) -> str:
    """The code of a time step."""
    return TOTP(key, DIGITS, SHA1(), STEP_S).generate(step * STEP_S).decode()  # noqa: S303  # what authenticators know


def matching_step(key: bytes, code: str, seconds: int, after: int) -> int | None:
    """The time step later than `after` whose code this is, at `seconds` since the Unix epoch; None if there is none."""
    given = code.replace(" ", "").encode(errors="replace")
    now = seconds // STEP_S
    found = None
    for step in range(now - AROUND, now + AROUND + 1):
        if hmac.compare_digest(code_at(key, step).encode(), given) and step > after:
            found = step
    return found


def new_recovery_codes() -> list[str]:
    """Codes for who has lost the authenticator, each of 80 random bits."""
    return [_grouped(base64.b32encode(secrets.token_bytes(_RECOVERY_BYTES)).decode()) for _ in range(RECOVERY_CODES)]


def plain_recovery_code(code: str) -> str:
    """A recovery code as it is compared: whatever case and groups it was typed in."""
    return "".join(code.split()).replace("-", "").lower()[:64]


def _grouped(text: str) -> str:
    return "-".join(text[at : at + _GROUP] for at in range(0, len(text), _GROUP)).lower()
