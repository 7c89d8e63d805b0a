"""The OpenAPI document of all routes: complete, true to the routes, with examples that its schemas allow."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from litestar import Litestar, Response, get, post
from litestar.params import FromPath
from msgspec import Meta, Struct

from gateway.app import application_of
from gateway.http.operations import describes, operation_of, page, query
from gateway.http.policies import demands
from gateway.openapi.document import described_routes, make_document, operations_of
from gateway.openapi.stand_in import stand_in
from tests.gateway.openapi import document_rules as rules


@pytest.fixture(scope="module")
def app() -> Litestar:
    return application_of(stand_in())


@pytest.fixture(scope="module")
def document(app: Litestar) -> dict[str, Any]:
    return json.loads(json.dumps(make_document(app)))


def test_every_route_is_described(app: Litestar) -> None:
    assert rules.undescribed_routes(app) == []


def test_the_document_has_exactly_the_routes(app: Litestar, document: dict[str, Any]) -> None:
    assert rules.drift(app, document) == []


def test_no_example_is_missing(app: Litestar) -> None:
    missing: list[str] = []
    make_document(app, missing=missing)
    assert missing == []


def test_every_operation_has_description_answer_and_examples(document: dict[str, Any]) -> None:
    assert rules.bare_operations(document) == []


def test_no_schema_is_empty(document: dict[str, Any]) -> None:
    assert rules.empty_schemas(document) == []


def test_every_example_is_what_its_schema_says(document: dict[str, Any]) -> None:
    assert rules.wrong_examples(document) == []


def test_a_tenants_document_knows_nothing_of_administration(app: Litestar) -> None:
    document = make_document(app, "tenants")
    assert document["paths"]
    assert not [path for path in document["paths"] if path.startswith("/admin")]
    assert "NewSheet" not in document["components"]["schemas"], "nor of its structs"
    assert "NewSheet" in make_document(app)["components"]["schemas"]


def test_permissions_and_keys_are_those_of_the_policies(app: Litestar, document: dict[str, Any]) -> None:
    written = {(method, path): operation for method, path, operation in operations_of(document)}
    for route in described_routes(app):
        operation = written[route.method, route.path]
        assert operation["x-permission"] == route.policy.permission
        assert bool(operation["security"]) == (route.policy.access != "public")
        if route.path.startswith("/v1"):
            assert {"session": [], "csrf": []} not in operation["security"], "cookies mean nothing there"


class Thing(Struct):
    """A thing."""

    name: str
    colour: str
    kind: Annotated[str, Meta(examples=["round"])]


class Nothing(Struct):
    pass


@get("/v1/things", opt=demands("usage.read") | describes(Nothing, query=(*page(), query("of", str, ""))))
async def list_things() -> Response[bytes]:
    return Response(b"")


@post("/v1/things/{thing:str}", opt=demands("usage.read") | describes(Thing, body=Thing("a", "red", 7)))  # type: ignore[arg-type]
async def change_thing(thing: FromPath[str]) -> Response[bytes]:
    """Change a thing. It stays what it is."""
    return Response(thing.encode())


@get("/v1/undescribed", opt=demands("usage.read"))
async def undescribed() -> Response[bytes]:
    """Nobody says what this is."""
    return Response(b"")


def test_the_rules_find_what_is_wrong() -> None:
    app = Litestar([list_things, change_thing, undescribed], openapi_config=None)
    missing: list[str] = []
    document = make_document(app, missing=missing)
    assert missing == [
        "query parameter of (a string) has no example: see gateway.openapi.examples.VALUES",
        "change_thing.colour (a string) has no example: see gateway.openapi.examples.VALUES",
    ]
    assert rules.undescribed_routes(app) == ["GET /v1/undescribed: no describes(…)"]
    assert rules.drift(app, document) == ["GET /v1/undescribed is not in the document"]
    assert rules.empty_schemas(document) == ["Nothing is an object without properties"]
    assert rules.wrong_examples(document) == [
        "POST /v1/things/{thing}: body: $.kind: 7 is not of type 'string'",
    ]
    assert rules.bare_operations(document) == [
        "GET /v1/things: no description",
        "GET /v1/things: parameter of has no description or example",
        "POST /v1/things/{thing}: parameter thing has no description or example",
        "POST /v1/things/{thing}: answer 200 application/json has no example",
    ]
    written = document["paths"]["/v1/things/{thing}"]["post"]
    assert (written["operationId"], written["summary"]) == ("change_thing", "Change a thing")
    assert operation_of(change_thing) is not None
