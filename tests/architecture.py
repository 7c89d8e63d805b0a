"""The rules that the code's structure keeps, as functions of a tree: each returns what breaks it, a line a violation.

`test_architecture.py` runs them on this tree, and on small trees in which each violation was planted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOMS: Mapping[str, frozenset[str]] = {
    "turnpike": frozenset(
        (
            *("gateway", "engine", "webhooks", "billing", "tenancy", "prompt_cache", "response_store", "audit_log"),
            *("file_store", "batch_store", "tracing", "waterfall", "model_files", "protocol", "storage"),
        )
    ),
    "gateway": frozenset(
        (
            *("webhooks", "billing", "tenancy", "prompt_cache", "response_store", "tracing", "waterfall", "audit_log"),
            *("model_files", "file_store", "batch_store", "protocol", "storage"),
        )
    ),
    "engine": frozenset(
        (
            *("model_files", "protocol", "prompt_cache.kv", "prompt_cache.model_digest", "prompt_cache.placement"),
            *("prompt_cache.tiers", "storage.disk_space", "storage.reported_error"),
        )
    ),
    "webhooks": frozenset({"audit_log", "storage"}),
    "billing": frozenset({"audit_log", "storage"}),
    "response_store": frozenset({"prompt_cache.promise", "audit_log", "storage"}),
    "file_store": frozenset(
        {"response_store.sealing", "prompt_cache.promise", "prompt_cache.tables", "audit_log", "storage"}
    ),
    "batch_store": frozenset({"file_store", "response_store.sealing", "audit_log", "storage"}),
    "tenancy": frozenset({"webhooks.addresses", "webhooks.checked_requests", "audit_log", "storage"}),
    "prompt_cache": frozenset({"audit_log", "model_files", "protocol", "storage"}),
    "tracing": frozenset({"waterfall", "protocol", "storage"}),
    "waterfall": frozenset({"protocol", "storage"}),
    "audit_log": frozenset({"storage"}),
    "protocol": frozenset(),
    "model_files": frozenset(),
    "storage": frozenset(),
    "migrations": frozenset(
        {
            *("storage", "audit_log.tables", "billing.tables", "tenancy.tables", "tenancy.users.tables"),
            "tenancy.identity.tables",
            *("webhooks.tables", "prompt_cache.tables", "response_store.tables", "waterfall.tables"),
            *("file_store.tables", "batch_store.tables"),
        }
    ),
}
"""What each room may import, beside itself."""

FOLDERS: Mapping[str, Sequence[str]] = {
    "protocol": (
        "addresses",
        "prefixes",
        "grammar_limits",
        "message",
        "adapters",
        "metric_help",
        "service_names",
        "replicas",
        "requests",
        "trace_context",
        "frames",
    ),
    "model_files": (
        "adapter_config",
        "adapter_file",
        "context_length",
        "gguf_values",
        "gguf_file",
        "gguf_tokenizer",
        "gguf_config",
        "model_documents",
        "adapter_trial",
    ),
    "storage": ("reported_error", "backoff", "bus", "redis_script", "disk_space", "free_text", "database"),
    "audit_log": (
        *("actors", "tables", "leaf_forms", "recorded_rows", "record", "anchors", "reading", "csv_rows"),
        "verification",
    ),
    "tenancy": (
        "rights",
        "keys",
        "tables",
        "directory",
        "repositories",
        "administration",
        "rate_limits",
        "authenticator",
        "users",
        "identity",
    ),
    "prompt_cache": ("placement", "kv", "model_digest", "tiers", "tables", "promise", "history"),
    "billing": (
        *(
            "calendar",
            "money",
            "usage",
            "tables",
            "ledger",
            "events",
            "service_levels",
            "holds",
            "spool",
            "budgets",
            "integrity",
        ),
        *(
            "retention",
            "platform_settings",
            "pending_changes",
            "replica_journals",
            "transaction",
            "periods",
            "prices",
            "receipts",
            "accounts",
        ),
        *("rating", "settlement", "invoices", "reports", "reservation", "exports", "approvals", "payments"),
        "verification",
    ),
    "waterfall": ("marks", "record", "bars", "tables", "store", "writer", "refused_requests", "refused_writer"),
    "tracing": ("names", "options", "spans", "otlp", "exporter"),
    "webhooks": ("addresses", "checked_requests", "signing", "tables", "endpoints", "sending", "dispatch"),
    "file_store": ("tables", "blobs", "sealed_content", "store", "uploads", "adapters", "adapter_residency"),
    "batch_store": ("tables", "records", "store", "running"),
    "response_store": ("tables", "records", "sealing", "policies", "store", "running", "idempotency"),
    "engine": (
        *("errors", "model_config", "kernels", "grammar", "sampling", "scheduling", "options", "device"),
        *(
            "quantization",
            "kv_cache",
            "attention_backends",
            "weights",
            "layers",
            "models",
            "adapters",
            "execution",
            "speculation",
            "core",
            "startup",
            "foreign",
            "server",
        ),
    ),
    "gateway": (
        *("errors", "generation_request", "request_context", "conversation", "metering", "served_models", "fleet"),
        *(
            "adapters",
            "limits",
            "admission",
            "metrics",
            "recovery",
            "generation",
            "dialects",
            "kept_responses",
            "http",
            "idempotency",
            "batches",
            "services",
            "openapi",
            "endpoints",
        ),
        *("admin", "scim", "console", "app", "server"),
    ),
    "gateway/admin": (
        *("access", "refusals", "operation", "users", "keys", "invoices", "money", "tenants"),
        *(
            "usage",
            "figures",
            "requests",
            "overview",
            "fleet",
            "draining",
            "playground",
            "audit",
            "approvals",
            "platform",
            "routes",
            "in_process",
        ),
    ),
    "turnpike": (
        *("logs", "settings", "admin_services", "processes", "command_line", "operator_identity", "command_context"),
        *("api", "demonstration", "doctor", "commands", "cli"),
    ),
}
"""The folders of each room, or of a large folder in it, and modules beside them: each may import those before it."""

_OPENS_A_SESSION = frozenset({"now", "reading", "transaction", "direct", "ping"})
MOST_LOOSE = 6
"""How many modules may lie beside the folders of a room that has more than a dozen."""
HEAVY = frozenset({"torch", "triton", "transformers"})
WAYS_TO_THE_DEVICES = ("engine.execution.executor.", "engine.execution.disk_tier.")
NAMES_FOR_NOTHING = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
QUERY_MODULES = (
    *("storage/", "audit_log/", "billing/", "webhooks/", "migrations/", "tenancy/repositories.py"),
    *("tenancy/directory.py", "tenancy/rate_limits.py", "tenancy/administration/suspension.py", "tenancy/users/"),
    "tenancy/identity/",
    *("prompt_cache/promise/", "prompt_cache/history/", "response_store/", "waterfall/store.py"),
    *("file_store/", "batch_store/"),
    "waterfall/refused_requests.py",
)
"""Where a query may be written. Elsewhere rows come from a repository, or from billing."""
TENANT_TABLES = frozenset(
    (
        *("usage_event", "usage_fact", "hold_batch", "balance", "grant", "project", "api_key", "ended_hold"),
        *("ledger_txn", "rollup_hour", "budget", "invoice", "billing_profile", "webhook_endpoint", "export_job"),
        *("party_change", "einvoice", "vat_check", "advance_deduction", "rate_limit", "lease", "ended_lease"),
        *("lease_tag", "membership"),
        *("cache_request", "cache_prefix", "cache_day", "cache_history_day", "request_waterfall", "refused_request"),
        *("audit_entry", "audit_chain", "audit_anchor", "service_hour"),
        *("payment_customer", "auto_top_up", "top_up", "pushed_document", "cash_receipt", "payment_refund"),
        *("payment_dispute", "finance_task", "payment_reminder", "reminder_policy"),
        *("stored_response", "stored_response_events", "response_policy", "idempotency_claim"),
        *("stored_file", "file_reservation", "upload", "upload_part", "batch", "batch_line", "batch_part", "adapter"),
        "adapter_residency",
        *("receipt_day", "receipt_policy", "sign_in_policy", "identity_provider", "identity_group"),
        *("directory", "directory_user", "directory_group", "directory_member"),
    )
)
"""Tables whose rows belong to a tenant."""

AUDITED_TABLES = frozenset(
    (
        *("tenant", "project", "api_key", "budget", "platform_setting", "contract_terms"),
        *("price_book", "price_sheet", "price_interval", "price_change", "billing_period", "journal_loss"),
        *(
            "billing_profile",
            "legal_entity",
            "party_change",
            "vat_check",
            "invoice",
            "invoice_payment",
            "export_job",
            "webhook_endpoint",
            *("identity_provider", "identity_domain", "identity_group", "user_identity", "passkey", "sign_in_policy"),
            *("directory", "directory_user", "directory_group", "directory_member"),
        ),
        *("cache_scope_key", "shared_prefix", "gateway_epoch", "response_policy", "receipt_policy"),
        *("user_account", "credential", "membership", "pending_change", "rate_limit"),
        *("payment_customer", "auto_top_up", "top_up", "pushed_document", "cash_receipt", "payment_refund"),
        *("payment_dispute", "finance_task", "payment_reminder", "reminder_policy"),
        "test_clock",
    )
)
"""Tables that say something of money, access, sharing or prices that people decide: whoever writes one records it."""
UNAUDITED_TABLES = frozenset(
    (
        *("audit_entry", "audit_chain", "audit_anchor"),
        # who is signed in now, and what was tried: signing in and what tokens are used for are recorded
        *("user_session", "one_time_token", "sign_in_count"),
        # written with every request, or by rules that are recorded where they are set
        *("usage_fact", "usage_traits", "usage_batch", "usage_chain", "rollup_hour", "refused_settlement", "outbox"),
        "service_hour",
        *(
            "hold_batch",
            "ended_hold",
            "budget_charge",
            "budget_window",
            "storage_event",
            "residency_event",
            "lease_storage_hour",
        ),
        "residency_event",
        *("lease", "ended_lease", "lease_tag", "lease_blocks"),
        *("cache_request", "cache_prefix", "cache_day", "cache_history_day", "request_waterfall", "refused_request"),
        *("stored_response", "stored_response_events", "idempotency_claim"),
        # that a client adds or removes one is recorded; how the work of a batch goes on is not
        *("stored_file", "file_reservation", "upload", "upload_part", "batch", "batch_line", "batch_part", "adapter"),
        "adapter_residency",
        *("replica_journal", "journal_of_epoch", "webhook_delivery", "webhook_attempt", "recon_run"),
        # written by money transactions, beside what is recorded
        *(
            "balance",
            "grant",
            "grant_balance",
            "ledger_txn",
            "ledger_entry",
            "seal",
            "seal_checkpoint",
            "receipt_day",
            "number_series",
            "invoice_line",
            "einvoice",
            "advance_deduction",
        ),
        # what a provider or a bank told, and the work that follows: what comes of it is recorded
        *("payment_inbox", "payment_job", "payment_reconciliation", "bank_statement"),
        "exchange_rate",  # what a bank publishes: sealed
        # what a price sheet consists of and leads to
        *("price", "price_row", "price_version", "price_resolution"),
    )
)
"""All other tables."""


@cache
def parsed(path: Path) -> ast.Module:
    """The module, parsed once for all who look at it."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the module's syntax tree."""
    return tuple(ast.walk(parsed(path)))


def modules(root: Path, rooms: Iterable[str] = ROOMS) -> Iterator[Path]:
    """The modules of these rooms."""
    for room in rooms:
        yield from sorted((root / room).rglob("*.py"))


def imports(root: Path, path: Path) -> Iterator[tuple[str, str]]:
    """Where each import stands, and the dotted name that it imports."""
    where = path.relative_to(root).as_posix()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((f"{where}:{node.lineno}", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module if node.level == 0 else f"relative.{node.module}"
            yield from ((f"{where}:{node.lineno}", f"{base}.{alias.name}") for alias in node.names)


def imports_against_the_arrows(root: Path) -> list[str]:
    """Imports of a room that the importing room's arrows do not name, and relative imports."""
    wrong = []
    for path in modules(root):
        room = path.relative_to(root).parts[0]
        for where, name in imports(root, path):
            top = name.split(".")[0]
            if top == "relative":
                wrong.append(f"{where} imports relatively")
            elif top in ROOMS and top != room and not any(f"{name}.".startswith(f"{a}.") for a in ROOMS[room]):
                wrong.append(f"{where} imports {name}")
    return wrong


def imports_against_the_order(root: Path) -> list[str]:
    """Imports inside a room of a folder that comes later in FOLDERS, and folders that FOLDERS does not name."""
    wrong = []
    for folder in FOLDERS:
        package = folder.replace("/", ".")
        order = {name: position for position, name in enumerate(FOLDERS[folder])}
        for path in modules(root, [folder]):
            here = path.relative_to(root / folder).with_suffix("").parts[0]
            if here == "__init__":
                continue
            if here not in order:
                wrong.append(f"{path.relative_to(root).as_posix()}: FOLDERS has no {here} in {folder}")
                continue
            for where, name in imports(root, path):
                target = name.removeprefix(f"{package}.").split(".")[0]
                if name.startswith(f"{package}.") and order.get(target, len(order)) > order[here]:
                    wrong.append(f"{where} imports {name}, which comes after {package}.{here}")
    return wrong


def cycles_below_folders(root: Path) -> list[str]:
    """Import cycles through folders inside folders, at any depth below a room's own."""
    found = []
    for package in sorted({path.parent for path in modules(root)}):
        folders = [child for child in package.iterdir() if (child / "__init__.py").exists()]
        if not folders or package.parent == root:
            continue
        prefix = ".".join(package.relative_to(root).parts)
        graph: dict[str, set[str]] = {}
        for path in sorted(package.rglob("*.py")):
            here = path.relative_to(package).with_suffix("").parts[0]
            inside = (name for _, name in imports(root, path) if name.startswith(prefix + "."))
            targets = {name.split(".")[prefix.count(".") + 1] for name in inside}
            graph.setdefault(here, set()).update(targets - {here})
        found += [
            f"{prefix}.{folder.name} imports itself through {sorted(graph[folder.name])}"
            for folder in folders
            if folder.name in _reachable(graph, folder.name)
        ]
    return found


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
    return seen


def too_many_loose_modules(root: Path) -> list[str]:
    """Rooms of more than a dozen modules with more than MOST_LOOSE beside their folders."""
    wrong = []
    for room in FOLDERS.keys() & ROOMS.keys():
        loose = [path.name for path in (root / room).glob("*.py") if path.name != "__init__.py"]
        if len(list((root / room).rglob("*.py"))) > 12 and len(loose) > MOST_LOOSE:
            wrong.append(f"{room}: {', '.join(sorted(loose))}")
    return wrong


def heavy_imports_outside_the_engine(root: Path) -> list[str]:
    """Imports of libraries that take seconds to load, by anything but the engine."""
    return [
        f"{where} imports {name}"
        for path in modules(root)
        if path.relative_to(root).parts[0] != "engine"
        for where, name in imports(root, path)
        if name.split(".")[0] in HEAVY
    ]


def other_ways_to_the_devices(root: Path) -> list[str]:
    """What reaches the devices from the engine's core or server otherwise than by the executor and the disk tier."""
    core = [path for folder in ("core", "server") for path in modules(root, [f"engine/{folder}"])]
    imported = [
        f"{where} imports {name}"
        for path in core
        for where, name in imports(root, path)
        if name.startswith("engine.execution.") and not name.startswith(WAYS_TO_THE_DEVICES)
    ]
    return imported + [
        f"{path.relative_to(root).as_posix()}:{node.lineno} reads the runner"
        for path in core
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "runner"
    ]


def modules_named_for_nothing(root: Path) -> list[str]:
    """Modules and folders whose name says nothing of what is in them."""
    paths = (path.relative_to(root) for path in modules(root))
    return [path.as_posix() for path in paths if NAMES_FOR_NOTHING & set(path.with_suffix("").parts)]


def modules_without_a_purpose(root: Path) -> list[str]:
    """Modules without a docstring."""
    return [
        path.relative_to(root).as_posix()
        for path in modules(root)
        if path.stat().st_size and not ast.get_docstring(parsed(path))
    ]


def floats_in_money(root: Path) -> list[str]:
    """Floats and true divisions in billing. A path may be divided by a text; anything else says `# not money`."""
    wrong = []
    for path in modules(root, ["billing"]):
        lines = path.read_text().splitlines()
        for node in nodes(path):
            is_float = (isinstance(node, ast.Constant) and isinstance(node.value, float)) or (
                isinstance(node, ast.Name) and node.id == "float"
            )
            divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not _is_text(node.right)
            if (is_float or divides) and isinstance(node, ast.expr) and "# not money" not in lines[node.lineno - 1]:
                wrong.append(f"{path.relative_to(root).as_posix()}:{node.lineno} {lines[node.lineno - 1].strip()}")
    return wrong


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def queries_outside_their_modules(root: Path) -> list[str]:
    """Calls that make a query, outside QUERY_MODULES."""
    return [
        f"{path.relative_to(root).as_posix()}:{call.lineno}"
        for path in modules(root)
        if not path.relative_to(root).as_posix().startswith(QUERY_MODULES)
        for call in _calls(path, "select", "text", "sa.text", "sa.select", "insert")
    ]


_SQL_ON_TENANTS = re.compile(rf'\b(from|join|into|update)\s+"?({"|".join(sorted(TENANT_TABLES))})\b', re.I)


def queries_without_a_tenant(root: Path) -> list[str]:
    """Functions that use a tenant's table, by its object or in SQL text, and name no tenant.

    A query over all tenants says why in a comment that begins `# all tenants:`.
    """
    wrong = []
    for path in modules(root):
        where = path.relative_to(root).as_posix()
        if not where.startswith(QUERY_MODULES) or where.startswith("migrations/") or "tables" in path.stem + where:
            continue
        tables = _tenant_tables_imported(path)
        lines = path.read_text().splitlines()
        for function in _outermost_functions(path):
            source = "\n".join(lines[function.lineno - 1 : function.end_lineno])
            used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} & tables
            if "tenant" not in source and (used or _SQL_ON_TENANTS.search(source)):
                wrong.append(f"{where}:{function.lineno} {function.name}")
    return wrong


def _tenant_tables_imported(path: Path) -> set[str]:
    return {
        alias.asname or alias.name
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and ".tables" in f".{node.module}"
        for alias in node.names
        if alias.name in TENANT_TABLES
    }


def second_connections_in_a_transaction(root: Path) -> list[str]:
    """Functions that take a session and open another: while all connections are taken by such, they wait for each
    other. A clock is asked in the session (`Database.now_in`), and what needs a connection of its own comes before."""
    wrong = []
    for path in modules(root):
        for function in _outermost_functions(path):
            arguments = (*function.args.args, *function.args.kwonlyargs)
            if "AsyncSession" not in (ast.unparse(each.annotation) for each in arguments if each.annotation):
                continue
            calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            opened = [each for each in calls if isinstance(each, ast.Attribute) and each.attr in _OPENS_A_SESSION]
            if any(ast.unparse(each.value).endswith("database") for each in opened):
                wrong.append(f"{path.relative_to(root).as_posix()}:{function.lineno} {function.name}")
    return wrong


def changes_without_an_entry(root: Path) -> list[str]:
    """Functions that write an audited table and do not record it (`audit_log.record`), nor say why not in a comment
    that begins `# no entry:`."""
    wrong = []
    for path in modules(root):
        where = path.relative_to(root).as_posix()
        if where.startswith(("migrations/", "audit_log/")):
            continue
        models = _audited_names(path)
        lines = path.read_text().splitlines() if models else []
        for function in _outermost_functions(path) if models else ():
            source = "\n".join(lines[function.lineno - 1 : function.end_lineno])
            if _writes(function, models) and not re.search(r"\b_?record_\w+\(|\b_record\(|# no entry:", source):
                wrong.append(f"{where}:{function.lineno} {function.name}")
    return wrong


def _audited_names(path: Path) -> set[str]:
    """The names of audited tables, and of their classes, that a module imports."""
    return {
        alias.asname or alias.name
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and ".tables" in f".{node.module}"
        for alias in node.names
        if re.sub(r"(?<!^)(?=[A-Z])", "_", alias.name.removesuffix("Row")).lower() in AUDITED_TABLES
    }


def _writes(function: ast.AST, tables: set[str]) -> bool:
    """Whether there is an INSERT, UPDATE or DELETE of one of the tables, or a new object of one of the classes."""
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        made = name in tables and name[:1].isupper()
        changed = name in ("insert", "update", "delete") and call.args and getattr(call.args[0], "id", "") in tables
        if made or changed:
            return True
    return False


def _outermost_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    waiting: list[ast.AST] = list(parsed(path).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            waiting += node.body


def values_formatted_into_sql(root: Path) -> list[str]:
    """Calls of text() with a text that is put together from values: every text() takes a constant."""
    return [
        f"{path.relative_to(root).as_posix()}:{call.lineno}"
        for path in modules(root)
        if path.relative_to(root).parts[0] != "migrations"
        for call in _calls(path, "text", "sa.text", "sqlalchemy.text")
        if any(isinstance(argument, ast.JoinedStr | ast.BinOp) for argument in call.args)
    ]


def _calls(path: Path, *functions: str) -> Iterator[ast.Call]:
    last = {name.split(".")[-1] for name in functions}
    for node in nodes(path):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            if called in last and ast.unparse(node.func) in functions:
                yield node


def paths_of_a_workplace(root: Path) -> list[str]:
    """Lines that name somebody's own folders."""
    return [
        f"{path.relative_to(root).as_posix()}:{number}"
        for path in modules(root)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"/(work|root|home)/", line)
    ]


def unmirrored_test_folders(root: Path) -> list[str]:
    """Folders of tests/ROOM that mirror no folder of the room."""
    wrong = []
    for room in ROOMS:
        for folder in sorted(path.parent for path in (root / "tests" / room).rglob("__init__.py")):
            inside = folder.relative_to(root / "tests")
            if any(folder.glob("test_*.py")) and not (root / inside).is_dir():
                wrong.append(f"tests/{inside.as_posix()} mirrors no {inside.as_posix()}/")
    return wrong
