"""The first schema: records with their measurements, baselines, contents."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_FIGURES = ("step_time_s", "time_s", "mfu_ratio", "ttft_s", "tpot_s", "tokens_per_s", "bytes_per_s", "flop_per_s")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "content",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("zlib", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_content"),
    )
    op.create_table(
        "record",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("form", sa.String(32), nullable=False),
        sa.Column("schema", sa.String(64), nullable=False),
        sa.Column("created", sa.String(40), nullable=False),
        sa.Column("added", sa.String(40), nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        *(sa.Column(name, sa.Double) for name in _FIGURES),
        sa.PrimaryKeyConstraint("id", name="pk_record"),
        sa.UniqueConstraint("sha256", "labels", name="uq_record_sha256"),
    )
    op.create_table(
        "measurement",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("record_id", _KEY, nullable=False),
        sa.Column("benchmark", sa.Text, nullable=False),
        sa.Column("metric", sa.String(64), nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("is_primary", sa.Boolean, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
        sa.ForeignKeyConstraint(
            ["record_id"], ["record.id"], name="fk_measurement_record_id_record", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_measurement_record_id", "measurement", ["record_id"])
    op.create_table(
        "entry",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("baseline", sa.String(200), nullable=False),
        sa.Column("record_id", _KEY, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("added", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_entry"),
        sa.ForeignKeyConstraint(["record_id"], ["record.id"], name="fk_entry_record_id_record", ondelete="CASCADE"),
        sa.UniqueConstraint("baseline", "record_id", name="uq_entry_baseline"),
    )
    op.create_index("ix_entry_baseline", "entry", ["baseline"])


def downgrade() -> None:
    """Take the tables away."""
    for table in ("entry", "measurement", "record", "content"):
        op.drop_table(table)
