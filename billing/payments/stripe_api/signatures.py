"""The signature of a webhook: checked over the raw body, with each of the secrets, before anything in it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from billing.payments.provider import EventFact, EventRefused
from billing.payments.stripe_api.credentials import StripeCredentials

TOLERANCE_S = 300
_MOST_TEXT = 255


class _Reference(msgspec.Struct):
    id: str = ""


class _Data(msgspec.Struct):
    object: _Reference


class _Event(msgspec.Struct):
    id: str
    object: str
    type: str
    created: int
    livemode: bool
    data: _Data
    account: str | None = None


def read_event(body: bytes, signature: str, credentials: StripeCredentials) -> EventFact:
    """The event of a webhook. Raises EventRefused; also for an event of test mode where ours is live, or of another
    account: such an event grants nothing."""
    _check_signature(body, signature, credentials.webhook_secrets)
    try:
        event = msgspec.json.decode(body, type=_Event)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EventRefused("the webhook is no event of Stripe's") from error
    if event.object != "event" or max(map(len, (event.id, event.type, event.data.object.id))) > _MOST_TEXT:
        raise EventRefused("the webhook is no snapshot event of Stripe's")
    if event.livemode != credentials.livemode:
        mode = "live" if credentials.livemode else "test"
        raise EventRefused(f"the event is not of {mode} mode, which the key is of")
    if event.account not in (None, "", credentials.account):
        raise EventRefused("the event is of another account")
    return EventFact(
        id=event.id,
        type=event.type,
        object=event.data.object.id,
        created=event.created,
        livemode=event.livemode,
        account=event.account or "",
    )


def _check_signature(body: bytes, signature: str, secrets: Sequence[str]) -> None:
    from stripe import SignatureVerificationError, WebhookSignature  # noqa: PLC0415  # 40 MB, for webhooks alone

    verify: Any = WebhookSignature.verify_header
    for secret in secrets if signature.isascii() else ():  # others are compared with an error
        try:
            verify(body.decode(), signature, secret, TOLERANCE_S)
        except (SignatureVerificationError, ValueError, IndexError):
            continue
        return
    raise EventRefused("the webhook is not signed with our secret, or too long ago")
