"""Errors as Stripe answers them."""

from __future__ import annotations

from typing import Any


class StripeError(Exception):
    """An answer of 400 or more."""

    def __init__(
        self, status: int, message: str, *, code: str = "", param: str = "", kind: str = "", **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"type": kind or _kind(status), "message": message, "code": code, "param": param, **more}
        self.body = {"error": {name: value for name, value in self.body.items() if value != ""}}


def _kind(status: int) -> str:
    return {402: "card_error"}.get(status, "invalid_request_error" if status < 500 else "api_error")


def missing(kind: str, identity: str) -> StripeError:
    """An object that is not there."""
    return StripeError(404, f"No such {kind}: '{identity}'", code="resource_missing", param="id")
