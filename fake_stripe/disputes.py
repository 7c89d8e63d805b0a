"""Disputes, the account itself, and events as they are listed."""

from __future__ import annotations

from fake_stripe.account import Account, Object, listed
from fake_stripe.routes import route


def open_dispute(account: Account, intent_id: str, amount: int | None = None, *, withdraw: bool = True) -> Object:
    """A cardholder objects to a payment. With `withdraw`, the money is taken back at once."""
    intent = account.find("payment_intent", intent_id)
    charge = account.find("charge", intent["latest_charge"])
    charge["disputed"] = True
    values = {"payment_intent": intent_id, "charge": charge["id"], "currency": intent["currency"]}
    amount = charge["amount"] - charge["amount_refunded"] if amount is None else amount
    status = "needs_response" if withdraw else "warning_needs_response"
    dispute = account.add("dispute", "du", amount=amount, reason="fraudulent", status=status, **values)
    dispute["balance_transactions"] = []
    account.emit("charge.dispute.created", dispute)
    if withdraw:
        dispute["balance_transactions"] = [{"amount": -amount, "currency": intent["currency"]}]
        account.emit("charge.dispute.funds_withdrawn", dispute)
    return dispute


def close_dispute(account: Account, dispute_id: str, *, won: bool) -> Object:
    """The bank decides."""
    dispute = account.find("dispute", dispute_id)
    withdrawn = bool(dispute["balance_transactions"])
    dispute["status"] = ("won" if won else "lost") if withdrawn else "warning_closed"
    if won and withdrawn:
        back = {"amount": dispute["amount"], "currency": dispute["currency"]}
        dispute["balance_transactions"] = [*dispute["balance_transactions"], back]
        account.emit("charge.dispute.funds_reinstated", dispute)
    account.emit("charge.dispute.closed", dispute)
    return dispute


@route("GET", "/v1/disputes/{id}", "DisputeRetrieveParams")
def read_dispute(account: Account, given: Object, id: str) -> Object:
    """A dispute."""
    return account.find("dispute", id)


@route("GET", "/v1/disputes", "DisputeListParams")
def list_disputes(account: Account, given: Object) -> Object:
    """Disputes, the newest first."""
    return listed(account.every("dispute"), given, "/v1/disputes")


@route("GET", "/v1/account", "AccountRetrieveCurrentParams")
def read_account(account: Account, given: Object) -> Object:
    """Whose key it is."""
    return {"id": account.id, "object": "account", "charges_enabled": True}


@route("GET", "/v1/events", "EventListParams")
def list_events(account: Account, given: Object) -> Object:
    """Events of the last 30 days, the newest first."""
    found = [one for one in reversed(account.events) if one["created"] > account.now() - 30 * 86_400]
    return listed(found, given, "/v1/events")
