"""JSON schemas of structs, as components of one document: their names, and what an answer always has.

msgspec says what is decoded. Of an answer more is known: a field with a default is written all the same, so it is
always there, unless its default is UNSET or the struct omits defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import cleandoc
from typing import Any, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from gateway.http.shapes import json_schema

Schema: TypeAlias = dict[str, Any]

_VENDORS = {"gateway.dialects.openai": "OpenAI", "gateway.dialects.anthropic": "Anthropic"}
"""Where a vendor's structs are → what the names of their components begin with: both have an `Envelope`."""
_REF = "#/components/schemas/"


class ComponentSchemas:
    """The schemas of all types of a document. `bodies` are decoded, `answers` encoded."""

    def __init__(self, bodies: Sequence[Any], answers: Sequence[Any]) -> None:
        kinds = list(dict.fromkeys([*bodies, *answers]))
        schemas, components = msgspec.json.schema_components(
            kinds, schema_hook=json_schema, ref_template=_REF + "{name}"
        )
        structs = _named(kinds)
        names = _component_names([structs[name] for name in components])
        renamed = {_REF + name: _REF + names[structs[name]] for name in components}
        decoded = set(_structs(types.multi_type_info(bodies)))
        self.components: dict[str, Schema] = {}
        for name in sorted(components, key=lambda name: names[structs[name]]):
            struct = structs[name]
            schema = _rewritten(components[name], renamed)
            schema["title"] = names[struct]
            if struct not in decoded:
                schema["required"] = _written(struct, schema)
            self.components[names[struct]] = schema
        self._schemas = {kind: _rewritten(schema, renamed) for kind, schema in zip(kinds, schemas, strict=True)}

    def of(self, kind: Any) -> Schema:
        """The schema of one of the types, mostly a reference to a component."""
        schema: Schema = self._schemas[kind]
        return schema


def reachable(value: Any, components: Mapping[str, Schema]) -> dict[str, Schema]:
    """Those of the components that a part of a document refers to, also through others."""
    found: dict[str, Schema] = {}
    left = list(_references(value))
    while left:
        name = left.pop()
        if name not in found:
            found[name] = components[name]
            left += _references(components[name])
    return {name: found[name] for name in sorted(found)}


def resolved(schema: Schema, components: Mapping[str, Schema]) -> Schema:
    """The schema that a reference means; the schema itself if it is none."""
    while "$ref" in schema:
        schema = components[schema["$ref"].removeprefix(_REF)]
    return schema


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref" and isinstance(inner, str):
                if inner.startswith(_REF):
                    yield inner.removeprefix(_REF)
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _named(kinds: Iterable[Any]) -> dict[str, Any]:
    """msgspec's names of components → the structs: short names, and long ones where short ones are the same."""
    named: dict[str, Any] = {}
    for struct in _structs(types.multi_type_info(kinds)):
        for name in (_short(struct), f"{struct.__module__}.{struct.__qualname__}"):
            named[re.sub(r"[^a-zA-Z0-9.\-_]", "_", name)] = struct
    return named


def _structs(infos: Iterable[types.Type]) -> Iterator[Any]:
    """The structs and enums in these types, each once."""
    seen: set[Any] = set()
    left: list[Any] = list(infos)
    while left:
        info = left.pop()
        match info:
            case types.StructType() | types.EnumType():
                if info.cls not in seen:
                    seen.add(info.cls)
                    yield info.cls
                    left += [field.type for field in getattr(info, "fields", ())]
            case types.Metadata():
                left.append(info.type)
            case types.CollectionType():
                left.append(info.item_type)
            case types.TupleType():
                left += info.item_types
            case types.DictType():
                left += [info.key_type, info.value_type]
            case types.UnionType():
                left += info.types


def _short(struct: Any) -> str:
    """msgspec's own name of a component, before it is made of harmless characters."""
    origin = get_origin(struct)
    if origin is None:
        return str(struct.__name__)
    return f"{origin.__name__}[{', '.join(getattr(kind, '__name__', str(kind)) for kind in get_args(struct))}]"


def _component_names(structs: Sequence[Any]) -> dict[Any, str]:
    """The components' names in our document. Structs of one name get that of their module before it."""
    names = {struct: _vendor(struct) + _plain(struct) for struct in structs}
    taken = list(names.values())
    for struct, name in names.items():
        if taken.count(name) > 1:
            module = struct.__module__.rpartition(".")[2].title().replace("_", "")
            names[struct] = _vendor(struct) + module + _plain(struct)
    if len(set(names.values())) < len(names):
        raise ValueError(f"two structs have one name: {sorted(names.values())}")
    return names


def _plain(struct: Any) -> str:
    """`CacheList` as it is, `ObjectList[EndpointObject]` as `EndpointObjectList`."""
    origin = get_origin(struct)
    if origin is None:
        return str(struct.__name__).strip("_")
    return "".join(kind.__name__ for kind in get_args(struct)) + str(origin.__name__)


def _vendor(struct: Any) -> str:
    return next((name for module, name in _VENDORS.items() if struct.__module__.startswith(module)), "")


def _written(struct: Any, schema: Schema) -> list[str]:
    """The fields that are always written, beside those without a default."""
    kind = get_origin(struct) or struct
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return list(schema.get("required", []))
    config, tag = (
        kind.__struct_config__,
        ([kind.__struct_config__.tag_field] if kind.__struct_config__.tag_field else []),
    )
    if config.omit_defaults:
        return list(schema["required"])
    return [
        *tag,
        *(field.encode_name for field in msgspec.structs.fields(kind) if field.default is not msgspec.UNSET),
    ]


def _rewritten(schema: Any, renamed: Mapping[str, str]) -> Any:
    """A schema with our names of components, and docstrings as running text."""
    if isinstance(schema, list):
        return [_rewritten(inner, renamed) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        match key, value:
            case "properties", dict():  # whose keys are names of fields
                out[key] = {name: _rewritten(inner, renamed) for name, inner in value.items()}
            case "$ref", str():
                out[key] = renamed[value]
            case "mapping", dict() if all(isinstance(target, str) for target in value.values()):
                out[key] = {tag: renamed.get(target, target) for tag, target in value.items()}
            case "description", str():
                out[key] = running_text(value)
            case (("default" | "enum" | "examples"), _):
                out[key] = value
            case _:
                out[key] = _rewritten(value, renamed)
    if "enum" in out and "type" not in out and all(isinstance(value, str) for value in out["enum"]):
        out["type"] = "string"
    return out


def running_text(doc: str) -> str:
    """A docstring without the line ends within its paragraphs; those of lists stay."""
    paragraphs = re.split(r"\n\s*\n", cleandoc(doc))
    return "\n\n".join(re.sub(r"\n(?!\s*[-*] )\s*", " ", paragraph) for paragraph in paragraphs)
