"""Payment intents, charges, refunds, and Checkout sessions."""

from __future__ import annotations

from fake_stripe.account import Account, Object, listed
from fake_stripe.customers import attach, keep_method
from fake_stripe.errors import StripeError
from fake_stripe.routes import route, updated

_MINIMUM = 50
_DECLINES = {
    "pm_card_declined": "generic_decline",
    "pm_card_insufficient": "insufficient_funds",
    "pm_card_stolen": "stolen_card",
}


def new_intent(account: Account, **values: object) -> Object:
    """A payment intent that nobody has confirmed."""
    start: Object = {"amount_received": 0, "metadata": {}, "last_payment_error": None, "latest_charge": None}
    return account.add("payment_intent", "pi", **{"status": "requires_payment_method", **start, **values})


@route("POST", "/v1/payment_intents", "PaymentIntentCreateParams")
def create_intent(account: Account, given: Object) -> Object:
    """A payment, which is made at once with `confirm`."""
    if given["amount"] < _MINIMUM:
        raise StripeError(400, "Amount must be at least 50 cents", code="amount_too_small", param="amount")
    confirm, off_session = given.pop("confirm", False), given.pop("off_session", False)
    if "customer" in given:
        account.find("customer", given["customer"])
    intent = new_intent(account, **given)
    account.emit("payment_intent.created", intent)
    return confirm_intent(account, intent, off_session=off_session is True) if confirm else intent


def confirm_intent(account: Account, intent: Object, *, off_session: bool = True) -> Object:
    """Try to take the money with the intent's method. Raises StripeError if the card says no."""
    method = account.find("payment_method", intent.get("payment_method") or "")
    behaviour = method["behaviour"]
    if behaviour == "pm_card_slow":
        intent["status"] = "processing"
        account.emit("payment_intent.processing", intent)
        return intent
    if behaviour == "pm_card_authenticate" and off_session:
        _fail(account, intent, "authentication_required", "authentication_required")
    if behaviour in _DECLINES:
        _fail(account, intent, "card_declined", _DECLINES[behaviour])
    return take_money(account, intent)


def _fail(account: Account, intent: Object, code: str, decline: str) -> None:
    error = {"type": "card_error", "code": code, "decline_code": decline, "message": "Your card was declined."}
    intent.update(status="requires_payment_method", last_payment_error=error)
    account.emit("payment_intent.payment_failed", intent)
    raise StripeError(402, "Your card was declined.", code=code, decline_code=decline, payment_intent=dict(intent))


def take_money(account: Account, intent: Object) -> Object:
    """The payment succeeds."""
    values = {"amount": intent["amount"], "currency": intent["currency"], "payment_intent": intent["id"]}
    charge = account.add("charge", "ch", status="succeeded", disputed=False, amount_refunded=0, **values)
    intent.update(status="succeeded", amount_received=intent["amount"], latest_charge=charge["id"])
    account.emit("charge.succeeded", charge)
    account.emit("payment_intent.succeeded", intent)
    account.on_money(account, intent)
    return intent


@route("GET", "/v1/payment_intents/{id}", "PaymentIntentRetrieveParams")
def read_intent(account: Account, given: Object, id: str) -> Object:
    """A payment."""
    return account.find("payment_intent", id)


@route("GET", "/v1/payment_intents", "PaymentIntentListParams")
def list_intents(account: Account, given: Object) -> Object:
    """Payments, of one customer or of all."""
    found = account.every("payment_intent", **({"customer": given["customer"]} if "customer" in given else {}))
    return listed(found, given, "/v1/payment_intents")


@route("POST", "/v1/payment_intents/{id}/cancel", "PaymentIntentCancelParams")
def cancel_intent(account: Account, given: Object, id: str) -> Object:
    """Give a payment up that has not succeeded."""
    intent = account.find("payment_intent", id)
    if intent["status"] in ("succeeded", "canceled", "processing"):
        text = f"You cannot cancel this PaymentIntent because it has a status of {intent['status']}."
        raise StripeError(400, text, code="payment_intent_unexpected_state")
    intent.update(status="canceled", cancellation_reason=given.get("cancellation_reason"))
    account.emit("payment_intent.canceled", intent)
    return intent


@route("POST", "/v1/refunds", "RefundCreateParams")
def create_refund(account: Account, given: Object) -> Object:
    """Pay a payment back, whole or in part."""
    intent = account.find("payment_intent", given.get("payment_intent", ""))
    if intent["status"] != "succeeded":
        raise StripeError(400, "This PaymentIntent does not have a successful charge to refund.")
    charge = account.find("charge", intent["latest_charge"])
    if charge["disputed"]:
        raise StripeError(400, "The charge has been charged back.", code="charge_disputed")
    left = charge["amount"] - charge["amount_refunded"]
    amount = given.get("amount", left)
    if not 0 < amount <= left:
        raise StripeError(400, "Refund amount is greater than unrefunded amount", code="charge_already_refunded")
    charge["amount_refunded"] += amount
    values = {"payment_intent": intent["id"], "charge": charge["id"], "currency": intent["currency"]}
    rest = {"reason": given.get("reason"), "metadata": given.get("metadata", {}), "status": "succeeded"}
    refund = account.add("refund", "re", amount=amount, **values, **rest)
    account.emit("refund.created", refund)
    account.emit("charge.refunded", charge)
    return refund


@route("GET", "/v1/refunds/{id}", "RefundRetrieveParams")
def read_refund(account: Account, given: Object, id: str) -> Object:
    """A refund."""
    return account.find("refund", id)


@route("GET", "/v1/refunds", "RefundListParams")
def list_refunds(account: Account, given: Object) -> Object:
    """Refunds, of one payment or of all."""
    values = {"payment_intent": given["payment_intent"]} if "payment_intent" in given else {}
    return listed(account.every("refund", **values), given, "/v1/refunds")


@route("POST", "/v1/checkout/sessions", "checkout.SessionCreateParams")
def create_session(account: Account, given: Object) -> Object:
    """A page on which a customer pays, or leaves a card."""
    expires, now = given.get("expires_at"), account.now()
    if expires is not None and not now + 1790 <= expires <= now + 86_400:
        raise StripeError(400, "expires_at must be 30 minutes to 24 hours from now", param="expires_at")
    amount, currency = 0, given.get("currency")
    for item in given.get("line_items", []):
        price = item.get("price_data")
        if price is None or not (price.get("product") or price.get("product_data")):
            raise StripeError(400, "One of product or product_data is required", param="line_items")
        amount += price["unit_amount"] * item.get("quantity", 1)
        currency = price["currency"]
    if given.get("mode") == "payment" and not amount:
        raise StripeError(400, "line_items is required in payment mode", param="line_items")
    if given.get("mode") == "setup" and currency is None:
        raise StripeError(400, "currency is required in setup mode", param="currency")
    start: Object = {"metadata": {}, "payment_intent": None, "setup_intent": None, "payment_status": "unpaid"}
    session = account.add("checkout.session", "cs", **{"status": "open", **start, **given})
    session.update(amount_total=amount, currency=currency, url=account.page_of("checkout", session["id"]))
    return session


@route("GET", "/v1/checkout/sessions/{id}", "checkout.SessionRetrieveParams")
def read_session(account: Account, given: Object, id: str) -> Object:
    """A Checkout session."""
    return account.find("checkout.session", id)


@route("GET", "/v1/checkout/sessions", "checkout.SessionListParams")
def list_sessions(account: Account, given: Object) -> Object:
    """Checkout sessions, of one customer or of all."""
    found = account.every("checkout.session", **({"customer": given["customer"]} if "customer" in given else {}))
    return listed(found, given, "/v1/checkout/sessions")


@route("POST", "/v1/checkout/sessions/{id}/expire", "checkout.SessionExpireParams")
def expire_session(account: Account, given: Object, id: str) -> Object:
    """End a session that nobody used."""
    session = account.find("checkout.session", id)
    if session["status"] != "open":
        raise StripeError(400, "Only Checkout Sessions with a status of open can be expired.")
    session["status"] = "expired"
    account.emit("checkout.session.expired", session)
    return session


@route("GET", "/v1/setup_intents/{id}", "SetupIntentRetrieveParams")
def read_setup(account: Account, given: Object, id: str) -> Object:
    """A card that was left."""
    return account.find("setup_intent", id)


def complete_checkout(account: Account, session_id: str, card: str = "pm_card_visa") -> Object:
    """The customer fills the page in, with one of the CARDS. Raises StripeError if the card says no."""
    session = account.find("checkout.session", session_id)
    if session["status"] != "open":
        raise StripeError(400, "This Checkout Session is no longer open.")
    method = attach(account, session["customer"], card)
    if session["mode"] == "setup":
        values = {"customer": session["customer"], "payment_method": method["id"], "metadata": session["metadata"]}
        setup = account.add("setup_intent", "seti", status="succeeded", **values)
        session.update(status="complete", setup_intent=setup["id"])
        account.emit("setup_intent.succeeded", setup)
    else:
        _pay_on_page(account, session, method)
    account.emit("checkout.session.completed", session)
    return session


def _pay_on_page(account: Account, session: Object, method: Object) -> None:
    data = session.get("payment_intent_data", {})
    if session["payment_intent"] is None:
        values = {"amount": session["amount_total"], "currency": session["currency"], "customer": session["customer"]}
        values |= {"metadata": data.get("metadata", {}), "setup_future_usage": data.get("setup_future_usage")}
        session["payment_intent"] = new_intent(account, **values)["id"]
    intent = account.find("payment_intent", session["payment_intent"])
    updated(account, intent, {"payment_method": method["id"]})
    confirm_intent(account, intent, off_session=False)
    session["status"] = "complete"
    session["payment_status"] = "paid" if intent["status"] == "succeeded" else "unpaid"
    if data.get("setup_future_usage") == "off_session":
        keep_method(account, session["customer"], method)
