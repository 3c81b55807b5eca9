"""The rocpd database of rocprofv3: both layouts of its schema, built with the names of the public one.

Source: ROCm, rocprofiler-sdk, rocpd_tables.sql of schema 3.
"""

from __future__ import annotations

import gzip
import sqlite3

import pytest

from mansard.core.errors import InputError
from mansard.trace.launches import join_launches
from mansard.trace.occupancy import device_times
from mansard.trace.open import open_trace
from mansard.trace.timeline import CopyKind, Kind

ID = "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
GUID = 'guid TEXT DEFAULT "g" NOT NULL'
JSON = 'extdata JSONB DEFAULT "{}" NOT NULL'
COMMON = {
    "metadata": "tag TEXT, value TEXT",
    "string": f"{GUID}, string TEXT NOT NULL UNIQUE",
    "info_node": f"{GUID}, hash BIGINT, machine_id TEXT, hostname TEXT",
    "info_process": f"{GUID}, nid INTEGER, ppid INTEGER, pid INTEGER NOT NULL, command TEXT, {JSON}",
    "info_thread": f"{GUID}, nid INTEGER, ppid INTEGER, pid INTEGER, tid INTEGER, name TEXT, {JSON}",
    "info_agent": f"{GUID}, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, type_index INTEGER, uuid INTEGER, "
    f"name TEXT, product_name TEXT, {JSON}",
    "info_kernel_symbol": f"{GUID}, kernel_name TEXT, display_name TEXT, arch_vgpr_count INTEGER, accum_vgpr_count INTEGER",
    "event": f"{GUID}, category_id INTEGER, stack_id INTEGER, correlation_id INTEGER, {JSON}",
    "pmc_event": f"{GUID}, event_id INTEGER, pmc_id INTEGER, value REAL",
}
SIZES = ", ".join(f"{what}_size_{axis} INTEGER" for what in ("workgroup", "grid") for axis in "xyz")
ROW = "nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT NOT NULL, end BIGINT NOT NULL"
INLINE = {
    **COMMON,
    "region": f"{GUID}, {ROW}, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": f"{GUID}, {ROW}, agent_id INTEGER, kernel_id INTEGER, queue_id INTEGER, stream_id INTEGER, "
    f"group_segment_size INTEGER, {SIZES}, event_id INTEGER",
    "memory_copy": f"{GUID}, {ROW}, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, stream_id INTEGER, "
    "event_id INTEGER",
}
APART = "track_id INTEGER NOT NULL, start_id INTEGER NOT NULL, end_id INTEGER NOT NULL"
TRACKED = {
    **COMMON,
    "track": f"{GUID}, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER, queue_id INTEGER, stream_id INTEGER",
    "timestamp": f"{GUID}, value BIGINT NOT NULL, phase INTEGER, track_id INTEGER",
    "region": f"{GUID}, {APART}, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": f"{GUID}, {APART}, kernel_id INTEGER, group_segment_size INTEGER, {SIZES}, event_id INTEGER",
    "memory_copy": f"{GUID}, {APART}, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, event_id INTEGER",
}
WORDS = ("HIP_RUNTIME_API_EXT", "hipLaunchKernel", "KERNEL_DISPATCH", "MEMORY_COPY", "MEMORY_COPY_HOST_TO_DEVICE",
         "MARKER_CORE_API", "roctxRangePushA", "host", "main")  # fmt: skip


class Process:
    """The tables of one process, filled row by row."""

    def __init__(self, db, suffix, layout, pid):
        self.db, self.suffix, self.layout, self.pid = db, suffix, layout, pid
        for table, columns in layout.items():
            db.execute(f'CREATE TABLE "rocpd_{table}{suffix}" (id {ID}, {columns})')
            db.execute(f'CREATE VIEW IF NOT EXISTS "rocpd_{table}" AS SELECT * FROM "rocpd_{table}{suffix}"')
        self.put("metadata", tag="schema_version", value="3")
        for word in WORDS:
            self.put("string", string=word)
        self.put("info_node", id=9, hash=1, machine_id="m", hostname="node1")
        self.put("info_process", id=pid, pid=pid, command="python train.py")
        self.put("info_thread", id=pid + 1, pid=pid, tid=pid + 1)
        cpu = {"id": 0, "nid": 9, "pid": pid, "type": "CPU", "absolute_index": 0, "name": "EPYC"}
        self.put("info_agent", **cpu)
        more = (
            '{"cu_count": 304, "max_waves_per_simd": 8, "simd_per_cu": 4, "lds_size_in_kb": 64, "wave_front_size": 64}'
        )
        for i in (1, 2):
            self.put("info_agent", id=i, nid=9, pid=pid, type="GPU", absolute_index=i, name="gfx942",
                     product_name="AMD Instinct MI300X", extdata=more)  # fmt: skip
        self.put(
            "info_kernel_symbol",
            id=5,
            kernel_name="_Z4gemm",
            display_name="gemm",
            arch_vgpr_count=64,
            accum_vgpr_count=0,
        )

    def put(self, table, **values):
        names, marks = ", ".join(f'"{k}"' for k in values), ", ".join("?" * len(values))
        text = f'INSERT INTO "rocpd_{table}{self.suffix}" ({names}) VALUES ({marks})'
        return self.db.execute(text, tuple(values.values())).lastrowid

    def event(self, category, stack, extdata="{}"):
        return self.put(
            "event", category_id=WORDS.index(category) + 1, stack_id=stack, correlation_id=0, extdata=extdata
        )

    def row(self, table, start, end, place, **values):
        if "track" not in self.layout:
            return self.put(table, start=start, end=end, nid=9, pid=self.pid, **place, **values)
        track = self.put("track", nid=9, pid=self.pid, **place)
        times = {
            k: self.put("timestamp", value=v, phase=1, track_id=track)
            for k, v in (("start_id", start), ("end_id", end))
        }
        return self.put(table, track_id=track, **times, **values)

    def call(self, start, end, stack, category="HIP_RUNTIME_API_EXT", name="hipLaunchKernel", extdata="{}"):
        event = self.event(category, stack, extdata)
        self.row("region", start, end, {"tid": self.pid + 1}, name_id=WORDS.index(name) + 1, event_id=event)

    def kernel(self, start, end, stack, agent=1, queue=3, kernel=5):
        sizes = {"workgroup_size_x": 256, "workgroup_size_y": 1, "workgroup_size_z": 1, "grid_size_x": 1024, "grid_size_y": 2,
                 "grid_size_z": 1}  # fmt: skip
        self.row("kernel_dispatch", start, end, {"tid": self.pid + 1, "agent_id": agent, "queue_id": queue, "stream_id": 0},
                 kernel_id=kernel, group_segment_size=512, event_id=self.event("KERNEL_DISPATCH", stack), **sizes)  # fmt: skip

    def copy(self, start, end, stack, size):
        self.row("memory_copy", start, end, {"tid": self.pid + 1, "stream_id": 0}, name_id=WORDS.index("MEMORY_COPY_HOST_TO_DEVICE") + 1,
                 dst_agent_id=1, src_agent_id=0, size=size, event_id=self.event("MEMORY_COPY", stack))  # fmt: skip


def filled(path, layout):
    with sqlite3.connect(path) as db:
        one = Process(db, "_a1", layout, 100)
        one.call(90, 200, 1, "MARKER_CORE_API", "roctxRangePushA", '{"message": "train_step"}')
        one.call(100, 110, 7)
        one.kernel(130, 150, 7)
        one.call(112, 115, 8)
        one.kernel(140, 170, 8)
        one.copy(95, 99, 6, 4096)
        two = Process(db, "_b2", layout, 300)
        two.call(120, 125, 7)  # stack ids start anew in each process
        two.kernel(500, 520, 7, agent=2)
        two.kernel(600, 601, 99, agent=2, kernel=77)
        two.call(500, 900, 12, "host", "main")
        two.put("pmc_event", event_id=1, pmc_id=1, value=3.0)
    db.close()
    return path


@pytest.mark.parametrize("layout", [INLINE, TRACKED], ids=["inline", "tracks"])
def test_events_of_two_processes(tmp_path, layout):
    t = open_trace(filled(tmp_path / "100_results.db", layout), launch_shapes=True)
    kernels = t.of(Kind.KERNEL)
    assert (t.format, t.version, t.environment) == ("rocprofv3", "rocpd, schema 3", {"hostname": "node1"})
    assert [p.pid for p in t.processes] == [100, 300]
    assert [(d.number, d.name, d.multiprocessors) for d in t.devices] == [
        (0, "AMD Instinct MI300X", 304), (1, "AMD Instinct MI300X", 304),
    ], "an agent of one node is one device for both processes"  # fmt: skip
    assert [t.names[n] for n in kernels.name] == ["gemm", "gemm", "gemm", "kernel 77"]
    busy = {d.facts.number: (d.kernel_sum_ns, d.busy_ns, d.span_ns) for d in device_times(t)}
    assert busy == {0: (20 + 30, 170 - 130, 40), 1: (20 + 1, 21, 101)}
    launches = join_launches(t)
    called = [int(launches.calls.start_ns[c]) if c >= 0 else None for c in launches.call[: len(kernels)]]
    assert called == [100, 112, 120, None], "joined by process and stack id"
    copies = t.of(Kind.COPY)
    assert (copies.copy_kind.tolist(), copies.nbytes.tolist(), copies.device.tolist()) == (
        [CopyKind.HOST_TO_DEVICE],
        [4096],
        [0],
    )
    marked = t.of(Kind.ANNOTATION)
    assert ([t.names[n] for n in marked.name], t.threads[marked.thread[0]].tid) == (["train_step"], 101)
    assert (len(t.of(Kind.RUNTIME)), len(t.of(Kind.OTHER))) == (3, 1)
    assert {d.code for d in t.damage} == {"unnamed_kernels", "overlapping_slices"}
    assert "counters_not_read" in {f.code for f in t.findings}
    shape = t.extras["launch_shapes"][kernels.extras["launch_shape"][0]]
    assert (shape.blocks, shape.threads, shape.registers, shape.shared_bytes) == (1024 // 256 * 2, 256, 64, 512)


def test_a_packed_database_and_kinds_that_are_not_wanted(tmp_path):
    path = filled(tmp_path / "r.db", INLINE)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    t = open_trace(packed, categories=(Kind.KERNEL,))
    assert (len(t.of(Kind.KERNEL)), t.has(Kind.RUNTIME), t.has(Kind.COPY)) == (4, False, False)


def test_without_dispatches_it_says_how_to_record_them(tmp_path):
    with sqlite3.connect(tmp_path / "r.db") as db:
        Process(db, "", INLINE, 1).call(5, 9, 1)
    db.close()
    t = open_trace(tmp_path / "r.db")
    assert "--kernel-trace" in t.why_absent(Kind.KERNEL).reason
    assert len(t.of(Kind.RUNTIME)) == 1


def test_the_memory_limit_holds(tmp_path):
    with pytest.raises(InputError) as caught:
        open_trace(filled(tmp_path / "r.db", INLINE), memory_limit=100)
    assert caught.value.code == "memory_limit"


def test_other_tables_of_that_name_are_refused(tmp_path):
    with sqlite3.connect(tmp_path / "old.db") as db:  # of ROCm before 7.0
        db.execute('CREATE TABLE "rocpd_op" (id INTEGER, gpuId INTEGER, start INTEGER, end INTEGER)')
    db.close()
    with pytest.raises(InputError) as caught:
        open_trace(tmp_path / "old.db")
    assert caught.value.code == "rocpd_database"
    with sqlite3.connect(tmp_path / "new.db") as db:
        db.execute('CREATE TABLE "rocpd_kernel_dispatch_x" (id INTEGER, begin INTEGER)')
        db.execute('INSERT INTO "rocpd_kernel_dispatch_x" VALUES (1, 1)')
    db.close()
    with pytest.raises(InputError, match="begin"):
        open_trace(tmp_path / "new.db")


def test_a_kernel_whose_start_is_lost_is_left_out_and_said(tmp_path):
    # Its time would count from the start of the clock: 1150 ns instead of 20.
    with sqlite3.connect(tmp_path / "r.db") as db:
        one = Process(db, "", TRACKED, 1)
        one.kernel(1130, 1150, 7)
        one.kernel(1200, 1230, 8)
        db.execute("DELETE FROM rocpd_timestamp WHERE value = 1130")
    db.close()
    t = open_trace(tmp_path / "r.db")
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [30]
    assert [(d.code, d.count, d.incomplete) for d in t.damage] == [("time_zero", 1, True)]
