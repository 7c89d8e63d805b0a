"""The wallet: which money is used first, and every account what its entries say, whatever happens in any order."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from billing.ledger.entries import Balance, Entry
from billing.ledger.wallet import PAID_PRIORITY, PROMO_PRIORITY, ModelCost, OpenGrant, Wallet

TENANT, HOME, ABROAD = UUID(int=1), UUID(int=2), UUID(int=3)


def new_grant(number: int, pico: int, kind: str = "paid", **changes: object) -> OpenGrant:
    fields: dict[str, object] = {
        "priority": PROMO_PRIORITY if kind == "promo" else PAID_PRIORITY,
        "expires_at": None,
        "model": None,
        "project_id": None,
    }
    return OpenGrant(UUID(int=number), TENANT, kind, remaining=pico, used=0, gone=0, **(fields | changes))  # type: ignore[arg-type]


def wallet(*grants: OpenGrant) -> Wallet:
    made = Wallet(Balance(TENANT, "USD", 0, 0, 0, 0), ())
    for one in grants:
        made.put_in(one)
    return made


def left(of: Wallet) -> list[int]:
    return [grant.remaining for grant in sorted(of.changed.values(), key=lambda grant: grant.id.int)]


def test_the_order_of_use() -> None:
    money = wallet(
        new_grant(1, 10),
        new_grant(2, 10, "promo"),
        new_grant(3, 10, expires_at=9),
        new_grant(4, 10, expires_at=5),
        new_grant(5, 10, priority=7),
        new_grant(6, 10, "promo", priority=99, model="m"),
    )
    orders = []
    for _ in range(60):
        money.use([ModelCost(HOME, "m", 1)])
        orders.append(left(money))
    emptied = [next(n for n, row in enumerate(orders) if not row[grant]) for grant in range(6)]
    assert sorted(range(1, 7), key=lambda grant: emptied[grant - 1]) == [6, 5, 2, 4, 3, 1]


def test_restricted_money_pays_only_for_what_it_is_for() -> None:
    money = wallet(new_grant(1, 10, "promo", project_id=HOME), new_grant(2, 5))
    assert money.balance.available == 5
    assert money.use([ModelCost(ABROAD, "m", 3), ModelCost(HOME, "m", 4)]) == [
        Entry("restricted", "revenue", 4, UUID(int=1)),
        Entry("prepaid", "revenue", 3, UUID(int=2)),
    ]
    assert left(money) == [6, 2]
    assert money.balance.available == 2


def test_what_is_owed_is_paid_first_and_a_correction_unwinds_the_last_use() -> None:
    money = wallet(new_grant(1, 5, "promo"), new_grant(2, 5))
    assert money.use([ModelCost(HOME, "m", 12)])[-1] == Entry("receivable", "revenue", 2)
    assert money.put_in(new_grant(3, 10)) == [
        Entry("clearing", "receivable", 2),
        Entry("clearing", "prepaid", 8, UUID(int=3)),
    ]
    assert money.give_back(ModelCost(HOME, "m", 6), {UUID(int=1): 5, UUID(int=2): 5, None: 2}) == [
        Entry("revenue", "prepaid", 4, UUID(int=2)),
        Entry("revenue", "prepaid", 2, UUID(int=3)),
    ]
    assert left(money) == [0, 4, 10]


def test_a_correction_gives_nobody_more_than_it_paid_for_the_period() -> None:
    """Neither the debts that money paid, nor what money paid for another period, become refundable by it."""
    money = wallet(new_grant(1, 5))
    money.use([ModelCost(HOME, "m", 7)])
    money.put_in(new_grant(2, 2))
    money.put_in(new_grant(3, 9, "promo"))
    second = money.use([ModelCost(HOME, "m", 8)])
    assert money.give_back(ModelCost(HOME, "m", 8), {entry.grant_id: entry.amount_pico for entry in second}) == [
        Entry("revenue", "promo", 8, UUID(int=3))
    ]
    assert (money.refundable(0), left(money)) == (0, [0, 0, 9])


def test_expiry_leaves_what_open_holds_count_on() -> None:
    money = wallet(new_grant(1, 10, expires_at=5), new_grant(2, 4, "promo", expires_at=6), new_grant(3, 1))
    money.balance = money.balance.holding(9)
    running = [ModelCost(HOME, "m", 7, 4), ModelCost(HOME, "m", 1, 5), ModelCost(HOME, "m", 1, 6)]
    assert money.expire(4, running) == []
    assert money.expire(7, running) == [Entry("prepaid", "breakage", 3, UUID(int=1))]
    money.balance = money.balance.holding(-7)
    assert [entry.credit for entry in money.expire(7, running[1:])] == ["goodwill", "breakage"]
    assert (left(money), money.balance.available) == ([0, 1, 1], 0)


moves = st.lists(
    st.tuples(
        st.sampled_from(["paid", "promo", "model", "use", "hold", "back", "refund", "expire"]), st.integers(1, 100)
    ),
    max_size=30,
)


@given(moves)
def test_every_account_is_what_its_entries_say(made: list[tuple[str, int]]) -> None:
    money = wallet()
    accounts: dict[str, int] = defaultdict(int)
    used = {"m": 0, "n": 0}
    paid: dict[UUID | None, int] = defaultdict(int)
    for number, (what, pico) in enumerate(made, 1):
        entries: list[Entry] = []
        if what == "use":
            entries = money.use([ModelCost(HOME, "mn"[pico % 2], pico)])
            used["mn"[pico % 2]] += pico
        elif what == "hold":
            money.balance = money.balance.holding(pico)
        elif what == "back":
            back = min(pico, used["mn"[pico % 2]])
            entries = money.give_back(ModelCost(HOME, "mn"[pico % 2], back), paid)
            used["mn"[pico % 2]] -= back
        elif what == "refund":
            entries = money.refund(min(pico, money.refundable(pico)), pico)
        elif what == "expire":
            entries = money.expire(pico, [])
        else:
            kind = "paid" if what == "paid" else "promo"
            model = "m" if what == "model" else None
            expires_at = pico if pico % 3 == 0 else None
            entries = money.put_in(new_grant(number, pico, kind, expires_at=expires_at, model=model))
        for entry in entries:
            assert entry.amount_pico > 0
            accounts[entry.debit] -= entry.amount_pico
            accounts[entry.credit] += entry.amount_pico
            if what in ("use", "back"):
                paid[entry.grant_id] += entry.amount_pico if what == "use" else -entry.amount_pico
        assert "charges" not in accounts, "all that was used can be given back"
        balance, grants = money.balance, list(money.changed.values())
        assert sum(accounts.values()) == 0
        assert (balance.prepaid, balance.promo, -balance.receivable) == (
            accounts["prepaid"], accounts["promo"], accounts["receivable"]
        )  # fmt: skip
        assert balance.restricted == accounts["restricted"]
        assert sum(grant.used for grant in grants if grant.restricted) <= used["m"]
        for account in ("prepaid", "promo", "restricted"):
            assert accounts[account] == sum(grant.remaining for grant in grants if grant.account == account)
        assert accounts["revenue"] == balance.debit == sum(used.values())
        assert min((0, *(min(grant.remaining, grant.used, grant.gone) for grant in grants))) == 0
        assert balance.overdraft == max(0, -balance.available)
