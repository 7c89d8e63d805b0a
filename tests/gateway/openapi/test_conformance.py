"""The gateway against its own document: generated requests, right and wrong ones, answered as the document says.

`SCHEMATHESIS_CASES`: how many requests; 2,000 in `make test-long`.
"""

from __future__ import annotations

import asyncio
import copy
import os
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from billing.platform_settings import APPROVALS, PlatformSettings
from billing.prices import PriceCatalog
from fake_stripe.server import FakeStripe
from gateway.openapi.schemas import reachable
from storage.database.database import Database
from tests.billing.payments.desk import collecting_by
from tests.gateway.access.proofs import Call
from tests.gateway.access.world import World
from tests.gateway.endpoints.test_message_caching import LEASED
from tests.gateway.openapi.test_access import Operation, operations, owner_of
from tests.gateway.stack import running_stack

CASES = int(os.environ.get("SCHEMATHESIS_CASES", "185"))
EXPECTED = (503, 529)
"""Answers of a server that is overloaded or has no replica, which are honest."""


@pytest.fixture
async def world(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[World]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    async with (
        FakeStripe() as stripe,
        collecting_by(stripe) as provider,
        running_stack(stocked_sqlite_url, tmp_path, model_folder, payments=provider) as stack,
    ):
        made = await World.around(stack)
        yield made
        await made.close()


def closed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with answers that may have no fields but those that it names."""
    strict: dict[str, Any] = copy.deepcopy(dict(document))
    components = strict["components"]["schemas"]
    bodies = [
        operation.get("requestBody", {}) for methods in strict["paths"].values() for operation in methods.values()
    ]
    decoded = reachable(bodies, components)
    for name, schema in components.items():
        if name not in decoded and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
    return strict


def problems_of(answer: Any, written: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an answer that the schemas do not say."""
    status = answer.status_code
    if status >= 500 and status not in EXPECTED:
        yield f"a server error: {answer.text[:300]}"
    if status >= 400 and str(status) in written["responses"]:
        error = answer.json().get("error")
        if not isinstance(error, dict):  # another protocol's form, such as SCIM's, which its schema says
            return
        code = error.get("code", error.get("details", {}).get("error_code"))
        known = written["responses"][str(status)]["x-error-codes"]
        if code is not None and code not in known:
            yield f"{status} with the code {code}, which is none of {known}: {answer.text[:300]}"


def tried(
    schema: Any, operation: Operation, call: Call, headers: Mapping[str, str], base: str, cases: int
) -> list[str]:
    """Try an operation this often; what was wrong. Half of the requests have the ids of real objects."""
    from schemathesis import GenerationMode
    from schemathesis.checks import load_all_checks
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi import checks

    load_all_checks()
    conformance = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    described = schema[operation.path][operation.method]
    real = {"path_parameters": dict(call.path)} if call.path else {}
    strategies = [
        described.as_strategy(generation_mode=mode, **given_)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for given_ in ({}, real)
    ]
    found: dict[str, str] = {}

    @settings(
        max_examples=cases,
        derandomize="SCHEMATHESIS_CASES" not in os.environ,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(strategies))
    def run(case: Any) -> None:
        # A wrong Host is refused before there is an operation.
        (case.headers or {}).pop("host", None)
        answer = case.call(base_url=base, headers={**call.headers, **headers})
        wrong = list(problems_of(answer, operation.written))
        try:
            case.validate_response(answer, checks=conformance)
        except FailureGroup as group:
            wrong += [f"{error.title}: {error.message[:400]}" for error in group.exceptions]
        for problem in wrong:
            found.setdefault(
                problem.partition(":")[0], f"{case.as_curl_command()[:600]}\n    {answer.status_code} {problem}"
            )

    run()
    return [f"{operation.id}: {problem}" for problem in found.values()]


@pytest.mark.slow
async def test_generated_requests_are_answered_as_the_document_says(world: World) -> None:
    import schemathesis

    world.stack.say("said")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_dict(closed(world.document))
        every = operations(world.document)
        problems: list[str] = []
        for operation in every:
            # A generated request may have turned approvals on, or drained the only replica that answers. Then nothing
            # could be prepared any more.
            await PlatformSettings(world.stack.database).set(APPROVALS, "off", by="test", via="command")
            for link in world.stack.gateway.services.fleet.links:
                if link.up and link.draining:
                    await link.drain(drain=False)
            call = await operation.proof.make(world, world.a1)
            headers = owner_of(world, operation, call)
            cases = -(-CASES // len(every))
            problems += await asyncio.to_thread(tried, schema, operation, call, headers, world.stack.base, cases)
    assert not problems, "\n".join(problems)
