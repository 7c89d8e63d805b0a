"""Examples that routes give as instances of structs, as the JSON that is decoded from or encoded to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import fields


def shown(value: Any, *, whole: bool) -> Any:
    """The value as JSON values. `whole`: as it is encoded; else without fields that have their default, as somebody
    writes a body."""
    if isinstance(value, Struct):
        return _struct(value, whole)
    if isinstance(value, Raw):
        return msgspec.json.decode(value)
    if isinstance(value, Mapping):
        return {str(key): shown(inner, whole=whole) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner, whole=whole) for inner in value]
    return msgspec.to_builtins(value)


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
