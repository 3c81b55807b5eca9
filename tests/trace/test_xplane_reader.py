"""The XPlane reader: hand-encoded files with known content, damage, and JAX's own reader as the oracle."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core import InputError
from mansard.trace.readers.xplane import XSpace, parse_xspace, read_xspace


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def entry(key: int, name: str, more: bytes = b"") -> bytes:
    return number(1, key) + block(2, number(1, key) + block(2, name) + more)


def event(metadata: int, offset_ps: int, duration_ps: int, *stats: bytes) -> bytes:
    return number(1, metadata) + number(2, offset_ps) + number(3, duration_ps) + b"".join(block(4, s) for s in stats)


def space(line: bytes, *, extra: bytes = b"") -> bytes:
    names = b"".join(block(5, entry(k, n)) for k, n in {1: "hlo_op", 2: "run_id", 3: "rate", 4: "fusion.1"}.items())
    plane = block(2, "/host:CPU") + block(3, line) + block(4, entry(7, "op")) + block(4, entry(8, "end: op")) + names
    return block(1, plane) + extra


LINE = (
    number(1, 42)
    + block(2, "python")
    + number(3, 5)
    + block(4, event(7, 1999, 2001, number(1, 1) + block(5, "dot.3"), number(1, 2) + number(4, -3)))
    + block(4, event(8, 3_000_000, 1_500_000, number(1, 1) + number(7, 4), number(1, 3) + double(2, 0.5)))
)


def test_times_are_the_origin_plus_picoseconds_rounded_down() -> None:
    line = parse_xspace(space(LINE)).planes[0].lines[0]
    # 5 ns + 1999 ps -> 6 ns (1.999 down to 1); end 5 ns + 4000 ps -> 9 ns; 5 + 3000 = 3005, end 5 + 4500 = 4505
    assert line.start_ns.tolist() == [6, 3005]
    assert line.end_ns.tolist() == [9, 4505]
    assert (line.name, line.number, line.timestamp_ns, line.count) == ("python", 42, 5, 2)


def test_stats_of_every_kind() -> None:
    plane = parse_xspace(space(LINE)).planes[0]
    line = plane.lines[0]
    assert plane.stats_of(line, 0) == {"hlo_op": "dot.3", "run_id": -3}
    assert plane.stats_of(line, 1) == {"hlo_op": "fusion.1", "rate": 0.5}
    assert plane.integers(line, "run_id").tolist() == [-3, -1]
    codes, texts = plane.texts(line, "hlo_op")
    assert [texts[c] for c in codes] == ["dot.3", "fusion.1"]
    assert [plane.event_names[m] for m in line.metadata.tolist()] == ["op", "end: op"]


def test_the_epoch_is_the_profile_start() -> None:
    names = block(5, entry(1, "profile_start_time"))
    task = block(
        1, block(2, "Task Environment") + names + block(6, number(1, 1) + number(3, 1_795_000_000_000_000_000))
    )
    assert parse_xspace(space(LINE, extra=task)).epoch_ns == 1_795_000_000_000_000_000
    assert parse_xspace(space(LINE)).epoch_ns is None
    absolute = LINE.replace(number(3, 5), number(3, 1_795_000_000_000_000_000))
    assert parse_xspace(space(absolute)).epoch_ns == 0


@pytest.mark.parametrize("cut", [3, 40, 90, -1, -7])
def test_a_cut_file_is_an_error_and_not_an_empty_profile(cut: int) -> None:
    with pytest.raises(InputError) as caught:
        parse_xspace(space(LINE)[:cut])
    assert caught.value.code == "damaged_xplane"


def test_a_length_past_the_end_of_an_event_is_an_error() -> None:
    bad = event(7, 1, 1) + varint(4 << 3 | 2) + varint(100)  # a stat of 100 bytes in an event that ends here
    with pytest.raises(InputError, match="past the end"):
        parse_xspace(space(block(2, "python") + block(4, bad)))


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\x00", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_xspace(data)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**45), st.integers(-(2**62), 2**62)), max_size=20))
def test_any_events_come_back(rows: list[tuple[int, int, int]]) -> None:
    body = b"".join(block(4, event(7, o, d, number(1, 2) + number(4, r))) for o, d, r in rows)
    plane = parse_xspace(space(block(2, "t") + body)).planes[0]
    line = plane.lines[0]
    assert line.start_ns.tolist() == [o // 1000 for o, _, _ in rows]
    assert line.end_ns.tolist() == [(o + d) // 1000 for o, d, _ in rows]
    assert plane.integers(line, "run_id").tolist() == [r for _, _, r in rows]


def shared(name: str) -> Path:
    root = Path(os.environ.get("MANSARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    path = root / "data" / "traces" / "xplane" / name
    if not path.is_file():
        pytest.skip(f"no sample profiles: {name} is not in the shared folder (set MANSARD_SHARED)")
    return path


def agrees_with_jax(ours: XSpace, path: Path) -> int:
    jax = pytest.importorskip("jax")
    count = 0
    theirs = jax.profiler.ProfileData.from_file(str(path))
    for plane, other in zip(ours.planes, theirs.planes, strict=True):
        assert plane.name == other.name
        for line, twin in zip(plane.lines, other.lines, strict=True):
            events = list(twin.events)
            assert line.count == len(events)
            count += line.count
            start = np.array([e.start_ns for e in events])
            length = np.array([e.duration_ns for e in events])
            assert np.abs(line.start_ns - start).max(initial=0) <= 1.001
            assert np.abs(line.end_ns - line.start_ns - length).max(initial=0) <= 1.001
            for i in range(0, line.count, max(1, line.count // 40)):
                assert plane.event_names.get(int(line.metadata[i]), "") == events[i].name
                assert plane.stats_of(line, i) == dict(events[i].stats)
    return count


@pytest.mark.parametrize("name", ["cpu_jax0.10.2.xplane.pb", "mi300x_conv_jax0.8.xplane.pb"])
def test_real_profiles_agree_with_the_reader_of_jax(name: str) -> None:
    path = shared(name)
    assert agrees_with_jax(read_xspace(path), path) > 500


def test_a_profile_recorded_now_agrees_with_the_reader_of_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from mansard.trace.recorders.jax_session import TRACE_FILE, JaxSession

    jnp.ones((64, 64)).block_until_ready()
    session = JaxSession()
    session.start(tmp_path)
    for _ in range(3):
        (jnp.ones((64, 64)) @ jnp.ones((64, 64))).block_until_ready()
    assert TRACE_FILE in session.stop()
    assert agrees_with_jax(read_xspace(tmp_path / TRACE_FILE), tmp_path / TRACE_FILE) > 20


def test_a_corrupt_profile_is_a_named_error() -> None:
    with pytest.raises(InputError, match="past the end") as caught:
        read_xspace(shared("bad_tpu_corrupt.xplane.pb"))
    assert "bad_tpu_corrupt" in caught.value.message


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_xspace(tmp_path / "none.xplane.pb")
