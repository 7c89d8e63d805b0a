"""Examples of bodies and answers: those that routes give as structs, and others made of their schemas.

A value is made from the first of these that there is: the schema's `examples`, its constant, its default, the field's
name in `VALUES`. A string with none of them has no value. Then the route has no example, and the check of the document
says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import fields

from billing.money import format_amount
from gateway.http.shapes import Pico, encode_value
from gateway.openapi.schemas import Schema, resolved

_ID = "01934f6e0d2a7b3c8e51a9c4d7f60b12"
_UUID = "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"
_SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_INSTANT = "2026-11-22T09:30:00Z"
_SECONDS = 1_795_339_800
_DEEPEST = 12

VALUES: Mapping[str, tuple[Any, ...]] = {
    "issuer": ("https://login.example/v2.0",),
    "client_id": ("turnpike",),
    "groups_claim": ("groups",),
    "acr_values": ("mfa",),
    "group": ("0c1f9b52-8a3e",),
    "redirect_path": ("/console/provider",),
    "logout_path": ("/oidc/01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12/logout",),
    "user_name": ("ann@example.com",),
    "external_id": ("8f2e11c4",),
    "client_secret": ("…",),
    "options": ("{}",),
    "credential": ("{}",),
    "about": ("2026-0007",),
    "opening": ("120.00",),
    "closing": ("95.00",),
    "recipient": ("billing@example.com",),
    "inexact": ("a new context tier cuts an old one",),
    "account": ("clearing",),
    "mime_type": ("application/jsonl",),
    "filename": ("questions.jsonl",),
    "after": (_UUID,),
    "action": ("price_sheet.activated",),
    "actor": ("Ada",),
    "address": ("1 Main Street", "10 Market Square"),
    "advice": ("The prompt differs from an earlier one here: move what changes behind what stays.",),
    "affordable": ("0.50",),
    "amount": ("12.50",),
    "as_of": (_INSTANT,),
    "at": (_INSTANT, _SECONDS),
    "author": ("Ada",),
    "book": ("base",),
    "cause": ("diverged",),
    "code": ("invalid_value",),
    "bic": ("COBADEFFXXX",),
    "buyer_reference": ("991-01234-44",),
    "contact": ("Billing team",),
    "content": ("The capital of France is Paris.",),
    "cost": ("0.000412",),
    "currency": ("USD",),
    "dataset": ("usage",),
    "data": ("opaque",),
    "date": ("2026-11-22",),
    "day": ("2026-11-22",),
    "held_back_by": ("Nothing: it is at work 3 % of the time.",),
    "description": ("Notices of the billing team.",),
    "detail": ("25.00 USD came, none were asked for",),
    "digest": (_SHA,),
    "kid": ("9f86d081884c7d65",),
    "x": ("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",),
    "previous": (_SHA,),
    "cost_pico": ("412000000",),
    "would_cost": ("0.000530",),
    "display_name": ("tiny",),
    "elsewhere": ("",),
    "email": ("ada@example.com",),
    "endpoint": ("991-01234-44",),
    "endpoint_scheme": ("0204",),
    "endpoint_id": (_UUID,),
    "error": ("",),
    "error_code": ("invalid_value",),
    "event_id": (f"evt_{_ID}",),
    "exact": ("0.000412",),
    "finish_reason": ("stop",),
    "first_id": ("tiny",),
    "forced": (None, "agreed with the customer"),
    "format": ("csv",),
    "iban": ("DE02120300000000202051",),
    "id": (_UUID, 7),
    "key": (f"tpk_{_ID}",),
    "kind": ("whole",),
    "lane": ("standard",),
    "last_error": ("",),
    "last_id": ("tiny",),
    "limited_by": ("budget",),
    "line_item": ("tiny, input_tokens",),
    "message": ("$.temperature: Expected `float` <= 2.0.",),
    "meter": ("output",),
    "missed_cost": ("0.000120",),
    "model": ("tiny",),
    "moved": ("25.00",),
    "name": ("search",),
    "nearest": (f"req_{_ID}",),
    "needed": ("1.20",),
    "next_page": (None,),
    "object": ("list",),
    "param": ("temperature",),
    "path": ("$.messages[2].content",),
    "payer": ("Acme GmbH",),
    "period": ("2026-11",),
    "phone": ("+49 30 1234567",),
    "premium": ("0.000050",),
    "price": ("1.60",),
    "problems": ("the database is unavailable",),
    "project": ("search",),
    "project_id": (_UUID,),
    "prompt": ("Once upon a time",),
    "provider": ("stripe",),
    "public_id": ("k7WmXq2ZpR4t",),
    "reason": ("agreed with finance",),
    "refusal": ("I cannot help with that.",),
    "request_id": (f"req_{_ID}",),
    "role": ("assistant",),
    "route": ("POST /v1/chat/completions",),
    "saved": ("0.000310",),
    "scope": ("project",),
    "secret": ("whsec_c2VjcmV0IG9mIHRoZSBlbmRwb2ludA==",),
    "service_tier": ("default",),
    "sha256": (_SHA,),
    "state": ("active",),
    "status": ("done",),
    "threshold": ("10.00",),
    "until": ("2026-11-22",),
    "what": ("a payment of 25.00 USD is not here",),
    "system_fingerprint": ("fp_9f86d081884c",),
    "tag": ("user-7",),
    "tenant": ("acme",),
    "text": ("The capital of France is Paris.",),
    "thinking": ("The user asks for a capital.",),
    "token": ("Paris",),
    "tool_use_id": ("toolu_01",),
    "topic": ("invoice.finalized",),
    "topics": ("invoice.finalized",),
    "ttl": ("1h",),
    "type": ("invalid_request_error",),
    "tokens": ("Paris", 2048),
    "available": ("87.50",),
    "codes": ("4f9k-2m7q",),
    "corrects": ("",),
    "epoch": ("gateway-0-1795339800",),
    "from_period": ("2026-11",),
    "invited_by": ("ada@example.com",),
    "memo": ("a grant",),
    "method": ("password",),
    "new": ("correct horse battery staple",),
    "password": ("correct horse battery staple",),
    "permissions": ("usage.read",),
    "remaining": ("87.50",),
    "replica": ("replica-0",),
    "request": (f"req_{_ID}",),
    "seller": ("Example Ltd",),
    "since": (_INSTANT,),
    "start": (_INSTANT,),
    "subject": ("project search",),
    "summary": ("grant 5000.00 USD to acme",),
    "through": ("ada@ops-1",),
    "uri": ("otpauth://totp/Turnpike:ada@example.com?secret=JBSWY3DPEHPK3PXP&issuer=Turnpike",),
    "value": ("on",),
    "waits_for": ("gateway-1",),
    "warnings": ("the buyer has no address",),
    "against": (f"req_{_ID}",),
    "cursor": (f"6447f39b5ba00-{_ID}",),
    "phase": ("running",),
    "stage": ("prefill",),
    "why": (None, "Its stages are forgotten: they are kept for 7 days."),
    "worker": ("gateway-0",),
    "author_via": ("operator_key",),
    "balance": ("87.50",),
    "base": ("base",),
    "before": ("1.50",),
    "buyer_name": ("Acme Ltd",),
    "carried": ("0.00",),
    "category": ("S",),
    "city": ("London",),
    "country": ("GB",),
    "credit": ("0.00",),
    "credit_line": ("100.00",),
    "credit_series": ("CN",),
    "credited": ("0.00",),
    "decider": ("Bob",),
    "decider_via": ("operator_key",),
    "decision_reason": ("contract 7",),
    "delivery": ("done",),
    "due": ("2026-12-22",),
    "end": (_INSTANT,),
    "gateway": ("gateway-0",),
    "gone": ("0.00",),
    "gross": ("120.00",),
    "held": ("0.10",),
    "invoiced": ("100.00",),
    "issued": ("2026-12-01",),
    "journal": ("replica-0",),
    "lanes": ("standard",),
    "left": ("120.00",),
    "models": ("tiny",),
    "networks": ("192.0.2.0/24",),
    "net": ("100.00",),
    "number_format": ("INV-{year}-{number:06}",),
    "overdraft": ("0.00",),
    "paid": ("0.00",),
    "payable": ("120.00",),
    "payment": ("IBAN GB33BUKB20201555555555",),
    "postal_code": ("SW1A 1AA",),
    "prepaid": ("50.00",),
    "problem": ("",),
    "promo": ("0.00",),
    "rate": ("20",),
    "receivable": ("0.00",),
    "recorded_by": ("gateway-0",),
    "reference": ("transfer 7",),
    "registration": ("12345678",),
    "restricted": ("0.00",),
    "root": (_SHA,),
    "scopes": ("usage.read",),
    "seller_name": ("Example Ltd",),
    "series": ("INV",),
    "service_from": ("2026-11-01",),
    "spent": ("12.50",),
    "tax": ("20.00",),
    "used": ("12.50",),
    "user_agent": ("Mozilla/5.0",),
    "values": ("on",),
    "warning": ("",),
    "vat": ("0.00",),
    "would_be_available": ("187.50",),
    "exemption": ("",),
    "purchase_order": ("PO-7",),
    "watermark": ("0",),
    "number": ("INV-2026-000042", 7),
    "url": ("https://example.com/turnpike",),
    "user": ("ada@example.com",),
    "version": (3,),
    "via": ("operator_key",),
    "workspace_id": (_UUID,),
    "api_key_id": (_UUID,),
    "token_type": ("uncached_input_tokens",),
    "context_from": (0,),
    "ready": (True,),
    "regex": ("[0-9]+",),
    "grammar": ('start: "yes" | "no"',),
    "choice": ("yes",),
    "input_tokens": (27,),
    "limit": (20, "100.00"),
    "status_code": (200,),
    "milliseconds": (31,),
}
"""Name of a field → values, of which the first that has the field's type is taken."""


class NoExample(Exception):
    """A field whose value cannot be made up: its path within the schema."""


class ExampleMaker:
    """Makes examples of schemas whose references are among these components."""

    def __init__(self, components: Mapping[str, Schema]) -> None:
        self._components = components

    def make(self, schema: Schema, name: str = "", path: str = "", depth: int = 0) -> Any:  # noqa: PLR0911  # a kind each
        """An example with the fields that are required, or have examples of their own. `name`: the field's.

        Raises NoExample with the path of a field that needs one.
        """
        if depth > _DEEPEST:
            raise NoExample(f"{path} is nested too deeply")
        if "examples" in schema:
            return schema["examples"][0]
        schema = resolved(schema, self._components)
        given = [*schema.get("examples", ()), *schema.get("enum", ())]
        if given or schema.get("default") is not None:
            return given[0] if given else schema["default"]
        if "anyOf" in schema:
            return self._of_union(schema, name, path, depth)
        if schema.get("type") == "object":
            return self._object(schema, path, depth)
        if schema.get("type") == "array":
            if schema.get("maxItems") == 0 or "items" not in schema:
                return []
            return [self.make(schema["items"], name, f"{path}[0]", depth + 1)]
        return _scalar(schema, name, path)

    def _of_union(self, schema: Schema, name: str, path: str, depth: int) -> Any:
        null = any(option.get("type") == "null" for option in schema["anyOf"])
        if null and "default" in schema:
            return None
        errors = []
        for option in schema["anyOf"]:
            try:
                if option.get("type") != "null":
                    return self.make(option, name, path, depth + 1)
            except NoExample as error:
                errors.append(error)
        if null:
            return None
        raise errors[0]

    def _object(self, schema: Schema, path: str, depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        return {
            field: self.make(inner, field, f"{path}.{field}" if path else field, depth + 1)
            for field, inner in schema.get("properties", {}).items()
            if field in required or "examples" in inner
        }


_KINDS: Mapping[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


def _scalar(schema: Schema, name: str, path: str) -> Any:
    kind = schema.get("type")
    for value in VALUES.get(name, ()):
        if isinstance(kind, str) and isinstance(value, _KINDS.get(kind, ())):
            return value
    match kind:
        case "null" | None:
            return None
        case "boolean":
            return True
        case "integer" | "number":
            return _number(schema, name)
        case "string":
            return _text(schema, name, path)
    raise NoExample(f"{path} has the type {kind}")


def _number(schema: Schema, name: str) -> int:
    if name.endswith(("_at", "_time", "_until")):
        return _SECONDS
    if name.endswith("tokens"):
        return 2048
    return max(1, int(schema.get("minimum", 1)))


def _text(schema: Schema, name: str, path: str) -> str:
    if name.endswith(("_at", "_until", "_seen")) or schema.get("format") == "date-time":
        return _INSTANT
    if schema.get("format") == "uuid":
        return _UUID
    if name.endswith("sha256"):
        return _SHA
    if name.endswith("_id"):
        return f"{name.removesuffix('_id')}_{_ID}"
    raise NoExample(f"{path} (a string) has no example: see gateway.openapi.examples.VALUES")


def shown(value: Any, *, whole: bool) -> Any:
    """The value as JSON values. `whole`: as it is encoded; else without fields that have their default, as somebody
    writes a body."""
    if isinstance(value, Struct):
        return _struct(value, whole)
    if isinstance(value, Pico) and not whole:
        return format_amount(value)
    if isinstance(value, Raw):
        return msgspec.json.decode(value)
    if isinstance(value, Mapping):
        return {str(key): shown(inner, whole=whole) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner, whole=whole) for inner in value]
    return msgspec.to_builtins(value, enc_hook=encode_value)


def _struct(value: Struct, whole: bool) -> dict[str, Any]:
    config = value.__struct_config__
    out: dict[str, Any] = {} if config.tag_field is None else {config.tag_field: config.tag}
    whole_here = whole and not config.omit_defaults
    for field in fields(value):
        inner = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if inner is not UNSET and (whole_here or inner != default):
            out[field.encode_name] = shown(inner, whole=whole)
    return out
