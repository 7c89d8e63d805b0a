"""What a hold is: the request for one, and the reservation as the database has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from billing.calendar import period_of
from billing.money import MAX_PICO, InvalidMoney

_NOBODY = UUID(int=0)
HoldState = Literal["open", "released", "expired"]
"""A hold that was settled is gone: its usage event says all that it said."""


class HoldRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Reserve `amount_pico` for a request, for at most `lifetime_s`. Raises InvalidMoney.

    `gateway` is the epoch (the run) of the gateway worker that runs the request, `tag` what the client calls it for
    budgets. `terms` is for the gateway alone: what it needs to make usage of a journal's counts later. Fields are only
    added at the end, with a default: open holds outlive an upgrade. An allowance (`billing.reservation.allowances`) is
    for no model.
    """

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    amount_pico: int
    lifetime_s: int
    gateway: str
    terms: bytes
    tag: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a hold of {self.amount_pico} pico-units")
        if self.lifetime_s <= 0:
            raise InvalidMoney(f"a hold for {self.lifetime_s} seconds")

    @classmethod
    def for_many(cls, identity: UUID, tenant_id: UUID, amount_pico: int, lifetime_s: int, gateway: str) -> HoldRequest:
        """For an allowance of this id."""
        return cls(identity, tenant_id, _NOBODY, _NOBODY, "", "", 0, amount_pico, lifetime_s, gateway, b"")

    @property
    def is_allowance(self) -> bool:
        """Whether it is for many requests, which take from it until it is ended."""
        return not self.model


class TopUp(msgspec.Struct, frozen=True):
    """Raise the hold of a request that runs until it is `amount_pico` in all, so that a repetition changes nothing.
    Raises InvalidMoney."""

    request_id: UUID
    amount_pico: int
    batch: UUID | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a hold of {self.amount_pico} pico-units")


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reservation as the database has it. Its billing period was fixed by the database's clock at admission.

    One that was taken out of an `allowance` has no row of its own: whoever runs the request carries it (`claim`).
    """

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    amount_pico: int
    gateway: str
    terms: bytes
    admitted_at: int
    period: str
    expires_at: int
    state: HoldState = "open"
    budgets: tuple[UUID, ...] = ()
    """The windows of budgets that it is reserved from too."""
    grants: Mapping[UUID, int] = {}
    """How much of the amount is reserved from which grants for one model or project, and not from the balance."""
    batch: UUID | None = None
    """Where an open hold is kept (`billing.holds.batches`). Without it, it is found by its id, which takes longer."""
    allowance: UUID | None = None

    @classmethod
    def of(
        cls,
        asked: HoldRequest,
        admitted_at: int,
        amount_pico: int | None = None,
        state: HoldState = "open",
        *,
        budgets: tuple[UUID, ...] = (),
        grants: Mapping[UUID, int] = {},
        batch: UUID | None = None,
    ) -> Hold:
        """The hold that a request gets at this instant; of another amount, if it was raised since."""
        return cls(
            asked.request_id,
            asked.tenant_id,
            asked.project_id,
            asked.key_id,
            asked.model,
            asked.lane,
            asked.price_version,
            asked.amount_pico if amount_pico is None else amount_pico,
            asked.gateway,
            asked.terms,
            admitted_at,
            period_of(admitted_at),
            admitted_at + asked.lifetime_s * 1_000_000,
            state,
            budgets,
            grants,
            batch,
        )

    @property
    def claim(self) -> bytes:
        """All of it, for who is to bill the request if we cannot; nothing if a row says it."""
        return _encoder.encode(self) if self.allowance is not None else b""

    @staticmethod
    def claimed(claim: bytes) -> Hold:
        """The hold whose `claim` this is. Raises msgspec.MsgspecError."""
        return _hold_decoder.decode(claim)


def join(budgets: Sequence[UUID], grants: Mapping[UUID, int] = {}) -> str:
    """What a hold is reserved from beside the balance, as one text: windows of budgets, and grants with how much."""
    return ",".join([*(budget.hex for budget in budgets), *(f"{grant.hex}={pico}" for grant, pico in grants.items())])


def split(sources: str) -> tuple[UUID, ...]:
    """The windows of budgets that `join` was given."""
    return tuple(UUID(one) for one in sources.split(",") if "=" not in one) if sources else ()


def grants_in(sources: str) -> dict[UUID, int]:
    """The grants that `join` was given."""
    if "=" not in sources:
        return {}
    pairs = (one.split("=") for one in sources.split(",") if "=" in one)
    return {UUID(grant): int(pico) for grant, pico in pairs}


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(HoldRequest)
_hold_decoder = msgspec.msgpack.Decoder(Hold)
_list_decoder = msgspec.msgpack.Decoder(list[HoldRequest])
pack = _encoder.encode
"""A request as the row of its ended hold keeps it: whatever no statement asks for is in there."""
unpack = _decoder.decode
"""The inverse of `pack`. Raises msgspec.MsgspecError."""


def pack_all(requests: Sequence[HoldRequest]) -> bytes:
    """Requests as the row of their open holds keeps them."""
    return _encoder.encode(requests)


def unpack_all(packed: bytes) -> list[HoldRequest]:
    """The inverse of `pack_all`. Raises msgspec.MsgspecError."""
    return _list_decoder.decode(packed)
