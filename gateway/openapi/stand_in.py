"""A worker that is none, for which routes can be made: their document needs no database, model or replica."""

from __future__ import annotations

from typing import Any, cast

from gateway.services import Gateway, GatewayOptions


class _Nothing:
    """Has every attribute, and can be called; none of it does anything. Routes only keep what they find here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return GatewayOptions() if name == "options" else _Nothing()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Nothing()


def stand_in() -> Gateway:
    """What `gateway.app.application_of` takes to make routes that are looked at and never called."""
    return cast(Gateway, _Nothing())
