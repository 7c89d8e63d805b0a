"""The file with the credentials: what it may say, and that nothing of the key is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from billing.payments.provider import ProviderRefused
from billing.payments.stripe_api.credentials import CredentialsError, load_credentials
from billing.payments.stripe_api.facts import from_stripe, to_stripe

KEY = "rk_live_5up3rs3cret"
GOOD: dict[str, Any] = {
    "account": "acct_1",
    "key": KEY,
    "webhook_secrets": ["whsec_12345678"],
    "return_url": "https://console.example/",
}


def _file(folder: Path, mode: int = 0o600, **changes: Any) -> Path:
    path = folder / "stripe.json"
    path.write_bytes(msgspec.json.encode(GOOD | changes))
    path.chmod(mode)
    return path


def test_a_restricted_key_is_taken_and_shown_by_its_ends(tmp_path: Path) -> None:
    credentials = load_credentials(_file(tmp_path))
    assert credentials.livemode
    assert (credentials.fingerprint, KEY in repr(credentials)) == ("rk_live_…cret", False)
    assert not load_credentials(_file(tmp_path, key="sk_test_123456", any_key=True)).livemode


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"key": "sk_live_5up3rs3cret"}, "restricted"),
        ({"key": "pk_live_123456"}, "no key"),
        ({"account": "123"}, "account"),
        ({"webhook_secrets": []}, "webhook_secrets"),
        ({"webhook_secrets": ["", ""]}, "webhook_secrets"),
        ({"webhook_secrets": ["whsec_12345678"] * 3}, "webhook_secrets"),
        ({"return_url": "http://console.example"}, "return_url"),
        ({"api": "https://api.evil.example"}, "api"),
        ({"more": 1}, "more"),
    ],
)
def test_what_cannot_be_is_refused_without_showing_the_key(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CredentialsError, match=field) as refused:
        load_credentials(_file(tmp_path, **changes))
    assert "5up3rs3cret" not in str(refused.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="chmod 600"):
        load_credentials(_file(tmp_path, 0o644))
    with pytest.raises(CredentialsError, match="cannot read"):
        load_credentials(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("amount", "currency", "theirs"),
    [(1234, "USD", 1234), (500, "JPY", 500), (7, "ISK", 700), (1230, "KWD", 1230), (500, "MGA", 5)],
)
def test_amounts_are_counted_as_stripe_counts(amount: int, currency: str, theirs: int) -> None:
    assert to_stripe(amount, currency) == theirs
    assert from_stripe(theirs, currency) == amount


@pytest.mark.parametrize(("amount", "currency"), [(1235, "KWD"), (550, "MGA"), (1, "CLF")])
def test_amounts_that_stripe_has_not_are_refused(amount: int, currency: str) -> None:
    with pytest.raises(ProviderRefused):
        to_stripe(amount, currency)
