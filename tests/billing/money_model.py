"""The model that the money machine is compared with: one tenant's money as a few numbers, so simple that it is plainly
right. It knows nothing of databases, batches or crashes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

import msgspec

from billing.holds.records import Hold

Window = tuple[str, int]
"""A budget, and the first instant of one of its windows."""


class Request(msgspec.Struct):
    """What is known of one request. Its hold's state is open, settled, released or expired; `drawn` if it was taken
    from what is set aside."""

    hold: Hold
    windows: list[Window]
    """The budgets' windows that it was admitted under."""
    state: str = "open"
    cost: int | None = None
    """Of its usage and of what was corrected of it; None without usage."""
    booked: str = ""
    """The billing period of its event."""
    tokens: int = 0
    """What its usage and the corrections of it come to."""
    granted: int = 0
    """How much of its hold, while it is open, is of the pots for its model."""

    late: bool = False
    """Whether usage came after the hold had ended."""


class Aside(msgspec.Struct):
    """Money that is set aside for requests to come: what is left of it, until it is released or expired."""

    hold: Hold
    left: int
    state: str = "open"


class Pot(msgspec.Struct):
    """Money that was put in at once, and what became of it."""

    id: UUID
    kind: str
    priority: int
    expires_at: int | None
    left: int
    used: int = 0
    model: str | None = None
    """The one model that it is for, if it is; then it never expires."""
    unit: int = 1
    """What is paid back of it is a multiple of this."""

    def expired(self, at: int) -> bool:
        return self.expires_at is not None and self.expires_at <= at

    @property
    def order(self) -> tuple[bool, int, int, int]:
        return self.model is None, self.priority, 2**63 if self.expires_at is None else self.expires_at, self.id.int


class Money:
    """What a tenant has: pots, what is owed beyond them, and how much may be.

    The pots for a model are one heap: holds for it count on what is in there, no matter in which pot.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.pots: list[Pot] = []
        self.owed = 0
        self.line = 0
        self.requests: dict[UUID, Request] = {}
        self.asides: dict[UUID, Aside] = {}
        self.paid: dict[str, Counter[object]] = defaultdict(Counter)
        """What each pot paid for a period's usage: by the pot's id, by the model for the heap of its pots, by None for
        what was owed."""

    def put_in(self, pot: Pot) -> None:
        """What was paid goes to what is owed first."""
        if pot.kind == "paid":
            pot.used = min(pot.left, self.owed)
            pot.left -= pot.used
            self.owed -= pot.used
        self.pots = sorted([*self.pots, pot], key=lambda one: one.order)

    def pay(self, model: str, cost: int, period: str, admitted_at: int) -> None:
        """Use the pots in their order, those for the model as far as open holds do not count on them, none that had
        expired at the admission; what they do not cover is owed."""
        paid = self.paid[period]
        for pot in self.pots:
            if pot.model not in (None, model) or pot.expired(admitted_at):
                continue
            part = min(cost, pot.left if pot.model is None else self.free(model))
            part = min(part, pot.left)
            pot.left -= part
            pot.used += part
            paid[pot.model or pot.id] += part
            cost -= part
        self.owed += cost
        paid[None] += cost

    def give_back(self, model: str, cost: int, period: str) -> None:
        """To those who paid for the period, the other way round, the pots for the model first. Money pays what is owed
        first; what debts were paid from stands for them."""
        paid = self.paid[period]
        heap = min(cost, paid[model])
        paid[model] -= heap
        cost -= heap
        for pot in reversed([pot for pot in self.pots if pot.model == model]):
            heap -= self._back(pot, heap)
        bought = [pot for pot in reversed(self.pots) if pot.kind == "paid"]
        room = min(cost, paid[None] + sum(paid[pot.id] for pot in bought))
        cost -= room
        money, room = room, room - min(room, max(0, paid[None]))
        own = {}
        for pot in bought:
            own[pot.id] = min(room, max(0, paid[pot.id]))
            room -= own[pot.id]
        part = min(money, self.owed)
        self.owed -= part
        paid[None] -= part
        money -= part
        for most in (own, {pot.id: 2**90 for pot in bought}):
            for pot in bought:
                part = self._back(pot, min(money, most[pot.id]))
                paid[pot.id] -= part
                money -= part
        for pot in reversed([pot for pot in self.pots if pot.kind == "promo" and pot.model is None]):
            part = self._back(pot, min(cost, paid[pot.id]))
            paid[pot.id] -= part
            cost -= part
        assert heap == money == cost == 0

    def _back(self, pot: Pot, most: int) -> int:
        part = min(most, pot.used)
        pot.used -= part
        pot.left += part
        return part

    def lose(self, pot: Pot, pico: int) -> None:
        """Some of a pot was paid back or has expired."""
        pot.left -= pico

    @property
    def held(self) -> int:
        """Of what is for everything."""
        some = [request for request in self.requests.values() if request.state == "open"]
        aside = sum(one.left for one in self.asides.values() if one.state == "open")
        return aside + sum(request.hold.amount_pico - request.granted for request in some)

    def free(self, model: str) -> int:
        """What is left for the model only, and no open hold counts on."""
        left = sum(pot.left for pot in self.pots if pot.model == model)
        some = [request for request in self.requests.values() if request.state == "open"]
        return left - sum(request.granted for request in some if request.hold.model == model)

    @property
    def spare(self) -> int:
        """What is left for everything and not held."""
        return sum(pot.left for pot in self.pots if pot.model is None) - self.owed - self.held

    @property
    def available(self) -> int:
        return self.spare + self.line

    @property
    def expired(self) -> int:
        """What is left of pots whose time has passed."""
        return sum(pot.left for pot in self.pots if pot.expired(self.now()))

    @property
    def spendable(self) -> int:
        """What may be reserved now."""
        return self.available - self.expired

    def of_kind(self, kind: str) -> int:
        return sum(pot.left for pot in self.pots if pot.kind == kind and pot.model is None)

    @property
    def restricted(self) -> int:
        return sum(pot.left for pot in self.pots if pot.model is not None)

    @property
    def refundable(self) -> int:
        return sum(part for _, part in self._parts(max(0, self.spare - self.expired)))

    def refund(self, pico: int) -> None:
        for pot, part in self._parts(pico):
            self.lose(pot, part)

    def charge_back(self, pot: Pot, pico: int) -> tuple[int, int]:
        """The payer's bank takes so much of a pot: what is left of it first, in whole units, then what was used is owed
        again. How much of either."""
        left = min(pico, pot.left) // pot.unit * pot.unit
        used = min(pico - left, pot.used)
        self.lose(pot, left)
        pot.used -= used
        self.owed += used
        return left, used

    def _parts(self, pico: int) -> list[tuple[Pot, int]]:
        """What each pot pays back of so much, in whole units of its own."""
        parts = []
        for pot in reversed(self.pots):
            if pot.kind == "paid" and not pot.expired(self.now()):
                part = min(pico, pot.left) // pot.unit * pot.unit
                parts.append((pot, part))
                pico -= part
        return parts

    def expire(self) -> int:
        """Take what is left of pots whose time has passed, but for what earlier requests may use; how much it was."""
        taken = 0
        running = [
            (r.hold.admitted_at, r.hold.amount_pico - r.granted) for r in self.requests.values() if r.state == "open"
        ]
        running += [(one.hold.admitted_at, one.left) for one in self.asides.values() if one.state == "open"]
        for pot in self.pots:
            if pot.expired(self.now()):
                early = sum(pico for admitted_at, pico in running if not pot.expired(admitted_at))
                part = max(0, min(pot.left - early, self.available))
                self.lose(pot, part)
                taken += part
        return taken

    def counted(self, window: Window) -> int:
        """What was spent and is held in one window of a budget."""
        some = [request for request in self.requests.values() if window in request.windows]
        return sum((r.cost or 0) + (r.hold.amount_pico if r.state == "open" else 0) for r in some)

    def for_model(self, model: str) -> int:
        """What a hold for the model may be of."""
        return max(0, self.spendable) + self.free(model)

    def left_in(self, windows: Sequence[Window], limits: dict[str, int]) -> int:
        """What fits into these windows; less than nothing if one is passed."""
        return min((limits[window[0]] - self.counted(window) for window in windows), default=2**70)

    def events(self) -> Iterable[Request]:
        """The requests that have usage."""
        return [request for request in self.requests.values() if request.cost is not None]
