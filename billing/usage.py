"""What is billed: usage by meter, and the immutable event that records it once per request."""

from __future__ import annotations

from itertools import product
from typing import Literal, Self, TypeAlias, get_args
from uuid import UUID

import msgspec

from billing.calendar import check_period
from billing.money import MAX_PICO
from storage.reported_error import ReportedError

LEASE_CLASSES = ("5m", "30m", "1h", "12h", "24h")
"""Cache classes that a lease can have, each named by its lifetime."""
AUTOMATIC = "automatic"
"""The read class of KV that was there without a lease."""
METERS = (
    "uncached",
    "read_automatic",
    *(f"read_{c}" for c in LEASE_CLASSES),
    *(f"write_{c}" for c in LEASE_CLASSES),
    "output",
)
"""What requests are billed for, in order. Tables, events, rollups, prices, rating and exports are made from this tuple.

`STORAGE` of `billing.prices.version` has a price too, and is counted by the hour, not by the request.
docs/changes.md lists what a new meter, and what a new cache class, touches.
"""
DRAFTS = ("drafted", "accepted")
"""Counts of replicas that rollups and reports have beside the meters, as information: drafts that steps verified, and
those that became output. Nobody is billed for them."""

DIMENSIONS = ("model", "model_digest", "lane", "status", "reason", "delivery", "source", "replica")
"""What an event says in few different words: stored once for all events that say the same."""

Status = Literal["ok", "cancelled", "failed"]
DeliveryCertainty = Literal["confirmed", "unconfirmed"]
RecordedBy = Literal["gateway", "journal", "adjustment"]


class InvalidUsage(ReportedError, ValueError):
    """Usage or counts that cannot be true: negative, of an unknown meter, or breaking an identity."""


MAX_TOKENS = 2**31 - 1
"""The most tokens that one request may count of anything: each count is stored in 32 bits."""

_TOKEN_BITS, _WIDE_BITS = 31, 63
"""Whether many numbers are all from 0 up to so many bits is seen from their union: a fraction of what it costs to look
at each. Requests wait for these checks."""


def _check_number(name: str, number: int, most: int) -> None:
    if type(number) is not int or not 0 <= number <= most:
        raise InvalidUsage(f"{name} is {number!r}, not a whole number from 0 to {most}")


class Counts(msgspec.Struct, frozen=True, gc=False):
    """What the engine physically did, in tokens: `prompt = computed + read_hbm + read_dram + read_nvme`.

    Prompt is 0 if the request was never scheduled. `output` counts sampled tokens. The last three stand beside the
    others and are never billed. Raises InvalidUsage.
    """

    prompt: int = 0
    computed: int = 0
    read_hbm: int = 0
    read_dram: int = 0
    read_nvme: int = 0
    output: int = 0
    recomputed: int = 0
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        prompt, computed, hbm, dram, nvme, output, recomputed, drafted, accepted = msgspec.structs.astuple(self)
        are_numbers = (
            int is type(prompt) is type(computed) is type(hbm) is type(dram) is type(nvme)
            is type(output) is type(recomputed) is type(drafted) is type(accepted)
        )  # fmt: skip
        union = are_numbers and prompt | computed | hbm | dram | nvme | output | recomputed | drafted | accepted
        if not are_numbers or union >> _TOKEN_BITS:
            for name in self.__struct_fields__:
                _check_number(name, getattr(self, name), MAX_TOKENS)
        if prompt != computed + hbm + dram + nvme:
            raise InvalidUsage(f"prompt is not computed + read in {self}")
        if accepted > drafted:
            raise InvalidUsage(f"more drafted tokens accepted than drafted in {self}")


COUNTS = Counts.__struct_fields__
"""The names of the counts, in order."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What is billed, in tokens: disjoint parts of the prompt (uncached, read and written by class) and the output.

    `read` is keyed by class, `automatic` where KV was there without a lease; `write` by class. Raises InvalidUsage.
    """

    uncached: int = 0
    read: dict[str, int] = {}
    write: dict[str, int] = {}
    output: int = 0

    def __post_init__(self) -> None:
        if not (self.read.keys() <= _READ and self.write.keys() <= _WRITE):
            unknown = next(meter for meter, _ in self._given() if meter not in _NO_TOKENS)
            raise InvalidUsage(f"unknown meter {unknown}")
        union = 0
        for tokens in (self.uncached, self.output, *self.read.values(), *self.write.values()):
            if type(tokens) is not int:
                union = -1
                break
            union |= tokens
        if union >> _TOKEN_BITS:
            for meter, tokens in self._given():
                _check_number(meter, tokens, MAX_TOKENS)

    def _given(self) -> list[tuple[str, int]]:
        return [
            ("uncached", self.uncached),
            *((f"read_{name}", tokens) for name, tokens in self.read.items()),
            *((f"write_{name}", tokens) for name, tokens in self.write.items()),
            ("output", self.output),
        ]

    @property
    def prompt(self) -> int:
        """Tokens of the prompt that are billed, in whatever way."""
        total = self.uncached
        for tokens in self.read.values():
            total += tokens
        for tokens in self.write.values():
            total += tokens
        return total

    def meters(self) -> dict[str, int]:
        """Tokens by meter: every meter, in the order of METERS."""
        return _NO_TOKENS | dict(self._given())

    def used(self) -> list[tuple[str, int]]:
        """The meters of which there are any tokens, with how many."""
        return [meter for meter in self._given() if meter[1]]

    @classmethod
    def from_meters(cls, meters: dict[str, int]) -> Self:
        """The inverse of `meters`; absent meters are 0. Raises InvalidUsage for an unknown one."""
        for meter in meters:
            if meter not in METERS:
                raise InvalidUsage(f"unknown meter {meter}")

        def group(prefix: str) -> dict[str, int]:
            return {m.removeprefix(prefix): tokens for m, tokens in meters.items() if m.startswith(prefix) and tokens}

        return cls(
            uncached=meters.get("uncached", 0),
            read=group("read_"),
            write=group("write_"),
            output=meters.get("output", 0),
        )


_NO_TOKENS = dict.fromkeys(METERS, 0)
_READ, _WRITE = {AUTOMATIC, *LEASE_CLASSES}, set(LEASE_CLASSES)


class SignedUsage(Usage, frozen=True):
    """What an adjustment adds to usage, or takes from it. Raises InvalidUsage."""

    def __post_init__(self) -> None:
        for meter, tokens in self._given():
            if meter not in _NO_TOKENS:
                raise InvalidUsage(f"unknown meter {meter}")
            _check_number(meter, abs(tokens), MAX_TOKENS)


class UsageSum(Usage, frozen=True):
    """Usage added up, of any number of requests and adjustments: more tokens than one request can have, or less than
    none where more was taken back than was used. Raises InvalidUsage for an unknown meter."""

    def __post_init__(self) -> None:
        for meter, _ in self._given():
            if meter not in _NO_TOKENS:
                raise InvalidUsage(f"unknown meter {meter}")


_NARROW = ("price_version", "attempt", "context_from")
_WIDE = ("admitted_at", "finished_at", "sequence", "cost_pico")
_TOLD = ("status", "delivery", "source")
_ALLOWED = dict(zip(_TOLD, map(get_args, (Status, DeliveryCertainty, RecordedBy)), strict=True))
_MAY_TELL = set(product(*_ALLOWED.values()))


class UsageEvent(msgspec.Struct, frozen=True, tag="event", gc=False):
    """The record of a finished request; `id` is the request's. Raises InvalidUsage or InvalidPeriod.

    Instants are microseconds since the Unix epoch. `period` was fixed by the database's clock at admission. `sequence`
    is the replica's journal sequence, 0 if the journal has none. `context_from` is the lower bound, in tokens of the
    prompt, of the context tier that priced it. An adjustment has the id of the event that it `corrects`: nothing was
    counted for it, and its usage (a SignedUsage) and cost are what changes. A lost attempt
    (`billing.settlement.lost_attempt_events`) has there the id of its request: it counts, and bills nothing.
    `hold_batch` is where the request's hold is kept, if that is known, or `allowance` what it was taken from: they are
    for who ends the hold, and not recorded.
    """

    id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    model_digest: str
    lane: str
    price_version: int
    admitted_at: int
    finished_at: int
    period: str
    status: Status
    reason: str
    delivery: DeliveryCertainty
    source: RecordedBy
    replica: str
    sequence: int
    attempt: int
    counts: Counts
    usage: Usage
    cost_pico: int
    context_from: int = 0
    corrects: UUID | None = None
    hold_batch: UUID | None = None
    allowance: UUID | None = None

    @property
    def is_request(self) -> bool:
        """Whether it is its request's own event: neither an adjustment nor a lost attempt."""
        return self.corrects is None

    def __post_init__(self) -> None:
        check_period(self.period)
        if (self.status, self.delivery, self.source) not in _MAY_TELL:
            name = next(name for name in _TOLD if getattr(self, name) not in _ALLOWED[name])
            raise InvalidUsage(f"{name} is {getattr(self, name)!r}, not one of {', '.join(_ALLOWED[name])}")
        if self.corrects is not None:
            _check_number("cost_pico", abs(self.cost_pico), MAX_PICO)
            return
        version, attempt, tier = self.price_version, self.attempt, self.context_from
        began, ended, sequence, cost = self.admitted_at, self.finished_at, self.sequence, self.cost_pico
        are_numbers = (
            int is type(version) is type(attempt) is type(tier)
            is type(began) is type(ended) is type(sequence) is type(cost)
        )  # fmt: skip
        if (
            not are_numbers
            or (version | attempt | tier) >> _TOKEN_BITS
            or (began | ended | sequence | cost) >> _WIDE_BITS
        ):
            for name in (*_NARROW, *_WIDE):
                _check_number(name, getattr(self, name), MAX_TOKENS if name in _NARROW else MAX_PICO)
        counts, usage, prompt = self.counts, self.usage, self.usage.prompt
        if prompt not in (counts.prompt, 0):
            raise InvalidUsage(f"billed prompt {prompt} is neither 0 nor the counted {counts.prompt}")
        if usage.output > counts.output:
            raise InvalidUsage(f"billed output {usage.output} is more than the counted {counts.output}")
        if counts.prompt and not prompt and (usage.output or self.cost_pico):
            raise InvalidUsage("output is billed, and its prompt is not")


class Release(msgspec.Struct, frozen=True, tag="release", gc=False):
    """Nothing was done for this request: its hold is to be given back."""

    request_id: UUID
    reason: str
    hold_batch: UUID | None = None


SpoolRecord: TypeAlias = UsageEvent | Release
