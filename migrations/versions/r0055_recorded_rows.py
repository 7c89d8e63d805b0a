"""Rows whose every change is recorded are compared with the audit log, from what stands now on; reconciliations have
seals; what one person alone gave a tenant is read from the audit log.

Everything is spelled out here and imported from nowhere, so that this step stays what it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0055"
down_revision = "r0054"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PLATFORM = UUID(int=0)
TABLES: tuple[tuple[str, str, str, str, tuple[str, ...], str], ...] = (
    ("legal_entity", "id", "seller", "", ("id", "profile"), ""),
    ("billing_profile", "tenant_id", "billing_profile", "tenant_", ("tenant_id", "seller", "profile"), ""),
    ("budget", "budget_id", "budget", "budget_", (
        "budget_id", "tenant_id", "scope", "subject", "span", "limit_pico", "action", "thresholds", "removed_at",
    ), ""),
    ("balance", "tenant_id", "balance", "tenant_", ("tenant_id", "credit_line"), "credit_line <> 0"),
    ("pending_change", "id", "change", "change_", (
        "id", "kind", "arguments", "summary", "state", "tenant_id", "author", "author_via", "author_person", "reason",
        "created_at", "sha256", "decider", "decider_via", "decision_reason", "decided_at",
    ), ""),
    ("export_job", "id", "export", "export_", (
        "id", "tenant_id", "key_id", "dataset", "period", "format", "created_at", "manifest",
    ), ""),
)  # fmt: skip
"""Tables, their keys, what entries call a row, the columns of its digest, and which rows need an entry."""
RUN = ("id", "period", "events", "lost", "doubled", "unconfirmed", "late", "drift_pico", "report")
ENTRY = (
    *("tenant_id", "number", "at"),
    *("actor_means", "actor_id", "actor_name", "actor_through", "actor_address", "request_id"),
    *("action", "target", "target_id", "project_id", "reason", "before", "after"),
)
_IDS = {"tenant_id", "budget_id", "key_id", "project_id"}
_WITH_ID = {"pending_change", "export_job", "recon_run"}
_CHUNK = 1000
_encode = msgspec.msgpack.encode


class _Id(sa.types.TypeDecorator[UUID]):
    impl = sa.LargeBinary(16)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID() if dialect.name == "postgresql" else sa.LargeBinary(16))

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else value.bytes

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> UUID | None:
        return value if value is None or dialect.name == "postgresql" else UUID(bytes=value)


def upgrade() -> None:
    _seal_runs()
    for table in TABLES:
        _record(table)
    op.drop_table("lone_grant")


def downgrade() -> None:
    op.create_table(
        "lone_grant",
        *(sa.Column(name, ID, nullable=False) for name in ("grant_id", "tenant_id")),
        sa.Column("amount_pico", PICO, nullable=False),
        sa.Column("at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("grant_id", name="pk_lone_grant"),
        sa.ForeignKeyConstraint(["grant_id"], ["grant.id"], name="fk_lone_grant_grant_id_grant"),
        sqlite_strict=True,
    )
    op.create_index("ix_lone_grant_tenant_id_at", "lone_grant", ["tenant_id", "at"])


def _seal_runs() -> None:
    bind, runs = op.get_bind(), _table("recon_run", {*RUN, "at"})
    seals = sa.table("seal", *map(sa.column, ("kind", "id", "sha256", "form")))
    for row in bind.execute(sa.select(runs)).mappings().all():
        digest = sha256(_encode(["recon_run", [_plain(row[name]) for name in RUN], []])).digest()
        at = row["at"].to_bytes(8, "big")
        seal = {"kind": "recon_run", "id": str(row["id"]), "sha256": sha256(digest + at).digest(), "form": 1}
        bind.execute(seals.insert(), [seal])


def _record(of: tuple[str, str, str, str, tuple[str, ...], str]) -> None:
    """Write an entry for each row, in its tenant's chain, that says the row's digest as it is now."""
    name, key, target, prefix, columns, needed = of
    bind, table = op.get_bind(), _table(name, {*columns, key})
    query = sa.select(table)
    if needed:
        query = query.where(sa.text(needed))
    rows = bind.execute(query.order_by(table.c[key])).mappings().all()
    chains: dict[UUID, list[dict[str, Any]]] = {}
    for row in rows:
        digest = sha256(_encode([name, 1, *(_plain(row[column]) for column in columns)])).hexdigest()
        said = {"row_sha256": f"1:{digest}"}
        if name == "pending_change":
            same = (row["kind"], str(row["tenant_id"] or ""), row["arguments"])
            said["arguments_sha256"] = sha256(msgspec.json.encode(same)).hexdigest()
        identity = row[key]
        after = msgspec.json.encode(said, order="sorted").decode()
        target_id = f"{prefix}{identity.hex}" if isinstance(identity, UUID) else str(identity)
        values = {"action": f"{target}.recorded", "target": target, "target_id": target_id, "after": after}
        chains.setdefault(row.get("tenant_id") or PLATFORM, []).append(values)
    for tenant in sorted(chains):
        _continue(tenant, chains[tenant])


def _continue(tenant: UUID, changes: list[dict[str, Any]]) -> None:
    bind = op.get_bind()
    chain = _table("audit_chain", {"tenant_id", "entries", "head"})
    entry = _table("audit_entry", {*ENTRY, "form", "leaf", "head"})
    mine = chain.c.tenant_id == tenant
    end = bind.execute(sa.select(chain.c.entries, chain.c.head).where(mine)).one_or_none()
    number, head = (0, sha256(b"turnpike audit " + tenant.bytes).digest()) if end is None else (end[0], bytes(end[1]))
    if end is None:
        bind.execute(chain.insert(), [{"tenant_id": tenant, "entries": number, "head": head}])
    last = bind.execute(sa.select(sa.func.max(entry.c.at)).where(entry.c.tenant_id == tenant)).scalar() or 0
    at, rows = max(time.time_ns() // 1000, last), []
    for change in changes:
        number += 1
        row = {
            **dict.fromkeys(("actor_through", "actor_address", "request_id"), ""),
            **{"tenant_id": tenant, "number": number, "at": at, "project_id": None, "before": None},
            **{"actor_means": "system", "actor_id": "upgrade", "actor_name": "upgrade"},
            **{"reason": "as it was when the audit log began to keep digests of rows", **change},
        }
        leaf = _leaf(row)
        head = sha256(head + leaf).digest()
        rows.append({**row, "form": 1, "leaf": leaf, "head": head})
    for start in range(0, len(rows), _CHUNK):
        bind.execute(entry.insert(), rows[start : start + _CHUNK])
    bind.execute(chain.update().where(mine).values(entries=number, head=head))


def _leaf(row: Mapping[str, Any]) -> bytes:
    values = [row[name] for name in ENTRY]
    plain = [value.bytes if isinstance(value, UUID) else value for value in values]
    return sha256(_encode(["turnpike audit entry 1", *plain])).digest()


def _table(name: str, columns: set[str]) -> sa.TableClause:
    ids = _IDS | ({"id"} if name in _WITH_ID else set())
    return sa.table(name, *(sa.column(column, _Id() if column in ids else None) for column in sorted(columns)))


def _plain(value: Any) -> str | bytes | None:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, int | Decimal):
        return str(int(value))
    return value if value is None or isinstance(value, bytes) else str(value)
