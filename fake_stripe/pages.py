"""Pages for people: Checkout, the portal, an invoice. Each says that it is a fake, and offers cards by what they do."""

from __future__ import annotations

from html import escape
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from fake_stripe.account import Account
from fake_stripe.customers import CARDS, attach, keep_method
from fake_stripe.errors import StripeError
from fake_stripe.invoices import pay_on_page
from fake_stripe.payments import complete_checkout

KINDS = ("checkout", "billing", "invoice")
_WORDS = {
    "pm_card_visa": "succeeds",
    "pm_card_authenticate": "succeeds here; later charges ask for its owner",
    "pm_card_declined": "is declined",
    "pm_card_insufficient": "is declined: insufficient funds",
    "pm_card_stolen": "is declined: reported as stolen",
    "pm_card_slow": "is processing, and never ends",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:3rem auto;padding:0 1rem}"
    "body{color:#222;background:#fff}"
    ".fake{border:2px solid #b45309;border-radius:6px;padding:.5rem .75rem;color:#7c2d12}"
    "button{font:inherit;padding:.5rem 1rem}label{display:block;margin:.4rem 0}p.error{color:#b91c1c}"
)


class Page(NamedTuple):
    """A status and HTML, or where to go."""

    status: int
    html: str
    location: str = ""


def answer_page(account: Account, method: str, target: str, body: str) -> Page | None:
    """The page at this target; None if it is none of them."""
    _, kind, identity, *rest = [*urlsplit(target).path.split("/"), "", ""]
    if kind not in KINDS or any(rest) or method not in ("GET", "POST"):
        return None
    card = parse_qs(body).get("card", [""])[0]
    show = {"checkout": _checkout, "billing": _portal, "invoice": _invoice}[kind]
    try:
        return show(account, identity, card if method == "POST" else "")
    except StripeError as error:
        said = str(error.body["error"]["message"])
        if method == "POST" and error.status == 402:
            return _declined(said)
        return _page(error.status, "Not here", f"<p class=error>{escape(said)}</p>")


def _checkout(account: Account, identity: str, card: str) -> Page:
    session = account.find("checkout.session", identity)
    if session["status"] != "open":
        return _page(200, "Checkout", f"<p>This page was used already: it is {escape(session['status'])}.</p>")
    if card:
        complete_checkout(account, identity, card)
        return Page(303, "", session["success_url"])
    pays = session["mode"] == "payment"
    what = f"Pay {_amount(session['amount_total'], session['currency'])}" if pays else "Leave a card"
    back = f'<p><a href="{escape(session["cancel_url"])}">Back without it</a></p>'
    return _page(200, what, _cards(what) + back)


def _portal(account: Account, identity: str, card: str) -> Page:
    session = account.find("billing_portal.session", identity)
    if card:
        keep_method(account, session["customer"], attach(account, session["customer"], card))
        return Page(303, "", session["return_url"])
    back = f'<p><a href="{escape(session["return_url"])}">Back without it</a></p>'
    return _page(200, "Your card", _cards("Keep this card") + back)


def _invoice(account: Account, identity: str, card: str) -> Page:
    invoice = account.find("invoice", identity)
    sums = f"<p>{escape(str(invoice['number']))}: {_amount(invoice['total'], invoice['currency'])}</p>"
    if card and invoice["status"] == "open":
        if card not in ("pm_card_visa", "pm_card_authenticate"):
            return _declined("Your card was declined.")
        pay_on_page(account, identity)
    if invoice["status"] != "open":
        return _page(200, "Invoice", f"{sums}<p>It is {escape(invoice['status'])}.</p>")
    return _page(200, "Invoice", sums + _cards(f"Pay {_amount(invoice['amount_due'], invoice['currency'])}"))


def _cards(action: str) -> str:
    """A form that offers the cards."""
    choices = "".join(
        f'<label><input type=radio name=card value="{name}"{" checked" if place == 0 else ""}> '
        f"{brand} … {last4} – {_WORDS[name]}</label>"
        for place, (name, (brand, last4)) in enumerate(CARDS.items())
    )
    fields = f"<fieldset><legend>A card</legend>{choices}</fieldset>"
    return f"<form method=post>{fields}<p><button>{action}</button></p></form>"


def _declined(said: str) -> Page:
    return _page(402, "Declined", f'<p class=error>{escape(said)}</p><p><a href="">Another card</a></p>')


def _amount(minor: int, currency: str) -> str:
    return f"{minor // 100}.{minor % 100:02} {escape(currency.upper())}"


def _page(status: int, title: str, content: str) -> Page:
    notice = "This is a fake Stripe on this machine, for the demonstration. No card is charged, and no money moves."
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title} – fake Stripe</title>"
    body = f"<p class=fake>{notice}</p><h1>{title}</h1>{content}"
    return Page(
        status, f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>"
    )
