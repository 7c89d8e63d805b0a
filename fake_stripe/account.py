"""An account: its objects by id, its clock, and the events that its changes make."""

from __future__ import annotations

import copy
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
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
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    def now(self) -> int:
        """Seconds since the Unix epoch, on a clock that tests may advance."""
        return int(time.time()) + self.ahead_s

    def add(self, kind: str, prefix: str, **values: Any) -> Object:
        """A new object, whose id follows from how many there were."""
        identity = f"{prefix}_fake{next(self._numbers[prefix]):06}"
        made = {"id": identity, "object": kind, "created": self.now(), "livemode": self.livemode, **values}
        self.objects[identity] = made
        return made

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
            **{"id": f"evt_fake{next(self._numbers['evt']):06}", "object": "event", "api_version": API_VERSION},
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
