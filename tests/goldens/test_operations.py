"""The operations of the API: clients are generated from their ids."""

from __future__ import annotations

from gateway.app import application_of
from gateway.openapi.document import make_document, operations_of
from gateway.openapi.stand_in import stand_in
from tests.goldens import golden


def test_operations() -> None:
    document = make_document(application_of(stand_in()))
    golden.check(
        "operations",
        {operation["operationId"]: f"{method} {path}" for method, path, operation in operations_of(document)},
    )
