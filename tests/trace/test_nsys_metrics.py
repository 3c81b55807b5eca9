"""What stands in an Nsight Systems export beside CUDA's own tables: sampled metrics, work of other interfaces, doubled tables."""

from __future__ import annotations

import sqlite3

import pytest

from mansard.core.unknown import Unknown
from mansard.report.trace_metrics import metrics_document, metrics_lines
from mansard.trace.open import open_trace
from mansard.trace.timeline import Kind

_TYPE = -(1 << 40)  # its low eight bits are the id of the GPU


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "m.sqlite"
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        INSERT INTO StringIds VALUES (1, 'k');
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, cuDevice INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'A', 0), (1, 'B', 1);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
            globalPid INTEGER, demangledName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (200, 250, 1, 7, 1, 16777216, 1), (300, 400, 1, 7, 2, 16777216, 1);
        CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT);
        """
    )
    db.executemany(
        "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 0, 'x', ?, ?)",
        [(_TYPE + 1, 4, "SMs Active [Throughput %]"), (_TYPE + 1, 9, "Odd [Things]")],
    )
    db.commit()
    yield path, db
    db.close()


@pytest.mark.parametrize("kind", ["INTEGER", "REAL"])
def test_means_over_the_capture_and_over_the_work(export, kind):
    path, db = export
    db.execute(f"CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value {kind})")
    add = 0.5 if kind == "REAL" else 0
    samples = [(100, 0), (200, 40 + add), (300, 60 + add), (400, 80 + add), (500, 0)]
    db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, 4, ?)", [(t, _TYPE + 1, v) for t, v in samples])
    db.execute("INSERT INTO GPU_METRICS VALUES (50, ?, 9, 7)", (_TYPE + 1,))
    db.execute("INSERT INTO GPU_METRICS VALUES (50, ?, 4, 30)", (_TYPE + 5,))
    db.commit()
    rows = {(r["device"], r["metric"]): r for r in metrics_document(open_trace(path))}
    active = rows["1", "SMs Active [Throughput %]"]
    # (0 + 40 + 60 + 80 + 0) / 5 = 36; from 200 to 400: (40 + 60 + 80) / 3 = 60
    assert (active["samples"], active["mean"], active["max"]) == (5, 36 + 0.6 * add, 80 + add)
    assert active["mean_while_working"] == 60 + add
    assert isinstance(rows["1", "Odd [Things]"]["mean_while_working"], Unknown)  # its only sample is before any kernel
    assert rows["id 5", "SMs Active [Throughput %]"]["mean"] == 30  # a GPU the export does not list
    assert any("36 %" in line or "36.3 %" in line for line in metrics_lines([active]))


def test_a_metric_is_not_named_after_that_of_another_kind_of_gpu(export):
    path, db = export
    db.execute("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 0, 'y', 4, 'Tensor Active')", (_TYPE + 0,))
    db.execute("CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)")
    db.executemany("INSERT INTO GPU_METRICS VALUES (50, ?, 4, 30)", [(_TYPE,), (_TYPE + 1,), (_TYPE + 5,)])
    db.commit()
    found = {r["device"]: r["metric"] for r in metrics_document(open_trace(path))}
    assert found == {"0": "Tensor Active", "1": "SMs Active [Throughput %]", "id 5": "metric 4"}


def test_samples_alone_leave_kernels_as_they_are(export):
    path, db = export
    db.execute("CREATE TABLE GPU_METRICS (foo INTEGER)")
    db.execute("INSERT INTO GPU_METRICS VALUES (1)")
    db.commit()
    t = open_trace(path)
    assert t.of(Kind.KERNEL).duration_ns.sum() == 150
    assert "metrics_unread" in {f.code for f in t.findings}


def test_a_doubled_table_and_other_work_are_said(export):
    path, db = export
    db.executescript(
        """
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V3 AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL;
        CREATE TABLE VULKAN_WORKLOAD (start INTEGER, end INTEGER);
        INSERT INTO VULKAN_WORKLOAD VALUES (1, 2);
        """
    )
    t = open_trace(path)
    assert len(t.of(Kind.KERNEL)) == 2  # the documented name alone
    texts = {f.code: f.text for f in t.findings}
    assert "CUPTI_ACTIVITY_KIND_KERNEL_V3" in texts["several_tables"]
    assert "VULKAN_WORKLOAD (1 rows)" in texts["other_gpu_work"]


@pytest.mark.parametrize(("listed", "sums"), [(1, [150]), (2, [])])
def test_kernels_without_a_device_column(export, listed, sums):
    path, db = export
    db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN deviceId")
    db.execute("DELETE FROM TARGET_INFO_GPU WHERE id >= ?", (listed,))
    db.commit()
    t = open_trace(path)
    k = t.of(Kind.KERNEL)
    assert [int(k.duration_ns[k.device == d].sum()) for d in t.used_devices] == sums
    # of one listed GPU they can only be that one's; of two, nobody knows, and that is damage
    assert t.incomplete == (listed == 2)


def test_a_view_is_read_like_a_table(export):
    path, db = export
    db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO other")
    db.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM other")
    db.commit()
    assert open_trace(path).of(Kind.KERNEL).duration_ns.sum() == 150
