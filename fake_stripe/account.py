"""An account: its objects by id, its clock, and the events that its changes make. It can be kept in a file."""

from __future__ import annotations

import copy
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_stripe.errors import missing

Object = dict[str, Any]
API_VERSION = "2026-10-28.endive"


class Account:
    """All that the account has. `on_event` is told of each event."""

    def __init__(self, identity: str = "acct_fake", *, livemode: bool = False) -> None:
        self.id = identity
        self.livemode = livemode
        self.objects: dict[str, Object] = {}
        self.events: list[Object] = []
        self.on_event: Callable[[Object], None] = lambda event: None
        self.on_money: Callable[[Account, Object], None] = lambda account, intent: None
        self.ahead_s = 0
        self.stand_at: int | None = None
        """Where its clock stands, if it does."""
        self.pages = ""
        """The base address of its own pages (`fake_stripe.pages`); without one their links lead nowhere."""
        self._numbers: Counter[str] = Counter()

    @classmethod
    def load(cls, path: Path) -> Account:
        """The account that `save` kept. Raises OSError, ValueError."""
        kept = json.loads(path.read_text())
        made = cls(kept["id"], livemode=kept["livemode"])
        made.objects, made.events, made._numbers = kept["objects"], kept["events"], Counter(kept["numbers"])
        return made

    def save(self, path: Path) -> None:
        """Keep all that the account has in a file that its owner alone can read. Raises OSError."""
        kept = {"id": self.id, "livemode": self.livemode, "numbers": self._numbers}
        kept |= {"objects": self.objects, "events": self.events}
        part = path.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(kept, file, default=str)
        part.replace(path)

    def page_of(self, kind: str, identity: str) -> str:
        """The address of a page for people, such as Checkout's."""
        return f"{self.pages}/{kind}/{identity}" if self.pages else f"https://{kind}.fake.invalid/{identity}"

    def now(self) -> int:
        """Seconds since the Unix epoch, on a clock that tests may advance."""
        return int(time.time()) + self.ahead_s if self.stand_at is None else self.stand_at

    def add(self, kind: str, prefix: str, **values: Any) -> Object:
        """A new object, whose id follows from how many there were."""
        identity = self._next(prefix)
        made = {"id": identity, "object": kind, "created": self.now(), "livemode": self.livemode, **values}
        self.objects[identity] = made
        return made

    def _next(self, prefix: str) -> str:
        self._numbers[prefix] += 1
        return f"{prefix}_fake{self._numbers[prefix]:06}"

    def find(self, kind: str, identity: str) -> Object:
        """An object of this kind. Raises StripeError."""
        found = self.objects.get(identity)
        if found is None or found["object"] != kind:
            raise missing(kind, identity)
        return found

    def every(self, kind: str, **values: Any) -> list[Object]:
        """All objects of a kind with these values, the newest first."""
        return [
            one
            for one in reversed(self.objects.values())
            if one["object"] == kind and all(one.get(name) == value for name, value in values.items())
        ]

    def emit(self, type_: str, about: Object) -> Object:
        """An event about an object as it is now."""
        event = {
            **{"id": self._next("evt"), "object": "event", "api_version": API_VERSION},
            **{"created": self.now(), "livemode": self.livemode, "type": type_, "pending_webhooks": 1},
            **{"request": None, "data": {"object": copy.deepcopy(about)}},
        }
        self.events.append(event)
        self.on_event(event)
        return event


def listed(objects: list[Object], query: Object, url: str) -> Object:
    """A page of a list, with `limit`, `starting_after` and `created` of the query."""
    created = query.get("created") or {}
    if isinstance(created, dict):
        for name, holds in (("gte", int.__ge__), ("gt", int.__gt__), ("lte", int.__le__), ("lt", int.__lt__)):
            if name in created:
                objects = [one for one in objects if holds(one["created"], created[name])]
    if after := query.get("starting_after"):
        places = [place for place, one in enumerate(objects) if one["id"] == after]
        objects = objects[places[0] + 1 :] if places else []
    limit = int(query.get("limit") or 10)
    page = objects[:limit]
    return {"object": "list", "url": url, "has_more": len(objects) > limit, "data": page}
