"""`turnpike webhooks`: manage webhook endpoints and see their deliveries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from turnpike.api.actions import Cell, Flag, Object, add_action
from turnpike.command_line import CommandParser

_HOUR_S = 3600
_TENANT = Flag("whose endpoints they are", metavar="NAME", required=True)
_ENDPOINT = Flag("its id, from the list", "endpoint")


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike webhooks …`."""

    def action(name: str, text: str, operation: str, *arguments: str, flags: Any = None, **shown: Any) -> None:
        names = {"tenant": _TENANT} | ({"name": _ENDPOINT} if "name" in arguments else {})
        add_action(parser, name, text, operation, arguments=arguments, flags=names | (flags or {}), **shown)

    action(
        "add",
        "add an endpoint; stdout has its secret alone",
        "create_webhook_endpoint",
        "url",
        flags={
            "url": "https, of a public address; see --webhook-allow-networks",
            "topics": Flag("such as invoice.*,budget.threshold; default: %(default)s, all", default="*"),
            "description": "what the endpoint is for",
        },
        show="endpoint {id}; its secret is shown once:",
        alone="secret",
    )
    columns: dict[str, Cell] = {"id": "id", "url": "url", "topics": "topics", "state": "status", "reason": "reason"}
    columns |= {"description": "description"}
    action("list", "the endpoints", "list_webhook_endpoints", columns=columns, empty="none")
    overlap = Flag("how long the old one signs too; default: 24", "overlap", _seconds, "HOURS", default="24")
    action(
        "rotate",
        "a new secret on stdout; the old one signs too for a while",
        "rotate_webhook_secret",
        "name",
        flags={"overlap_s": overlap},
        show=lambda _, parsed: f"the old secret signs too for {parsed.api_overlap_s} h; the new one is shown once:",
        alone="secret",
    )
    silent: Callable[..., str] = lambda *_: ""  # noqa: E731
    action("remove", "send nothing more to an endpoint", "remove_webhook_endpoint", "name", show=silent)
    action("enable", "send to a disabled endpoint again", "enable_webhook_endpoint", "name", show=silent)
    action(
        "test",
        "queue a test message; the worker sends it",
        "test_webhook_endpoint",
        "name",
        show=lambda delivery, parsed: (
            f"delivery {delivery['id']} is queued; a worker sends it. "
            f"See: `turnpike webhooks deliveries --tenant {parsed.api_tenant}`"
        ),
    )
    columns = {
        **{"id": "id", "at": partial(_time, "created_at"), "topic": "topic", "state": "status"},
        **{"attempts": "attempt_count", "status": "last_status_code"},
        "next": lambda one: _time("next_attempt_at", one) if one["status"] == "pending" else "",
        "error": "last_error",
    }
    limits = {
        "endpoint_id": Flag("of one endpoint alone", "endpoint"),
        "limit": Flag("how many; default: %(default)s", default="20"),
    }
    text = "what was delivered, the newest first"
    action("deliveries", text, "list_webhook_deliveries", flags=limits, columns=columns, empty="none")
    action(
        "resend",
        "send a delivery's message again",
        "resend_webhook_delivery",
        "name",
        flags={"name": Flag("its id, from the deliveries", "delivery")},
        show="delivery {id} is queued again; a worker sends it",
    )


def _seconds(hours: str) -> int:
    return round(float(hours)) * _HOUR_S


def _time(name: str, delivery: Object) -> str:
    at = delivery[name]
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
