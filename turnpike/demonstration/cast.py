"""Who is in the demonstration: the seller, the customers, their projects and people, the models and their prices.

All names are invented, and all addresses are of domains that nobody can have (RFC 2606).
"""

from __future__ import annotations

from msgspec import Struct

from billing.invoices.parties.parties import DEMONSTRATION, Buyer, Seller
from tenancy.rights.permissions import Role

SELLER = Seller(
    id=DEMONSTRATION,
    name="Demonstration",
    address=["This is no invoice: nothing was sold"],
    postal_code="10115",
    city="Berlin",
    country="DE",
    vat_id="DE136695976",
    email="billing@turnpike.example",
    payment=["Nothing is to be paid"],
    currency="USD",
    series="DEMO",
    credit_series="DEMO-CN",
    rates={"DE": 1900},
)
"""Its series say on every document what it is."""

LARGE, SMALL, OWN = "meridian-70b", "meridian-8b", "stdlib-qa"
"""The models. `OWN` is the one that `turnpike serve` serves, so that a visitor can go on asking it."""


class Prices(Struct, frozen=True):
    """A model's prices per million tokens, in both currencies; `batch` is half, `interactive` is 1.5 times as much."""

    uncached: int
    output: int
    euro_uncached: int
    euro_output: int


PRICES = {
    LARGE: Prices(3_000_000, 15_000_000, 2_800_000, 14_000_000),
    SMALL: Prices(400_000, 1_600_000, 360_000, 1_440_000),
}
"""In millionths."""


class Person(Struct, frozen=True):
    """Somebody who signs in. `project` is the name of the one where the role is held; empty: the whole tenant."""

    email: str
    name: str
    role: Role
    project: str = ""


class Customer(Struct, frozen=True):
    """A tenant. Money is in whole units of its currency. `credit_line` 0: it pays in advance."""

    name: str
    currency: str
    buyer: Buyer
    projects: tuple[str, ...]
    people: tuple[Person, ...]
    credit_line: int = 0
    paid_in: int = 0


OPERATORS = (
    Person("owner@localhost", "Owner", "owner"),
    Person("ann.keller@turnpike.example", "Ann Keller", "owner"),
    Person("ben.ortiz@turnpike.example", "Ben Ortiz", "finance"),
)
"""Who has a role at the platform. The first is who `turnpike serve` signs in by a link."""

NORDLICHT = Customer(
    name="nordlicht",
    currency="EUR",
    buyer=Buyer(
        seller=SELLER.id,
        name="Nordlicht Verlag GmbH",
        address=["Hafenstraße 7"],
        postal_code="20457",
        city="Hamburg",
        country="DE",
        vat_id="DE129273398",
        email="rechnungen@nordlicht.example",
        purchase_order="PO-2026-118",
        payment_days=14,
        detail="project",
    ),
    projects=("editorial", "archive-search", "nightly-summaries", "prototype"),
    people=(
        Person("clara.winter@nordlicht.example", "Clara Winter", "owner"),
        Person("jonas.peters@nordlicht.example", "Jonas Peters", "admin"),
        Person("mia.brandt@nordlicht.example", "Mia Brandt", "finance"),
        Person("tom.vogel@nordlicht.example", "Tom Vogel", "developer", "editorial"),
        Person("lea.roth@nordlicht.example", "Lea Roth", "viewer"),
    ),
    credit_line=2_000,
)
QUILLSTONE = Customer(
    name="quillstone",
    currency="USD",
    buyer=Buyer(
        seller=SELLER.id,
        name="Quillstone Inc.",
        address=["1420 NW Lovejoy Street"],
        postal_code="97209",
        city="Portland, OR",
        country="US",
        email="ap@quillstone.example",
        payment_days=30,
    ),
    projects=("support-agent", "code-review"),
    people=(
        Person("grace.lin@quillstone.example", "Grace Lin", "owner"),
        Person("omar.reyes@quillstone.example", "Omar Reyes", "finance"),
        Person("ida.novak@quillstone.example", "Ida Novak", "developer", "code-review"),
    ),
    paid_in=400,
)
TIDEWATER = Customer(
    name="tidewater",
    currency="USD",
    buyer=Buyer(
        seller=SELLER.id,
        name="Tidewater Software Ltd.",
        address=["18 Barrington Street"],
        postal_code="B3J 1Z2",
        city="Halifax",
        country="CA",
        email="accounts@tidewater.example",
        payment_days=14,
    ),
    projects=("translations",),
    people=(Person("paula.reid@tidewater.example", "Paula Reid", "owner"),),
    credit_line=500,
)
"""Its invoices are pushed to the payment provider, and its card is charged."""
VISITOR = Customer(
    name="demo",
    currency="USD",
    buyer=Buyer(
        seller=SELLER.id,
        name="A visitor of the demonstration",
        address=["Anywhere"],
        city="Nowhere",
        country="DE",
        payment_days=30,
    ),
    projects=("default",),
    people=(),
    paid_in=100,
)
"""The tenant whose key `turnpike serve` shows."""
CUSTOMERS = (NORDLICHT, QUILLSTONE, TIDEWATER, VISITOR)
