"""Customers, their payment methods and tax ids, setup intents, and portal sessions."""

from __future__ import annotations

from typing import Any

from fake_stripe.account import Account, Object, listed
from fake_stripe.errors import StripeError
from fake_stripe.routes import route, updated

CARDS = {
    "pm_card_visa": ("visa", "4242"),
    "pm_card_authenticate": ("visa", "3184"),
    "pm_card_declined": ("visa", "0002"),
    "pm_card_insufficient": ("visa", "9995"),
    "pm_card_stolen": ("visa", "9979"),
    "pm_card_slow": ("visa", "0077"),
}
"""Cards by what becomes of a payment with them: it succeeds, needs the customer, is declined, is processing."""


@route("POST", "/v1/customers", "CustomerCreateParams")
def create_customer(account: Account, given: Object) -> Object:
    """A new customer."""
    tax_ids = given.pop("tax_id_data", [])
    start: Object = {"name": None, "email": None, "address": None, "metadata": {}, "tax_exempt": "none", "balance": 0}
    customer = account.add("customer", "cus", **{**start, **given})
    customer.setdefault("invoice_settings", {"default_payment_method": None})
    for tax_id in tax_ids:
        account.add("tax_id", "txi", customer=customer["id"], **tax_id)
    account.emit("customer.created", customer)
    return customer


@route("POST", "/v1/customers/{id}", "CustomerUpdateParams")
def update_customer(account: Account, given: Object, id: str) -> Object:
    """Change a customer."""
    customer = updated(account, account.find("customer", id), given)
    account.emit("customer.updated", customer)
    return customer


@route("GET", "/v1/customers/{id}", "CustomerRetrieveParams")
def read_customer(account: Account, given: Object, id: str) -> Object:
    """A customer."""
    return account.find("customer", id)


@route("GET", "/v1/customers", "CustomerListParams")
def list_customers(account: Account, given: Object) -> Object:
    """Customers, the newest first."""
    found = account.every("customer", **({"email": given["email"]} if "email" in given else {}))
    return listed(found, given, "/v1/customers")


@route("GET", "/v1/customers/{id}/tax_ids", "CustomerTaxIdListParams")
def list_tax_ids(account: Account, given: Object, id: str) -> Object:
    """A customer's tax ids."""
    return listed(account.every("tax_id", customer=id), given, f"/v1/customers/{id}/tax_ids")


@route("POST", "/v1/customers/{id}/tax_ids", "CustomerTaxIdCreateParams")
def create_tax_id(account: Account, given: Object, id: str) -> Object:
    """Add a tax id to a customer."""
    account.find("customer", id)
    return account.add("tax_id", "txi", customer=id, **given)


@route("GET", "/v1/payment_methods/{id}", "PaymentMethodRetrieveParams")
def read_method(account: Account, given: Object, id: str) -> Object:
    """A payment method."""
    return account.find("payment_method", id)


@route("POST", "/v1/billing_portal/sessions", "billing_portal.SessionCreateParams")
def create_portal(account: Account, given: Object) -> Object:
    """A link to the page on which a customer changes card and address."""
    account.find("customer", given.get("customer", ""))
    made = account.add("billing_portal.session", "bps", **given)
    made["url"] = account.page_of("billing", made["id"])
    return made


def attach(account: Account, customer_id: str, card: str) -> Object:
    """A payment method of a customer with one of the CARDS."""
    if card not in CARDS:
        raise StripeError(404, f"No such payment_method: '{card}'", code="resource_missing")
    brand, last4 = CARDS[card]
    details: dict[str, Any] = {"brand": brand, "last4": last4, "exp_month": 12, "exp_year": 2031}
    return account.add("payment_method", "pm", type="card", card=details, customer=customer_id, behaviour=card)


def keep_method(account: Account, customer_id: str, method: Object) -> None:
    """Let a payment method be the customer's default."""
    customer = account.find("customer", customer_id)
    customer["invoice_settings"] = {"default_payment_method": method["id"]}
    account.emit("customer.updated", customer)
