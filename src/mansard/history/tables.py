"""The schema of the store, once for SQLite and PostgreSQL. Imported only by what opens a store."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

#: Names of constraints, so that a migration can change them on any database.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s", "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s", "pk": "pk_%(table_name)s",
    }
)  # fmt: skip
#: The revision that this module describes; `migrations/versions` leads there.
HEAD = "0002"

_KEY = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows of INTEGER alone

#: The raw bytes, where they are kept in the database: a store on another machine has no folder beside it.
CONTENT = Table(
    "content", METADATA,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("zlib", LargeBinary, nullable=False),
)  # fmt: skip

#: One result. The figures are NULL where the document does not tell them or tells several.
RECORD = Table(
    "record", METADATA,
    Column("id", _KEY, primary_key=True, autoincrement=True),
    Column("sha256", String(64), nullable=False),
    Column("source", Text, nullable=False),
    Column("form", String(32), nullable=False),
    Column("schema", String(64), nullable=False),
    Column("created", String(40), nullable=False),
    Column("added", String(40), nullable=False),
    Column("labels", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("step_time_s", Double), Column("time_s", Double), Column("mfu_ratio", Double), Column("ttft_s", Double),
    Column("tpot_s", Double), Column("tokens_per_s", Double), Column("bytes_per_s", Double), Column("flop_per_s", Double),
    UniqueConstraint("sha256", "labels"),
)  # fmt: skip
FIGURES = ("step_time_s", "time_s", "mfu_ratio", "ttft_s", "tpot_s", "tokens_per_s", "bytes_per_s", "flop_per_s")

#: Each figure of each benchmark of a record, with its samples.
MEASUREMENT = Table(
    "measurement", METADATA,
    Column("id", _KEY, primary_key=True, autoincrement=True),
    Column("record_id", _KEY, ForeignKey("record.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("benchmark", Text, nullable=False),
    Column("metric", String(64), nullable=False),
    Column("value", Double),
    Column("is_primary", Boolean, nullable=False),
    Column("content", Text, nullable=False),
)  # fmt: skip

#: What a name stands for: `accepted` runs are the baseline, `pending` ones wait for confirmation, `retired` ones were it.
ENTRY = Table(
    "entry", METADATA,
    Column("id", _KEY, primary_key=True, autoincrement=True),
    Column("baseline", String(200), nullable=False),
    Column("record_id", _KEY, ForeignKey("record.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("added", String(40), nullable=False),
    UniqueConstraint("baseline", "record_id"),
    Index("ix_entry_baseline", "baseline"),
)  # fmt: skip
