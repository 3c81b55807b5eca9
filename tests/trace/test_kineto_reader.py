"""The Kineto reader: exact times, columns, and damage that is named instead of fatal."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from mansard.core.errors import InputError
from mansard.trace.readers.kineto import NONE, read_kineto, to_ns

SHARED = Path(os.environ.get("MANSARD_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture
def kineto_file():
    def find(name):
        path = SHARED / "data" / "traces" / "kineto" / name
        if not path.exists():
            pytest.skip(f"{name} needs the shared data: set MANSARD_SHARED")
        return path

    return find


def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write(path, document):
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_times_keep_every_nanosecond_of_their_text(tmp_path):
    # As a float64, 1.7e15 us steps by 0.25 us: .123 would be read as .000 or .250.
    text = '{"baseTimeNanoseconds": 5, "traceEvents": [{"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":"stream 7",'
    text += '"ts":1700000000000000.123,"dur":0.001,"args":{"device":1,"stream":7,"correlation":9}}]}'
    trace = read_kineto(write(tmp_path / "a.json", text))
    assert trace.start_ns.tolist() == [1700000000000000128]  # 1700000000000000123 + 5
    assert trace.end_ns.tolist() == [1700000000000000129]
    assert trace.categories == ("kernel",)  # old files write Kernel
    assert (trace.device[0], trace.stream[0], trace.correlation[0]) == (1, 7, 9)
    assert trace.external_id[0] == NONE
    assert trace.threads == ((0, "stream 7"),)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"0.001", 1),
        (b"12", 12000),
        (b'"7.25"', 7250),
        (b"1.9999", 1999),
        (b"-1", -1000),
        (b"2e3", 2000000),
        (b"nan", None),
        (b"", None),
        (b"{}", None),
    ],
)
def test_microseconds_become_nanoseconds(text, ns):
    assert to_ns(text) == ns


def test_objects_lists_and_gzip_read_alike(tmp_path):
    events = [event("b", 2, 1), event("a", 1, 5, **{"Input Dims": [[2, 3]], "Input type": ["float"]})]
    one = read_kineto(write(tmp_path / "o.json", {"traceEvents": events, "schemaVersion": 1}))
    two = read_kineto(write(tmp_path / "l.json", events))
    (tmp_path / "z.json").write_bytes(gzip.compress(json.dumps({"x": 1, "traceEvents": events}).encode()))
    three = read_kineto(tmp_path / "z.json")
    for trace in (one, two, three):
        assert [trace.names[i] for i in trace.name] == ["a", "b"]  # by start
        assert trace.start_ns.tolist() == [1000, 2000]
        assert trace.signature.tolist() == [0, NONE]
        assert trace.signatures[0].dims == ([2, 3],)
        assert trace.damage == ()


def test_begin_and_end_make_an_event_and_names_are_kept(tmp_path):
    events = [
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "main"}},
        {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 7, "tid": 1, "ts": 1},
        {"ph": "B", "cat": "cpu_op", "name": "inner", "pid": 7, "tid": 1, "ts": 2},
        {"ph": "E", "pid": 7, "tid": 1, "ts": 3},
        {"ph": "E", "pid": 7, "tid": 1, "ts": 9},
        {"ph": "E", "pid": 7, "tid": 1, "ts": 10},
        {"ph": "B", "cat": "cpu_op", "name": "never ends", "pid": 7, "tid": 1, "ts": 11},
    ]
    trace = read_kineto(write(tmp_path / "a.json", events))
    assert [
        (trace.names[n], int(s), int(e)) for n, s, e in zip(trace.name, trace.start_ns, trace.end_ns, strict=True)
    ] == [
        ("outer", 1000, 9000),
        ("inner", 2000, 3000),
    ]
    assert trace.thread_names[(7, 1)] == "main"
    assert sorted(trace.damage) == [
        "1 events that begin and never end are left out",
        "1 events that end without a beginning are left out",
    ]


def test_ties_put_the_longest_first(tmp_path):
    trace = read_kineto(write(tmp_path / "a.json", [event("child", 1, 2), event("parent", 1, 4)]))
    assert [trace.names[i] for i in trace.name] == ["parent", "child"]


@pytest.mark.parametrize(
    ("change", "count", "word"),
    [
        (lambda text: text[:-40], 2, "left out"),  # cut inside the third event
        (lambda text: text.replace('"ts": 3', '"ts": NaN'), 2, "without a start"),
        (lambda text: text.replace('"name": "b"', '"name": "b\\q"'), 2, "left out"),  # not an escape of JSON
        (lambda text: text.replace("}]}", "},]}"), 3, "event by event"),  # trailing comma
        (lambda text: text.replace('"dur": 1,', '"dur": -1,'), 0, "negative"),
        (lambda text: text.replace('"ts": 2, "dur": 1,', '"ts": 2,'), 2, "without a start or a duration"),
        (lambda text: text.replace('"ts": 2, "dur": 1,', '"ts": 2, "dur": 700000000000,'), 2, "absurd"),  # 8 days
    ],
)
def test_damage_is_named_and_the_rest_is_read(tmp_path, change, count, word):
    whole = json.dumps({"traceEvents": [event("a", 1, 1), event("b", 2, 1), event("c", 3, 1)]})
    changed = change(whole)
    assert changed != whole
    trace = read_kineto(write(tmp_path / "a.json", changed))
    assert trace.count == count
    assert any(word in d for d in trace.damage), trace.damage


def test_bytes_that_are_no_utf8_and_a_mark_at_the_start_are_survived(tmp_path):
    raw = b"\xef\xbb\xbf" + json.dumps([event("name", 1, 1), event("other", 2, 1)]).encode()
    (tmp_path / "a.json").write_bytes(raw)
    assert read_kineto(tmp_path / "a.json").count == 2
    (tmp_path / "b.json").write_bytes(raw.replace(b'"name": "name"', b'"name": "na\xffme"'))
    trace = read_kineto(tmp_path / "b.json")
    assert trace.count == 2
    assert any("UTF-8" in d for d in trace.damage)


def test_a_cut_compressed_file_yields_its_beginning(tmp_path):
    events = [event(f"op{i}", i + 1, 1, note=os.urandom(16).hex()) for i in range(4000)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    (tmp_path / "a.json.gz").write_bytes(packed[: len(packed) // 2])
    trace = read_kineto(tmp_path / "a.json.gz")
    assert 1000 < trace.count < 4000
    assert any("cut short" in d for d in trace.damage)


@pytest.mark.parametrize("text", ["", "hello", "{}", '{"nodes": [1]}', "[]x", '[["a", 1], ["b", 2]]'])
def test_what_is_no_trace_is_refused_by_name(tmp_path, text):
    with pytest.raises(InputError):
        read_kineto(write(tmp_path / "a.json", text))
    with pytest.raises(InputError, match="Cannot read"):
        read_kineto(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("name", "categories"),
    [
        ("h100_qwen1.5-0.5b.json.gz", {"cpu_op": 4186, "kernel": 1465, "gpu_memset": 241, "cuda_runtime": 1921}),
        ("mi300x_resnet_ddp8_checkpointing.json.gz", {"cpu_op": 8004, "kernel": 2995, "gpu_memcpy": 550}),
        ("old_capital_categories_rank1.json.gz", {"runtime": 8, "kernel": 4}),
        ("a100_small.json", {"cpu_op": 10, "kernel": 5, "cuda_runtime": 11}),
        ("mtia_inference_rank0.json.gz", {"cpu_op": 10346, "mtia_ccp_events": 1313, "user_annotation": 1696}),
    ],
)
def test_event_counts_of_real_files(kineto_file, name, categories):
    """Counts per category as the manifest of the files gives them."""
    trace = read_kineto(kineto_file(name))
    for category, count in categories.items():
        assert int(trace.of_category(category).sum()) == count
    assert trace.damage == ()
    assert (np.diff(trace.start_ns) >= 0).all()
