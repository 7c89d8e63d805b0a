"""Makes the OpenAPI 3.1 document of an application's routes, from what they say in `describes` and `demands`.

`x-permission` is the permission that an operation demands, `x-principals` who may call it, `x-fresh` that a session
must have proven its user lately, `x-error-codes` the codes of an answer's errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from types import UnionType
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types.internal_types import PathParameterDefinition
from msgspec import UNSET, Struct

from gateway.generation_request import Dialect
from gateway.http.operations import Events, Files, HeaderParameter, Operation, QueryParameter, operation_of
from gateway.http.policies import ADMIN_PATH, Policy, policy_of
from gateway.http.responses import DIALECT, ERROR_BODIES, VERSION_HEADER
from gateway.openapi.error_answers import error_answers, error_codes
from gateway.openapi.examples import ExampleMaker, NoExample, shown
from gateway.openapi.parameters import path_parameter
from gateway.openapi.schemas import ComponentSchemas, Schema, reachable, running_text
from gateway.openapi.security import SECURITY_SCHEMES, security_of

Audience: TypeAlias = Literal["all", "tenants"]
Document: TypeAlias = dict[str, Any]

_ENVELOPES: Mapping[Dialect, Any] = {dialect: bodies.Envelope for dialect, bodies in ERROR_BODIES.items()}
_METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")
_HEADERS = {
    "x-request-id": {
        "description": "The request's id, which the server's logs have too. It also comes as `request-id`.",
        "schema": {"type": "string", "examples": ["req_01934f6e0d2a7b3c8e51a9c4d7f60b12"]},
    },
    "retry-after": {
        "description": "After how many seconds the same request may succeed.",
        "schema": {"type": "integer", "examples": [2]},
    },
}
_MEANS = {200: "Done.", 201: "Made.", 202: "Taken on; it is done later.", 204: "Done; there is no body."}
_ABOUT = (
    "Inference in OpenAI's and Anthropic's formats, prompt caching, usage, prices and the administration of tenants. "
    "Amounts of money are decimal strings. Lists are paged by `limit` and `after`. Every answer has `x-request-id`."
)


class DescribedRoute(Struct, frozen=True):
    """One method of a route and what it says of itself; `operation`: None if nothing."""

    method: str
    path: str
    parameters: tuple[PathParameterDefinition, ...]
    handler: HTTPRouteHandler
    policy: Policy
    operation: Operation | None

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """The dialects of its answers: those that a client chooses from by its header, if the route has both."""
        dialect: Dialect | None = self.handler.opt.get(DIALECT)
        if dialect is not None:
            return (dialect,)
        both = self.operation is not None and any(header.name == VERSION_HEADER for header in self.operation.headers)
        return ("openai", "anthropic") if both else ("openai",)


def described_routes(app: Litestar) -> list[DescribedRoute]:
    """Every route and method that the application has, but HEAD beside GET and OPTIONS, which Litestar adds."""
    found = []
    for route in sorted((route for route in app.routes if isinstance(route, HTTPRoute)), key=lambda one: one.path):
        parts = [part if isinstance(part, str) else f"{{{part.name}}}" for part in route.path_components]
        parameters = tuple(part for part in route.path_components if not isinstance(part, str))
        for handler in route.route_handlers:
            found += [
                DescribedRoute(
                    method, f"/{'/'.join(parts)}", parameters, handler, policy_of(handler), operation_of(handler)
                )
                for method in _METHODS
                if method in handler.http_methods
            ]
    return found


def make_document(app: Litestar, audience: Audience = "all", missing: list[str] | None = None) -> Document:
    """The document. For the audience "tenants" it leaves out what only administrators call. `missing` gets the fields
    for which there is no example: where they are required, the document has none."""
    routes = [route for route in described_routes(app) if route.operation is not None]
    schemas = ComponentSchemas(
        [_kind(route.operation.body) for route in routes if route.operation and route.operation.body is not None],
        [*_ENVELOPES.values(), *(kind for route in routes for kind in _answer_kinds(route.operation))],
    )
    writer = _OperationWriter(schemas, [] if missing is None else missing)
    paths: dict[str, Any] = {}
    for route in routes:
        if audience == "all" or not route.path.startswith(ADMIN_PATH):
            paths.setdefault(route.path, {})[route.method.lower()] = writer.operation(route)
    tags = sorted({tag for methods in paths.values() for operation in methods.values() for tag in operation["tags"]})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnpike",
            "version": version("turnpike"),
            "summary": "A multi-tenant inference gateway with prompt caching and exact billing",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
        "servers": [{"url": "/", "description": "This gateway."}],
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": reachable(paths, schemas.components),
            "headers": _HEADERS,
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _kind(shape: Any) -> Any:
    """The type of a shape, which may be an example of it."""
    return type(shape) if isinstance(shape, Struct) else shape


def _shapes(answer: Any) -> tuple[Any, ...]:
    """The shapes of an answer's JSON: several where the dialect or the request decides."""
    if isinstance(answer, UnionType):
        return get_args(answer)
    if isinstance(answer, Events):
        return _shapes(answer.shape)
    if answer is None or isinstance(answer, Files):
        return ()
    given = answer if isinstance(answer, tuple) else (answer,)
    return tuple(shape for shape in given if not isinstance(shape, Files))


def _answer_kinds(operation: Operation | None) -> Iterator[Any]:
    for answer in operation.answers.values() if operation else ():
        yield from (_kind(shape) for shape in _shapes(answer))
        if isinstance(answer, Events):
            yield from answer.types


class _OperationWriter:
    """Writes operations, whose schemas are among those that it is given."""

    def __init__(self, schemas: ComponentSchemas, missing: list[str]) -> None:
        self._schemas = schemas
        self._missing = missing
        self._examples = ExampleMaker(schemas.components)

    def operation(self, route: DescribedRoute) -> dict[str, Any]:
        """The document's operation of a route."""
        operation, policy = route.operation, route.policy
        assert operation is not None, "only described routes are written"
        name = operation_id(route)
        doc = running_text(route.handler.fn.__doc__ or "")
        written: dict[str, Any] = {
            "operationId": name,
            "summary": operation.summary or doc.partition(". ")[0].partition("\n")[0].rstrip("."),
            "description": doc,
            "tags": list(operation.tags) or [(policy.permission or "service").partition(".")[0]],
            "security": security_of(policy, route.path, route.method),
            "x-permission": policy.permission,
            "x-principals": sorted(policy.kinds_for(route.path)) if policy.access != "public" else [],
        }
        if policy.needs_proof(route.method):
            written["x-fresh"] = True
        if operation.deprecated:
            written["deprecated"] = True
        parameters = [
            *(path_parameter(one, operation.path) for one in route.parameters),
            *(self._query(one) for one in operation.query),
            *(_header(one) for one in operation.headers),
        ]
        if parameters:
            written["parameters"] = parameters
        if operation.body is not None:
            written["requestBody"] = {
                "required": operation.body_required,
                "content": {operation.body_type: self._media(operation.body, name, whole=False)},
            }
        errors = error_codes(operation, policy, route.method, route.path)
        written["responses"] = {
            **{str(status): self._answer(operation, status, name) for status in sorted(operation.answers)},
            **error_answers(
                errors,
                route.dialects,
                {key: self._schemas.of(kind) for key, kind in _ENVELOPES.items()},
                operation.error_form,
            ),
        }
        return written

    def _answer(self, operation: Operation, status: int, name: str) -> dict[str, Any]:
        answer = operation.answers[status]
        headers = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}} | {
            header: {"description": text, "schema": {"type": "string"}}
            for header, text in operation.answer_headers.items()
        }
        if isinstance(answer, Files):
            return {
                "description": answer.description,
                "headers": headers,
                "content": {kind: _file(answer) for kind in answer.media_types},
            }
        written: dict[str, Any] = {"description": _MEANS.get(status, "Done."), "headers": headers}
        shapes = _shapes(answer)
        content: dict[str, Any] = {}
        if shapes:
            content["application/json"] = self._media(shapes if len(shapes) > 1 else shapes[0], name, whole=True)
            written["description"] = self._meaning(shapes) or written["description"]
        for other in answer if isinstance(answer, tuple) else ():
            if isinstance(other, Files):
                content |= {kind: _file(other) for kind in other.media_types}
        if isinstance(answer, Events):
            content["text/event-stream"] = {
                "schema": {
                    "type": "string",
                    "description": "Server-sent events, whose data is one of the schemas in `x-event-types`.",
                    "x-event-types": [self._schemas.of(kind) for kind in answer.types],
                },
                "example": answer.example,
            }
        return written | ({"content": content} if content else {})

    def _meaning(self, shapes: Sequence[Any]) -> str:
        """What the first paragraph of the struct's docstring says."""
        doc = getattr(_kind(shapes[0]), "__doc__", None) or ""
        return running_text(doc).partition("\n\n")[0]

    def _media(self, shape: Any, name: str, *, whole: bool) -> dict[str, Any]:
        if isinstance(shape, tuple):
            several = [self._media(one, name, whole=whole) for one in shape]
            return several[0] | {"schema": {"anyOf": [one["schema"] for one in several]}}
        schema = self._schemas.of(_kind(shape))
        if isinstance(shape, Struct):
            return {"schema": schema, "example": shown(shape, whole=whole)}
        return {"schema": schema} | self._example(schema, "", name)

    def _example(self, schema: Schema, name: str, path: str) -> dict[str, Any]:
        try:
            return {"example": self._examples.make(schema, name, path)}
        except NoExample as error:
            self._missing.append(str(error))
            return {}

    def _query(self, parameter: QueryParameter) -> dict[str, Any]:
        schema = value_schema(parameter.type)
        given = {} if parameter.example is UNSET else {"example": parameter.example}
        example = given or self._example(schema, parameter.name, f"query parameter {parameter.name}")
        if parameter.repeated:
            example = {key: [value] for key, value in example.items()}
        written: dict[str, Any] = {
            "name": parameter.name,
            "in": "query",
            "required": parameter.required,
            "description": parameter.description,
            "schema": {"type": "array", "items": schema} if parameter.repeated else schema,
            **example,
        }
        return written | ({"style": "form", "explode": True} if parameter.repeated else {})


def operation_id(route: DescribedRoute) -> str:
    """The operation's id: the handler's name, after `admin_` below /admin/v1."""
    if route.operation is not None and route.operation.operation_id is not None:
        return route.operation.operation_id
    name = str(route.handler.fn.__name__)
    return f"admin_{name}" if route.path.startswith(ADMIN_PATH) else name


def value_schema(kind: Any) -> dict[str, Any]:
    """The schema of a parameter's type, which is no struct."""
    return msgspec.json.schema(kind)


def _file(answer: Files) -> dict[str, Any]:
    """The content of a file: OpenAPI 3.1 has an empty schema for bytes."""
    return {"schema": {}} | ({} if answer.example is UNSET else {"example": answer.example})


def _header(header: HeaderParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if header.values:
        schema["enum"] = list(header.values)
    return {
        "name": header.name,
        "in": "header",
        "required": header.required,
        "description": header.description,
        "schema": schema,
        "example": header.example or next(iter(header.values), ""),
    }


def operations_of(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation of each operation of a document."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation
