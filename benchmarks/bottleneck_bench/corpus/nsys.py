"""Write a simulated program as the SQLite that Nsight Systems 2025.1 exports: ranges, calls, kernels, no shapes."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from corpus.program import Program

PID, TID = 4242, 4242
GLOBAL_PID = (1 << 48) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | TID

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
  isDiscrete INTEGER, l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER,
  smCount INTEGER, pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor
  INTEGER, computeMinor INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT
  NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY
  INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER
  NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread
  INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER,
  graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT
  NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind
  INTEGER, dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId
  INTEGER, migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER
  NOT NULL, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId
  INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, "end" INTEGER NOT NULL, eventClass INTEGER
  NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
  callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId
  INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId
  INTEGER NOT NULL, eventSyncId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value
  INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
_COPY = {"HtoD": 1, "DtoH": 2, "DtoD": 8}


class _Strings:
    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids) + 1)


def _short(name: str) -> str:
    """Return the base name of a kernel: no return type, no arguments, no template."""
    plain = re.sub(r"\(anonymous namespace\)::", "", name).removeprefix("void ")
    return re.split(r"[<(]", plain)[0].split("::")[-1]


def write(program: Program, path: Path) -> None:
    """Write the file; step ranges become NVTX ranges named `train_step`."""
    path.unlink(missing_ok=True)
    strings = _Strings()
    database = sqlite3.connect(path)
    database.executescript(_SCHEMA)
    _machine_rows(database, program)
    _device_rows(database, program, strings)
    for call in program.calls:
        version = "_v3020" if "Synchronize" in call.name or "Memcpy" in call.name else "_v7000"
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)",
            (call.start_ns, call.end_ns, GLOBAL_TID + call.thread, call.correlation, strings.of(call.name + version)),
        )
        if "Synchronize" in call.name:
            kind = 3 if call.name == "cudaStreamSynchronize" else 4
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES "
                "(?,?,0,1,NULL,7,?,?,NULL,?,4294967295,4294967295)",
                (call.start_ns + 300, call.end_ns - 100, call.correlation, GLOBAL_PID, kind),
            )
    for span in program.spans:
        if span.category != "user_annotation":
            continue
        name = "train_step" if span.name.startswith("ProfilerStep#") else span.name
        name = "dataloader_next" if "DataLoader" in name else name
        database.execute(
            'INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid, domainId) VALUES (?,?,59,?,?,0)',
            (span.start_ns, span.end_ns, name, GLOBAL_TID + span.thread),
        )
    database.executemany("INSERT INTO StringIds VALUES (?,?)", [(i, s) for s, i in strings.ids.items()])
    for table in ("KERNEL", "MEMCPY", "GRAPH_TRACE", "SYNCHRONIZATION"):  # a table without rows is not exported
        if not database.execute(f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}").fetchone()[0]:
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    database.commit()
    database.close()


def _machine_rows(database: sqlite3.Connection, program: Program) -> None:
    m = program.machine
    database.executemany(
        "INSERT INTO META_DATA_EXPORT VALUES (?,?)",
        [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", "2025.1.1.103"),
            ("EXPORT_SCHEMA_VERSION", "3.17.2"),
            ("EXPORT_SCHEMA_VERSION_MAJOR", "3"),
            ("EXPORT_SCHEMA_VERSION_MINOR", "17"),
            ("EXPORT_SCHEMA_VERSION_MICRO", "2"),
        ],
    )
    database.executemany(
        "INSERT INTO META_DATA_CAPTURE VALUES (?,?)",
        [
            ("CAPTURE_EVENT_TYPE", "Cuda"),
            ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
        ],
    )
    database.executemany(
        "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (?,?,?)",
        [
            (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
            (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
            (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        ],
    )
    database.executemany(
        "INSERT INTO ENUM_CUDA_MEM_KIND VALUES (?,?,?)",
        [
            (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
            (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
            (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
        ],
    )
    database.executemany(
        "INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES (?,?,?)", [(59, "NvtxPushPopRange", "NvtxPushPopRange")]
    )
    database.execute("INSERT INTO PROCESSES VALUES (?,?,?)", (GLOBAL_PID, PID, "python3"))
    database.execute(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES "
        "(1751410836000000000, '2025-07-01T23:00:36', '2025-07-01T23:00:36')"
    )
    bandwidth = 3.35232e12 if m.slug == "h100" else m.hbm_bytes_per_s
    for device in range(program.devices):
        database.execute(
            "INSERT INTO TARGET_INFO_GPU VALUES (0,?,?,?,1,?,?,?,?,?,?,?,0,?,?,?,0)",
            (
                device,
                m.product,
                f"0000:{3 + device:02x}:00.0",
                m.l2_bytes,
                m.memory_bytes,
                int(bandwidth),
                m.boost_hz,
                m.multiprocessors,
                device,
                f"5c9a5380-d76d-414b-3975-82bcaebb00{device:02x}",
                m.chip,
                device,
                m.major,
            ),
        )
        database.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?,?,?)", (device, device, PID))


def _device_rows(database: sqlite3.Connection, program: Program, strings: _Strings) -> None:
    for run in program.runs:
        work, span = run.work, (run.start_ns, run.end_ns, run.device)
        if work.kind == "copy":
            kind = next(v for k, v in _COPY.items() if k in work.kernel)
            source = 0 if "Pageable ->" in work.kernel else 1 if "Pinned ->" in work.kernel else 2
            target = 0 if "-> Pageable" in work.kernel else 1 if "-> Pinned" in work.kernel else 2
            database.execute(
                'INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, "end", deviceId, contextId, streamId, correlationId, '
                "globalPid, bytes, copyKind, srcKind, dstKind, copyCount) VALUES (?,?,?,1,?,?,?,?,?,?,?,1)",
                (*span, run.stream, run.correlation, GLOBAL_PID, work.nbytes, kind, source, target),
            )
        elif work.kind == "graph":
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,1,2,1,NULL,?,?,?)",
                (*span, run.stream, run.correlation, GLOBAL_PID),
            )
        else:
            grid = max(1, min(65535, (run.end_ns - run.start_ns) // 40))
            name = strings.of(work.kernel)
            database.execute(
                'INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, contextId, streamId, correlationId, '
                "globalPid, demangledName, shortName, mangledName, launchType, registersPerThread, gridX, gridY, "
                "gridZ, blockX, "
                "blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, "
                "gridId) VALUES (?,?,?,1,?,?,?,?,?,?,1,32,?,1,1,256,1,1,0,0,0,0,?)",
                (
                    *span,
                    run.stream,
                    run.correlation,
                    GLOBAL_PID,
                    name,
                    strings.of(_short(work.kernel)),
                    name,
                    grid,
                    run.correlation,
                ),
            )
