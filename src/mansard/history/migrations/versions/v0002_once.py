"""Each figure of a record stands once: adding a document again to PostgreSQL had written its measurements a second time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keep the first of measurements that have one record, benchmark and metric; names of a document never repeat."""
    measurement = sa.table("measurement", *(sa.column(n) for n in ("id", "record_id", "benchmark", "metric")))
    first = sa.select(sa.func.min(measurement.c.id)).group_by(
        measurement.c.record_id, measurement.c.benchmark, measurement.c.metric
    )
    op.execute(sa.delete(measurement).where(measurement.c.id.not_in(first)))


def downgrade() -> None:
    """Nothing to bring back."""
