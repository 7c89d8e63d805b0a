"""The hash chain of usage events. Those that are there become the first batch of their tenant's period.

Everything is spelled out here and imported from nowhere, so that this step stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from struct import Struct, calcsize
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0009"
down_revision = "r0008"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
CLASSES = ("5m", "30m", "1h", "12h", "24h")
TRAITS = ("model", "model_digest", "lane", "status", "reason", "delivery", "source", "replica")
LAYOUT = (
    *((name, "16s") for name in ("tenant_id", "project_id", "key_id")),
    *((name, "i") for name in ("price_version", "context_from")),
    *((name, "q") for name in ("admitted_at", "finished_at")),
    ("period", "7s"),
    ("sequence", "q"),
    ("attempt", "i"),
    *((f"count_{name}", "i") for name in (
        "prompt", "computed", "read_hbm", "read_dram", "read_nvme", "output", "recomputed", "drafted", "accepted",
    )),
    *((name, "i") for name in (
        "uncached", "read_automatic", *(f"read_{name}" for name in CLASSES), *(f"write_{name}" for name in CLASSES),
        "output",
    )),
    ("cost_pico", "q"),
)  # fmt: skip
"""How a leaf has the columns: each after its size; first their number and the id, last that it corrects none."""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "usage_batch",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("link", COUNT, autoincrement=False, nullable=False),
        sa.Column("events", COUNT, nullable=False),
        *(sa.Column(name, sa.LargeBinary(), nullable=False) for name in ("entries", "root", "head")),
        sa.PrimaryKeyConstraint("tenant_id", "period", "link", name="pk_usage_batch"),
        sa.CheckConstraint("link > 0", name=op.f("ck_usage_batch_link")),
        sa.CheckConstraint("events > 0", name=op.f("ck_usage_batch_events")),
        sqlite_strict=True,
    )
    op.create_table(
        "usage_chain",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("links", "events")),
        *(sa.Column(name, sa.LargeBinary(), nullable=False) for name in ("root", "head")),
        sa.PrimaryKeyConstraint("tenant_id", "period", name="pk_usage_chain"),
        sqlite_strict=True,
        postgresql_with={"fillfactor": 70},
    )
    if postgres:
        op.execute("ALTER TABLE usage_batch ALTER COLUMN entries SET STORAGE EXTERNAL")  # digests do not compress
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_batch "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    else:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER immutable_usage_batch_{verb.lower()} BEFORE {verb} ON usage_batch "
                "BEGIN SELECT RAISE(ABORT, 'usage_batch is immutable'); END"
            )
    _carry_over(postgres)


def _carry_over(postgres: bool) -> None:
    bind = op.get_bind()
    batch = sa.table(
        "usage_batch", *map(sa.column, ("tenant_id", "period", "link", "events", "entries", "root", "head"))
    )
    chain = sa.table("usage_chain", *map(sa.column, ("tenant_id", "period", "links", "events", "root", "head")))
    groups = bind.execute(sa.text("SELECT DISTINCT tenant_id, period FROM usage_event ORDER BY tenant_id, period"))
    for tenant, period in groups.all():
        tenant_bytes = tenant.bytes if postgres else tenant
        entries = b"".join(_entries(bind, tenant, period))
        root = sha256(entries).digest()
        head = sha256(sha256(b"turnpike usage " + tenant_bytes + period.encode()).digest() + root).digest()
        same = {"tenant_id": tenant, "period": period, "events": len(entries) // 48, "root": root, "head": head}
        bind.execute(batch.insert().values(link=1, entries=entries, **same))
        bind.execute(chain.insert().values(links=1, **same))


def _entries(bind: Any, tenant: Any, period: str) -> Iterator[bytes]:
    names = ", ".join(("id", *TRAITS, *(name for name, _ in LAYOUT)))
    query = sa.text(
        f"SELECT {names} FROM usage_event WHERE tenant_id = :tenant AND period = :period ORDER BY id"  # noqa: S608
    )
    layout = Struct(">hi16s" + "".join("i" + kind for _, kind in LAYOUT) + "i")
    for row in bind.execute(query, {"tenant": tenant, "period": period}).mappings():
        values: list[Any] = [len(LAYOUT) + 3, 16, _bytes(row["id"])]
        for name, kind in LAYOUT:
            values += [calcsize(">" + kind), _bytes(row[name])]
        record = layout.pack(*values, -1)
        yield _bytes(row["id"]) + sha256(msgspec.msgpack.encode([row[name] for name in TRAITS]) + record).digest()


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, int | bytes) else value.bytes


def downgrade() -> None:
    raise RuntimeError("a chain is not cut off: restore a backup")
