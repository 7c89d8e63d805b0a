"""Modules of another size than usual, each with the reason: a module is one idea, in some 100 to 400 lines.

Small is what `scripts/count_code.py` counts under SMALL lines of code. Model families, layers, tables and commands may
be small without being listed, since each is a module by itself. Long is what has more than LONGEST lines in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts.count_code import SMALL, count, product_modules

LONGEST = 400
"""Lines of a module, docstrings and blank lines included."""
_A_MODULE_EACH = re.compile(r"engine/(models|layers)/\w+\.py|(.+/)?tables(/\w+)?\.py|turnpike/commands/.+\.py")

SMALL_MODULES: Mapping[str, Iterable[str]] = {
    "errors that many raise and catch, apart from what raises them": (
        *("storage/reported_error.py", "engine/errors.py", "billing/invoices/errors.py", "billing/prices/errors.py"),
        *("tenancy/users/errors.py", "billing/payments/errors.py"),
    ),
    "a type that several modules hand to each other, and that none of them owns": (
        *("protocol/message.py", "protocol/addresses.py", "protocol/adapters.py", "engine/options.py"),
        *("engine/foreign/foreign_run.py", "engine/execution/cuda/fused_pass.py"),
        "billing/rating/lines.py",
        *("billing/verification/findings.py", "response_store/records.py"),
        *("gateway/generation/dependencies.py", "gateway/admission/request_timeouts.py", "tracing/options.py"),
        "turnpike/doctor/findings.py",
        *("tenancy/users/identifiers.py", "turnpike/api/operations.py"),
    ),
    "an interface: its implementations, or those who are asked, are elsewhere and must not import each other": (
        *("billing/accounts/advance_invoicing.py", "billing/budgets/store.py", "billing/reservation/hold_hooks.py"),
        "engine/speculation/drafter.py",
        *("engine/scheduling/policy.py", "gateway/endpoints/tenant_scope.py"),
    ),
    "what a package shows of itself to others": ("billing/prices/__init__.py",),
    "a published algorithm, format or protocol, tested alone": (
        *("billing/integrity/canonical_json.py", "engine/sampling/counter_random.py", "tenancy/users/totp.py"),
        "engine/quantization/measured_losses.py",
        *("webhooks/signing.py", "engine/kernels/dependent_launch.py", "gateway/http/cache_status.py"),
        *("gateway/http/client_address.py", "protocol/trace_context.py"),
        *("protocol/prefixes.py", "gateway/fleet/conversation_key.py"),
    ),
    "a frozen form of bytes: what reads and writes it may change, this may not": (
        *("audit_log/leaf_forms.py", "audit_log/csv_rows.py"),
        *("prompt_cache/model_digest.py",),
    ),
    "a general mechanism that several rooms or folders use": (
        "storage/database/keyring.py",
        *("storage/backoff.py", "storage/free_text.py", "storage/database/clock.py", "storage/database/outbox.py"),
        "storage/database/test_clock.py",
        *("storage/database/sql_arrays.py", "engine/scheduling/lazy_heap.py"),
        "gateway/recovery/background_tasks.py",
        "engine/execution/stopwatch.py",
        "gateway/http/downloads.py",
    ),
    "what is put together of parts, for one process": ("tenancy/identity/service.py",),
    "a question that a database is asked": ("billing/holds/age.py", "storage/database/server_facts.py"),
    "one rule that several paths must keep alike": (
        "gateway/adapters/resident_adapters.py",
        *("gateway/batches/line_pace.py", "gateway/batches/batch_notes.py"),
        "billing/accounts/idempotency.py",
        *("engine/scheduling/flow_turns.py", "model_files/context_length.py"),
        *("tenancy/users/tokens.py", "tenancy/users/changes.py"),
        *("gateway/dialects/max_cost.py", "gateway/dialects/openai/diagnostics.py", "engine/sampling/validation.py"),
        "gateway/dialects/speculation.py",
        "billing/reservation/billed_writes.py",
        *("billing/accounts/lone_grants.py", "billing/invoices/accounting/losses.py", "billing/prices/formulas.py"),
    ),
    "what others are told of a change: the audit log, the outbox, replicas, leases": (
        "tenancy/administration/replicas.py",
        *("gateway/fleet/service_relay.py", "gateway/metering/lease_outcomes.py"),
        "billing/payments/notices.py",
    ),
    "a bound with a state of its own, tested against hostile input alone": (
        *("engine/sampling/grammar_allowance.py", "gateway/limits/expected_tokens.py"),
        "gateway/batches/line_places.py",
        *("engine/core/timeouts.py", "engine/speculation/acceptance.py"),
        *("engine/sampling/guess_time.py", "engine/speculation/asking_time.py"),
        *("gateway/admission/request_size.py", "gateway/kept_responses/earlier_items.py"),
    ),
    "work of another thread or moment than that of its only user": (
        "turnpike/processes/adapter_upkeep.py",
        "gateway/batches/line_queue.py",
        "engine/startup/warm_up.py",
        "engine/kernels/block_sums.py",
        "engine/execution/pending_purges.py",
        "gateway/kept_responses/earlier_items.py",
    ),
    "one of several alike, apart so that each can be read, changed and tested alone": (
        "billing/exports/focus/list_prices.py",
        *("gateway/limits/redis_buckets.py", "gateway/openapi/security.py", "gateway/openapi/page.py"),
        *("gateway/openapi/stand_in.py", "engine/speculation/grammar_drafter.py", "engine/quantization/fp8.py"),
        *("engine/quantization/encoding.py", "engine/startup/weight_formats.py"),
        *("billing/reservation/hooked_holds.py", "gateway/admin/tenants/receipt_policies.py"),
        *("turnpike/demonstration/texts.py", "turnpike/demonstration/past.py"),
        "turnpike/demonstration/stand_in.py",
        "billing/payments/stripe_api/http_client.py",
    ),
}
"""Why a module may have under SMALL lines of code -> the modules."""

LONG_MODULES: Mapping[str, str] = {
    "tenancy/identity/directory_people.py": "people and groups change each other's roles: one order of locks for both",
    "billing/accounts/balances.py": "one balance: put in, paid back and expired, all by the same order of locks",
    "billing/receipts/verifier.py": "one file that tenants copy: it may import nothing of ours",
    "engine/core/engine.py": "the core's one front: what others ask of it, and the step that puts its parts together",
    "engine/scheduling/scheduler.py": "one queue, one set of running requests: who moves between them, in one place",
    "engine/scheduling/fairness/fair_share.py": "the derivation of the constants stands beside them",
    "engine/server/replica.py": "one process, from start to end; its loop, link and journal are beside it",
    "gateway/conversation/output/call_payloads.py": "one class a way of writing calls; all read the same interface",
    "gateway/conversation/output/output_formats.py": "one class a way of writing, and the table of families over them",
    "gateway/generation/generation_task.py": "one state machine: a request's transitions, in one place",
    "gateway/http/http_protocol.py": "one class of uvicorn's, whose hooks share one state",
    "gateway/services.py": "all that a worker is made of, beside what it is given",
    "prompt_cache/history/diagnosis.py": "the causes of a miss are tried in one order",
    "protocol/requests.py": "a table: every field of a request's messages with its meaning",
    "prompt_cache/placement/hit_density.py": "one estimator, whose tables are only meant for it",
    "tenancy/repositories.py": "the queries of three small tables, which one transaction may change together",
    "turnpike/settings/settings.py": "a table: every setting with type, default, bounds and help",
}
"""A module with more than LONGEST lines -> why."""


def modules_of_another_size(
    root: Path,
    small: Mapping[str, Iterable[str]] = SMALL_MODULES,
    long: Mapping[str, str] = LONG_MODULES,
) -> list[str]:
    """Small and long modules that are not listed, and listed ones that are neither any more."""
    listed = {path for paths in small.values() for path in paths}
    found_small, found_long = {}, {}
    for path in product_modules(root):
        name, source = path.relative_to(root).as_posix(), path.read_text()
        lines = count(source)
        if lines < SMALL and (lines or path.name != "__init__.py") and not _A_MODULE_EACH.fullmatch(name):
            found_small[name] = lines
        if (whole := len(source.splitlines())) > LONGEST:
            found_long[name] = whole
    return [
        *(f"{name}: {found_small[name]} lines of code and no reason" for name in sorted(found_small.keys() - listed)),
        *(f"{name}: listed as small, and is not" for name in sorted(listed - found_small.keys())),
        *(f"{name}: {found_long[name]} lines and no reason" for name in sorted(found_long.keys() - long.keys())),
        *(f"{name}: listed as long, and is not" for name in sorted(long.keys() - found_long.keys())),
    ]
