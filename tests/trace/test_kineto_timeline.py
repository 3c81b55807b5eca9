"""The streaming reader of Kineto and Chrome JSON: exact times, damage that is named and counted, and nothing lost in silence."""

from __future__ import annotations

import gzip
import json
import random
import re
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.open import open_trace
from mansard.trace.readers import chrome, chrome_stream
from mansard.trace.readers.chrome_times import to_ns
from mansard.trace.timeline import CopyKind, Kind


def event(cat, name, ts, dur, *, pid=7, tid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(ts, dur, *, correlation=1, device=0, stream=7, name="k", **args):
    return event(
        "kernel", name, ts, dur, pid=device, tid=stream, device=device, stream=stream, correlation=correlation, **args
    )


def call(ts, dur, *, correlation=1, pid=7):
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, pid=pid, correlation=correlation)


def read(tmp_path, document, name="t.json", **options):
    path = tmp_path / name
    if isinstance(document, bytes):
        path.write_bytes(document)
    else:
        path.write_text(document if isinstance(document, str) else json.dumps(document))
    return chrome.read(path, **options)


def codes(timeline):
    return {d.code: d.count for d in timeline.damage}


# Exact times


@given(
    st.lists(
        st.one_of(
            st.decimals(min_value=0, max_value=10**15, places=3).map(str),
            st.decimals(min_value=-(10**9), max_value=10**9, places=6).map(str),
            st.integers(0, 10**15).map(str),
            st.floats(0, 1e12).map(repr),
            st.decimals(min_value=0, max_value=10**6, places=2).map(lambda d: f'"{d}"'),
        ),
        max_size=40,
    )
)
def test_microseconds_become_exact_nanoseconds(texts):
    times = to_ns([t.encode() for t in texts])
    for text, ns in zip(texts, times.ns.tolist(), strict=True):
        # Digits beyond nanoseconds are cut off, never rounded up into the next one.
        assert ns == int((Decimal(text.strip('"')) * 1000).to_integral_value(rounding=ROUND_FLOOR))
    assert times.as_text == sum(t.startswith('"') for t in texts)


@pytest.mark.parametrize(
    ("text", "missing", "wrong"),
    [
        (b"", True, False), (b"null", True, False), (b"NaN", False, True), (b"Infinity", False, True), (b"1e400", False, True),
        (b"9223372036854775807", False, True), (b"{}", False, True), (b"1.2.3", False, True), (b".5", False, False),
        (b"5.", False, False), (b"true", False, True), (b"0", False, False),
    ],
)  # fmt: skip
def test_what_is_no_time_is_told_apart(text, missing, wrong):
    times = to_ns([b"1.5", text, b"2"])
    assert (bool(times.missing[1]), bool(times.wrong[1])) == (missing, wrong)
    assert times.ns[[0, 2]].tolist() == [1500, 2000]  # neighbours are untouched


def test_an_absolute_time_keeps_its_last_digit(tmp_path):
    text = '{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1700000000000000.123,"dur":0.001,"args":{"device":0,"stream":7}}]}'
    t = read(tmp_path, text)
    k = t.of(Kind.KERNEL)
    assert (k.start_ns[0], k.end_ns[0]) == (1700000000000000123, 1700000000000000124)
    assert (t.clock.domain, t.clock.epoch_offset_ns) == ("epoch", 0)


def test_base_time_is_the_offset_of_the_clock(tmp_path):
    t = read(tmp_path, {"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": [kernel(5.5, 1)]})
    assert t.of(Kind.KERNEL).start_ns.tolist() == [5500]
    assert t.clock.epoch_offset_ns == 1_700_000_000_000_000_000
    assert isinstance(read(tmp_path, {"traceEvents": [kernel(5.5, 1)]}).clock.epoch_offset_ns, Unknown)


# What events are


def test_kinds_devices_streams_and_details(tmp_path):
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 3, "name": "NVIDIA X", "numSms": 108, "totalGlobalMem": 10, "computeMajor": 8, "computeMinor": 0}],
        "distributedInfo": {"rank": 2, "world_size": 4},
        "traceEvents": [
            event("cpu_op", "aten::mm", 0, 9, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"], "External id": 11}),
            call(1, 2, correlation=5),
            kernel(3, 2, correlation=5, device=3, stream=20, **{"External id": 11}),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 6, 1, pid=3, tid=20, device=3, stream=20, correlation=6, bytes=64),
            event("gpu_memset", "Memset (Device)", 8, 1, pid=3, tid=20, device=3, stream=20, correlation=7, bytes=32),
            event("user_annotation", "ProfilerStep#1", 0, 10),
            event("cuda_sync", "Stream Sync", 8, 1, pid=3, tid=20, device=3, stream=20, correlation=8, cuda_sync_kind="Stream Sync"),
            event("python_function", "f", 0, 1),
            event("something_new", "z", 0, 1),
            {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "ts": 0, "args": {"name": "main"}},
        ],
    }  # fmt: skip
    t = read(tmp_path, document)
    counts = {k.name: len(v) for k, v in t.tables.items()}
    assert counts == {
        "CPU_OP": 1,
        "RUNTIME": 1,
        "KERNEL": 1,
        "COPY": 1,
        "MEMSET": 1,
        "ANNOTATION": 1,
        "SYNC": 1,
        "OTHER": 1,
    }
    k = t.of(Kind.KERNEL)
    assert (t.devices[k.device[0]].number, t.devices[k.device[0]].name, k.stream[0], k.correlation[0]) == (
        3,
        "NVIDIA X",
        20,
        5,
    )
    assert (t.devices[0].multiprocessors, t.devices[0].memory_bytes, t.devices[0].compute_capability) == (
        108,
        10,
        "8.0",
    )
    assert k.process[0] == t.of(Kind.RUNTIME).process[0]  # so that (process, correlation) joins them
    assert (t.of(Kind.COPY).nbytes[0], t.of(Kind.COPY).copy_kind[0]) == (64, CopyKind.HOST_TO_DEVICE)
    detail = t.details[t.of(Kind.CPU_OP).detail[0]]
    assert (detail.dims, detail.types) == (([2, 3], [3, 4]), ("float", "float"))
    assert t.of(Kind.CPU_OP).extras["external_id"].tolist() == [11]
    assert (t.processes[0].name, t.processes[0].rank, t.threads[0].name) == ("python", 2, "main")
    assert "left out" in t.absent[Kind.PYTHON]
    assert [f.code for f in t.findings] == ["unfamiliar_categories"]
    assert len(read(tmp_path, document, kinds=frozenset({Kind.PYTHON})).of(Kind.PYTHON)) == 1
    assert set(read(tmp_path, document, kinds=frozenset({Kind.KERNEL})).tables) == {Kind.KERNEL}


def test_list_object_gzip_members_and_compact_read_alike(tmp_path):
    events = [call(1, 1), kernel(2, 3)]
    whole = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    halves = gzip.compress(whole[:50]) + gzip.compress(whole[50:])
    documents = [whole, json.dumps(events).encode(), gzip.compress(whole), halves, json.dumps({"traceEvents": events}, indent=3).encode(),
                 json.dumps({"traceEvents": events, "traceName": "x", "INFO": ["a ] b", "c }"]}).encode()]  # fmt: skip
    for document in documents:
        t = read(tmp_path, document)
        assert t.of(Kind.KERNEL).end_ns.tolist() == [5000]
        assert not t.damage


def test_begin_and_end_are_paired_per_thread(tmp_path):
    def edge(ph, name, ts, tid=1):
        return {"ph": ph, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts}

    t = read(
        tmp_path,
        [
            edge("B", "a", 1),
            edge("B", "b", 2),
            edge("E", "", 3),
            edge("B", "c", 2, tid=2),
            edge("E", "", 9),
            edge("E", "", 9),
        ],
    )
    table = t.of(Kind.CPU_OP)
    found = sorted((t.names[n], s, e) for n, s, e in zip(table.name, table.start_ns, table.end_ns, strict=True))
    assert found == [("a", 1000, 9000), ("b", 2000, 3000)]
    assert codes(t) == {"unpaired_end": 1, "unpaired_begin": 1}
    assert t.incomplete


def test_correlations_of_two_processes_stay_apart(tmp_path):
    # Both processes use correlation 1; only 2 and 3 tell which device belongs to whom.
    events = [call(0, 1, pid=100), call(0, 1, pid=200), call(2, 1, correlation=2, pid=100), call(2, 1, correlation=3, pid=200),
              kernel(5, 1, device=0), kernel(5, 1, device=1), kernel(7, 1, correlation=2, device=0), kernel(7, 1, correlation=3, device=1)]  # fmt: skip
    t = read(tmp_path, {"traceEvents": events})
    k = t.of(Kind.KERNEL)
    owner = {(int(t.devices[d].number), int(t.processes[p].pid)) for d, p in zip(k.device, k.process, strict=True)}
    assert owner == {(0, 100), (1, 200)}


# Damage

GOOD = [call(1, 1), kernel(2, 1), kernel(4, 1, correlation=2)]


def broken(text, old, new):
    out = json.dumps({"traceEvents": GOOD}).replace(old, new, 1) if text is None else text.replace(old, new, 1)
    assert out != json.dumps({"traceEvents": GOOD})
    return out


@pytest.mark.parametrize(
    ("old", "new", "code", "kernels", "incomplete"),
    [
        ('"correlation": 2}', '"correlation": 2, "bw": NaN}', "not_a_number", 2, False),
        ('"correlation": 2}', '"correlation": 2, "bw": -Infinity}', "not_a_number", 2, False),
        ('"correlation": 2}', '"correlation": 2, "bw": inf}', "not_a_number", 2, False),
        ('"name": "k"', '"name": "C:\\xk"', "bad_escape", 2, False),
        ('"name": "k"', '"name": "a\tb"', "control_character", 2, False),
        ('"name": "k"', '"name": "a\x01b"', "control_character", 2, False),
        ('"correlation": 2}', '"correlation": 2,}', "trailing_comma", 2, False),
        ('"correlation": 2}}]', '"correlation": 2}},]', None, 2, False),
        ('"correlation": 2}}]', '"correlation": 2}},{}]', "empty_events", 2, False),
        ('"ts": 4', '"ts": "4"', "text_numbers", 2, False),
        (', "dur": 1, "args": {"device": 0, "stream": 7, "correlation": 2}', ', "args": {"device": 0, "stream": 7}', "missing_duration", 1, True),
        ('"ts": 4', '"ts": null', "missing_start", 1, True),
        ('"ts": 4, "dur": 1', '"ts": 4, "dur": -3', "negative_duration", 1, False),
        ('"ts": 4, "dur": 1', '"ts": 4, "dur": 3153600000000000', "impossible_duration", 1, False),
        ('"ts": 4, "dur": 1', '"ts": 4, "dur": 0', "zero_duration", 2, False),
        ('"ts": 4, "dur": 1', '"ts": 4, "dur": 1e999', "bad_time", 1, True),
        ('"correlation": 2}', '"correlation": 36893488147419103232}', "big_integer", 2, False),
        ('"ts": 4', '"ts": 0.5', "before_launch", 2, False),
    ],
)  # fmt: skip
def test_damage_is_survived_named_and_counted(tmp_path, old, new, code, kernels, incomplete):
    document = broken(None, old, new)
    if code == "before_launch":
        document = document.replace('"correlation": 2', '"correlation": 1')
    t = read(tmp_path, document)
    assert len(t.of(Kind.KERNEL)) == kernels
    assert codes(t).get(code) == 1 if code else not [d for d in t.damage if d.incomplete]
    assert t.incomplete is incomplete


def test_bytes_that_are_no_utf8(tmp_path):
    data = json.dumps({"traceEvents": GOOD}).encode().replace(b'"name": "k"', b'"name": "caf\xe9"', 1)
    t = read(tmp_path, data)
    assert codes(t) == {"bad_utf8": 1}
    assert "caf\ufffd" in t.names
    assert len(t.of(Kind.KERNEL)) == 2


def test_byte_order_mark_and_duplicate_keys(tmp_path):
    text = (
        '{"distributedInfo": {"rank": 1}, "distributedInfo": {"rank": 5}, "traceEvents": '
        + json.dumps(GOOD)
        + ', "x": 1, "x": 2}'
    )
    t = read(tmp_path, b"\xef\xbb\xbf" + text.encode())
    assert codes(t) == {"byte_order_mark": 1, "duplicate_keys": 2}
    assert t.distributed == {"rank": 5}  # the last one counts, and it is said


def test_rocm_slices_over_each_other_are_damage_and_not_clipped(tmp_path):
    events = [kernel(0, 10), kernel(8, 4, correlation=2)]
    t = read(tmp_path, {"roctracer_version": 4.1, "traceEvents": events})
    (damage,) = t.damage
    assert (damage.code, damage.count) == ("overlapping_slices", 1)
    assert "2000 ns" in damage.text
    assert t.of(Kind.KERNEL).duration_ns.sum() == 14_000
    assert read(tmp_path, {"cupti_version": 22, "traceEvents": events}).damage == ()


def test_one_bad_event_among_many_costs_one_event(tmp_path):
    events = [json.dumps(kernel(10 * i, 5, correlation=i)) for i in range(1, 200)]
    events[77] = events[77].replace('"kernel"', '"ker"nel"', 1)  # a quote inside a text
    t = read(tmp_path, '{"traceEvents": [' + ", ".join(events) + "]}")
    assert len(t.of(Kind.KERNEL)) == 198
    assert codes(t) == {"unreadable_events": 1}
    assert t.incomplete


def test_arguments_that_look_like_events_are_no_events(tmp_path):
    inner = [{"name": "x", "ts": 1}, {"name": "y", "ts": 2}]
    events = [kernel(i, 1, correlation=i, list=inner) for i in range(1, 50)]
    text = json.dumps({"traceEvents": events}).replace('"list"', '"bw": NaN, "list"', 3)
    t = read(tmp_path, text)
    assert len(t.of(Kind.KERNEL)) == 49
    assert codes(t) == {"not_a_number": 3}


@pytest.mark.parametrize(
    "text",
    ["", "   ", "[]x", "{", '{"traceEvents": 3}', "[1, 2, 3]", '[{"a": 1}]', '{"nodes": []}', "[[-1, 1, 512, 7]]", "\x00\x01", '"traceEvents"',
     '{"a": {"traceEvents": [}', "null", "NaN"],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, text):
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert refused.value.code == "not_a_trace"


def test_an_intact_empty_trace_is_no_error(tmp_path):
    t = read(tmp_path, {"schemaVersion": 1, "traceEvents": []})
    assert not t.tables
    assert not t.damage
    assert "records no kernel events" in t.why_absent(Kind.KERNEL).reason


def test_memory_limit_refuses_instead_of_filling_the_machine(tmp_path):
    with pytest.raises(InputError, match="memory limit") as refused:
        read(tmp_path, {"traceEvents": [kernel(i, 1) for i in range(1000)]}, memory_limit=10_000)
    assert refused.value.code == "memory_limit"


def test_blocks_of_any_size_give_the_same_answer(tmp_path, monkeypatch):
    rng = random.Random(3)
    events = [
        kernel(10 * i, rng.randint(1, 9), correlation=i, name="n" * rng.randint(1, 300), note='}, {"ph": "X"')
        for i in range(1, 400)
    ]
    events += [event("cpu_op", "a", i, 1, **{"Input Dims": [[i]], "Input type": ["float"]}) for i in range(50)]
    text = json.dumps({"deviceProperties": [], "traceEvents": events, "traceName": "x"}, indent=1)
    results = set()
    for size in (200, 1000, 4096, 1 << 20):
        monkeypatch.setattr(chrome_stream, "BLOCK_BYTES", size)
        t = read(tmp_path, text)
        assert not t.damage
        results.add(
            (
                t.extras["events"],
                len(t.of(Kind.KERNEL)),
                int(t.of(Kind.KERNEL).end_ns.sum()),
                len(t.details),
                len(t.names),
            )
        )
    assert len(results) == 1


# Cut anywhere


def survives(path: Path, whole: int) -> int:
    try:
        t = chrome.read(path)
    except InputError:
        return 0
    found = len(t.of(Kind.KERNEL))
    assert found <= whole
    return found


@pytest.mark.parametrize("layout", ["pretty", "compact"])
def test_cut_at_every_byte(tmp_path, layout):
    events = [
        call(1, 1),
        kernel(2, 1, name='a]}\\"{b'),
        kernel(4, 1.5, correlation=2, grid=[1, 2, 3]),
        event("cpu_op", "\u00e9", 0, 9),
    ]
    document = {"schemaVersion": 1, "traceEvents": events, "baseTimeNanoseconds": 5}
    data = json.dumps(document, indent=1 if layout == "pretty" else None, ensure_ascii=False).encode()
    path = tmp_path / "cut.json"
    counts = []
    for at in range(len(data) + 1):
        path.write_bytes(data[:at])
        counts.append(survives(path, 2))
    assert counts == sorted(counts)  # more text never gives fewer kernels
    assert counts[-1] == 2
    last_event = data.rindex(b"]")
    path.write_bytes(data[:last_event])
    assert chrome.read(path).incomplete  # the array never ends: more may be missing


@pytest.mark.parametrize("name", ["a100_small.json", "h100_bert-small.json.gz", "mi300x_torch_compile_triton.json.gz"])
def test_real_files_cut_anywhere(shared, tmp_path, name):
    packed = (shared / "data" / "traces" / "kineto" / name).read_bytes()
    data = gzip.decompress(packed) if name.endswith("gz") else packed
    whole = len(chrome.read(shared / "data" / "traces" / "kineto" / name).of(Kind.KERNEL))
    rng = random.Random(7)
    path = tmp_path / "cut.json"
    for at in sorted(rng.sample(range(len(data)), 60)):
        path.write_bytes(data[:at])
        survives(path, whole)
    for at in sorted(rng.sample(range(len(packed)), 20)):
        path.write_bytes(packed[:at])
        survives(path, whole)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_bytes_never_raise_anything_else(tmp_path_factory, data):
    document = bytearray(json.dumps({"traceEvents": GOOD, "distributedInfo": {"rank": 1}}).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.json"
    path.write_bytes(bytes(document))
    try:
        chrome.read(path)
    except InputError as error:
        said = error
    else:
        return
    assert said.message
    assert said.hint


def test_events_that_start_with_a_key_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome_stream, "BLOCK_BYTES", 2000)
    events = [{"cname": "x", **kernel(10 * i, 1, correlation=i)} for i in range(1, 300)]
    t = read(tmp_path, {"traceEvents": events})
    assert len(t.of(Kind.KERNEL)) == 299
    assert not t.damage


def test_a_file_that_will_not_fit_is_refused_early_with_what_it_needs(tmp_path):
    events = [kernel(i * 10, 5) for i in range(200_000)]
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"traceEvents": events}))
    size = path.stat().st_size
    assert size > 3 * (8 << 20)  # several blocks, so that it can be known before the end
    with pytest.raises(InputError) as refused:
        open_trace(path, memory_limit=4_000_000)
    assert refused.value.code == "memory_limit"
    assert "by the first" in refused.value.message
    assert "0.00 GB" in refused.value.message  # the limit, in GB
    share = int(re.search(r"by the first (\d+)%", refused.value.message).group(1))
    assert share < 100
    assert len(open_trace(path, memory_limit=1_000_000_000).of(Kind.KERNEL)) == 200_000
