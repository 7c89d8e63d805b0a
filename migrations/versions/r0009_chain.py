"""The hash chain of usage events. Those that are there become the first batch of their tenant's period.

Everything is spelled out here and imported from nowhere, so that this step stays what it was.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from hashlib import sha256
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
IDS = ("id", "tenant_id", "project_id", "key_id", "corrects")
COUNTED = ("prompt", "computed", "read_hbm", "read_dram", "read_nvme", "output", "recomputed", "drafted", "accepted")
CLASSES = ("5m", "30m", "1h", "12h", "24h")
COLUMNS = (
    *IDS[:4], "model", "model_digest", "lane", "price_version", "admitted_at", "finished_at", "period", "status",
    "reason", "delivery", "source", "replica", "sequence", "attempt", "cost_pico", "context_from",
    *(f"count_{name}" for name in COUNTED), "uncached", "read_automatic", *(f"read_{name}" for name in CLASSES),
    *(f"write_{name}" for name in CLASSES), "output", "corrects",
)  # fmt: skip


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
    encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
    names = ", ".join(COLUMNS)
    query = sa.text(
        f"SELECT {names} FROM usage_event WHERE tenant_id = :tenant AND period = :period ORDER BY id"  # noqa: S608
    )
    for row in bind.execute(query, {"tenant": tenant, "period": period}):
        values = [
            (value if isinstance(value, bytes) else uuid.UUID(int=value.int).bytes) if name in IDS and value else value
            for name, value in zip(COLUMNS, row, strict=True)
        ]
        while not values[-1]:
            values.pop()
        yield values[0] + sha256(encode(values)).digest()


def downgrade() -> None:
    raise RuntimeError("a chain is not cut off: restore a backup")
