"""What the fake answers: routes with the SDK's parameters of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fake_stripe.account import Account, Object
from fake_stripe.errors import StripeError

Handler = Callable[..., Object]
ROUTES: list[tuple[str, re.Pattern[str], str, Handler]] = []


def route(method: str, path: str, parameters: str) -> Callable[[Handler], Handler]:
    """Declare who answers a request. `{id}` in the path is given as an argument."""
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def mark(handler: Handler) -> Handler:
        ROUTES.append((method, pattern, parameters, handler))
        return handler

    return mark


def find_route(method: str, path: str) -> tuple[str, Handler, dict[str, str]]:
    """The parameters, handler and ids of a request. Raises StripeError."""
    for known, pattern, parameters, handler in ROUTES:
        if known == method and (match := pattern.fullmatch(path)):
            return parameters, handler, match.groupdict()
    raise StripeError(404, f"Unrecognized request URL ({method}: {path}).")


def updated(account: Account, found: Object, values: dict[str, Any]) -> Object:
    """An object with changed values; metadata is merged."""
    metadata = values.pop("metadata", None)
    if isinstance(metadata, dict):
        found["metadata"] = {**found.get("metadata", {}), **metadata}
    found.update(values)
    return found
