"""The compiled kernels do what their figures claim."""

import itertools

import numpy as np
import pytest

pytest.importorskip("numba")

from mansard.core.errors import UndecidedError
from mansard.measure import kernels
from mansard.measure import memory as memory_module
from mansard.measure.machine import Cache
from mansard.measure.memory import Arena, Probe, cache_working_sets, cliff_findings, dram_bytes, fresh_rates
from mansard.measure.team import Team, spans_s, split_evenly
from mansard.measure.vector import audit_rate, clock_hz, expected_sum, fma_flop, fma_rates, low_rate

COUNT = 1024  # floats in one array: 4 blocks of 1024 bytes


def arrays():
    """Three aligned arrays of random f32, and their addresses."""
    raw = np.random.default_rng(0).standard_normal(3 * COUNT + 16).astype(np.float32)
    start = (-raw.ctypes.data % 64) // 4
    parts = [raw[start + k * COUNT : start + (k + 1) * COUNT] for k in range(3)]
    return parts, [p.ctypes.data for p in parts]


EXPECTED = {
    "write": lambda c, a, b, s: np.full(COUNT, s, np.float32),
    "copy": lambda c, a, b, s: a,
    "scale": lambda c, a, b, s: s * a,
    "add": lambda c, a, b, s: a + b,
    "triad": lambda c, a, b, s: (a.astype(np.float64) + np.float64(s) * b).astype(np.float32),  # one rounding: an FMA
    "in_place": lambda c, a, b, s: s * c,
}


@pytest.mark.parametrize("store", ["regular", "streaming"])
@pytest.mark.parametrize("mix", list(EXPECTED))
@pytest.mark.parametrize("which", [0, 1])
def test_every_kernel_writes_what_numpy_writes(mix, store, which):
    (c, a, b), addresses = arrays()
    want = EXPECTED[mix](c.copy(), a.copy(), b.copy(), np.float32(0.75))
    kept = a.copy(), b.copy()
    flag, times = np.zeros(8, np.int64), np.zeros((1, 2), np.int64)
    kernel = kernels.memory_kernel(mix, store, kernels.SHAPES[mix][which])
    kernel(flag.ctypes.data, 1, times, *addresses, COUNT * 4 // kernels.BLOCK_BYTES, 1, np.float32(0.75))
    np.testing.assert_array_equal(c, want)
    np.testing.assert_array_equal(a, kept[0])
    np.testing.assert_array_equal(b, kept[1])
    assert times[0, 1] > times[0, 0] > 0


def test_read_sums_every_element_and_repeats():
    (_, a, _), addresses = arrays()
    a[:] = np.arange(COUNT) % 7
    flag, times = np.zeros(8, np.int64), np.zeros((1, 2), np.int64)
    for shape in kernels.SHAPES["read"]:
        flag[:] = 0
        got = kernels.memory_kernel("read", "regular", shape)(
            flag.ctypes.data, 1, times, *addresses, COUNT * 4 // kernels.BLOCK_BYTES, 3, np.float32(1.0)
        )
        assert got == 3 * a.astype(np.float64).sum()  # small whole numbers: exact in f32


def test_streaming_stores_are_in_the_compiled_code():
    (_, _, _), addresses = arrays()
    flag, times = np.zeros(8, np.int64), np.zeros((1, 2), np.int64)
    kernel = kernels.memory_kernel("copy", "streaming")
    kernel(flag.ctypes.data, 1, times, *addresses, 1, 1, np.float32(1.0))
    text = "".join(kernel.inspect_asm().values())
    import platform

    if platform.machine() == "x86_64":
        assert "movntp" in text
    else:
        assert "stnp" in text


def test_bytes_are_counted_as_stream_counts_them():
    # 10 arrays of N bytes: read and write 1N, copy and scale 2N, add and triad 3N, a = s*a is read and written: 2N
    want = {"read": 1, "write": 1, "copy": 2, "scale": 2, "add": 3, "triad": 3, "in_place": 2}
    assert {m: kernels.counted_bytes(m, 1.0) for m in kernels.MIXES} == want
    probe = Probe(
        level="l2",
        mix="triad",
        page="4k",
        store="regular",
        scope="node",
        working_set_bytes=3 * 4096 + 2 * 5120,
        repeats=7,
    )
    assert probe.array_bytes == 4096
    assert probe.sample_bytes(2) == 3 * 4096 * 7 * 2 == 172032


@pytest.mark.parametrize("mix", list(kernels.MIXES))
def test_arrays_of_a_probe_do_not_overlap_and_fit(mix):
    probe = Probe(level="l1", mix=mix, page="4k", store="regular", scope="core", working_set_bytes=100_000)
    used = sorted(set(probe.offsets()))[: kernels.arrays_of(mix)]
    assert len(used) == kernels.arrays_of(mix)
    for low, high in itertools.pairwise(used):
        assert high - low >= probe.array_bytes
    assert used[-1] + probe.array_bytes <= probe.working_set_bytes
    assert all(offset % kernels.ALIGN_BYTES == 0 for offset in used)


@pytest.mark.parametrize("mix", list(kernels.MIXES))
def test_a_team_covers_all_of_its_arrays(mix):
    with Team((0, 0)) as team:
        arena = Arena(team, "4k", 64 * 1024)
        store = "streaming" if mix in kernels.STREAMING_MIXES else "regular"
        probe = Probe(level="l2", mix=mix, page="4k", store=store, scope="node", working_set_bytes=64 * 1024)
        rates = arena.run(probe, 1, audit=True)
        assert rates.shape == (1,)
        assert len({b.address for b in arena.buffers}) == 2
        if mix == "write":
            for buffer in arena.buffers:
                assert (buffer.floats(0, probe.array_bytes // 4) == np.float32(0.5)).all()


def test_a_kernel_that_writes_the_wrong_thing_is_refused(monkeypatch):
    real = kernels.memory_kernel
    monkeypatch.setattr(memory_module.kernels, "memory_kernel", lambda _m, s, shape=None: real("scale", s, shape))
    with Team((0,)) as team:
        arena = Arena(team, "4k", 64 * 1024)
        probe = Probe(level="l2", mix="copy", page="4k", store="regular", scope="core", working_set_bytes=64 * 1024)
        with pytest.raises(UndecidedError, match="copy kernel"):
            arena.run(probe, 1, audit=True)


def test_fresh_memory_is_written_to_the_end():
    with Team((0,)) as team:
        assert fresh_rates(team, "4k", 2, 1 << 20).shape == (2,)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_fma_chain_has_the_value_of_its_recurrence(dtype):
    lanes, accumulators = kernels.vector_shapes(dtype)[0]
    number = np.float32 if dtype == "f32" else np.float64
    flag, times = np.zeros(8, np.int64), np.zeros((1, 2), np.int64)
    run = kernels.fma_kernel(dtype, lanes, accumulators)
    # p -> p/2 + 3 twice: p/4 + 4.5; sum over k < K of (k/4 + 4.5) = K(K-1)/8 + 4.5 K, times the lanes; exact in binary
    got = run(flag.ctypes.data, 1, times, 2, number(0.5), number(3.0))
    want = lanes * (accumulators * (accumulators - 1) / 8 + 4.5 * accumulators)
    assert got == want
    assert expected_sum(lanes, accumulators, 2, 0.5, 3.0) == want


def test_flop_of_a_chain():
    # 2 FLOP x 16 lanes x 12 accumulators x 1000 steps
    assert fma_flop(16, 12, 1000) == 384_000


def test_the_chain_runs_and_is_checked(monkeypatch):
    with Team((0,)) as team:
        assert (fma_rates(team, "f32", *kernels.vector_shapes("f32")[0], 2) > 0).all()
        assert clock_hz(team, 2) > 1e8
        monkeypatch.setattr(
            kernels, "fma_kernel", lambda *_: lambda _f, _n, t, *_a: (t.fill(1), t[:, 1].fill(2), 0.0)[2]
        )
        with pytest.raises(ValueError, match=r"returned 0\.0"):
            fma_rates(team, "f32", 16, 12, 2)


def test_a_folded_loop_is_refused():
    # one core at 4 GHz can do 64 FLOP per cycle in f32: 256 GFLOP/s, in f64 half of it
    assert audit_rate(256e9, "f32", 4e9, 1) is None
    assert audit_rate(512e9, "f32", 4e9, 2) is None
    assert "folded" in audit_rate(512e9, "f32", 4e9, 1)
    assert "folded" in audit_rate(256e9, "f64", 4e9, 1)
    assert audit_rate(1e15, "f32", None, 1) is None


def test_a_folded_kernel_leaves_a_finding_and_no_ceiling(monkeypatch):
    from mansard.measure import vector

    monkeypatch.setattr(vector, "clock_hz", lambda _team: 4e9)
    monkeypatch.setattr(vector, "fma_rates", lambda *_a: np.full(3, 9e12))
    result = vector.measure_vector((0,), dtypes=("f32",), rounds=1)
    assert result.ceilings == []
    assert {f["code"] for f in result.findings} == {"implausible_vector_peak"}


def test_spilled_registers_leave_a_finding():
    assert low_rate(117.7e9, "f32", 3.67e9, 1) is None  # 32 per cycle: two 256-bit pipes
    assert low_rate(58.8e9, "f64", 3.67e9, 1) is None  # 16
    assert "spilled" in low_rate(50e9, "f32", 3.67e9, 1)  # 13.6


def test_pieces_cover_everything_once():
    pieces = split_evenly(11, 4)
    covered = [i for start, n in pieces for i in range(start, start + n)]
    assert covered == list(range(11))


def test_the_span_is_last_end_minus_first_start():
    one, two = np.array([[100, 400]]), np.array([[150, 600]])
    assert spans_s([one, two])[0] == pytest.approx(500e-9)


def test_an_error_in_a_thread_reaches_the_caller():
    with Team((0, 0)) as team, pytest.raises(ZeroDivisionError):
        team.each(lambda i: 1 // i)


CACHES = (
    Cache(level=1, size_bytes=48 * 1024, cpus=(0,)),
    Cache(level=1, size_bytes=48 * 1024, cpus=(1,)),
    Cache(level=2, size_bytes=1 << 20, cpus=(0,)),
    Cache(level=2, size_bytes=1 << 20, cpus=(1,)),
    Cache(level=3, size_bytes=32 << 20, cpus=(0, 1)),
)


def test_working_sets_lie_between_two_caches():
    # one thread: a quarter, a half and three quarters of 32 MiB; two threads share it, so half of that each
    assert cache_working_sets(CACHES, (0,), 3) == (8 << 20, 16 << 20, 24 << 20)
    assert cache_working_sets(CACHES, (0, 1), 3) == (4 << 20, 8 << 20, 12 << 20)
    # L2: 256 KiB is 5.3 times the L1
    assert cache_working_sets(CACHES, (0,), 2) == (256 << 10, 512 << 10, 768 << 10)
    small_l3 = (*CACHES[:4], Cache(level=3, size_bytes=4 << 20, cpus=(0, 1)))
    assert cache_working_sets(small_l3, (0, 1), 3) == ()  # 2 MiB each, less than 4 x 1 MiB


def test_the_dram_working_set_is_twelve_times_the_last_cache():
    assert dram_bytes(CACHES, None) == 12 * (32 << 20)
    assert dram_bytes(CACHES, 2e9) == int(2e9 * 0.05) // (2 << 20) * (2 << 20)
    assert dram_bytes((), None) == 192 << 20


def test_a_cache_that_the_bandwidth_does_not_show_is_a_finding():
    from mansard.core.ceilings import MemoryLevel

    levels = (
        MemoryLevel(level="l3", capacity_bytes=32 * 2.0**20),
        MemoryLevel(level="dram", capacity_bytes=1e10),
    )
    sizes = [2.0**k for k in range(13, 29)]
    honest = [{"working_set_bytes": s, "bytes_per_s": 100e9 if s <= 32 * 2**20 else 40e9} for s in sizes]
    hidden = [{"working_set_bytes": s, "bytes_per_s": 100e9 if s <= 2 * 2**20 else 40e9} for s in sizes]
    assert cliff_findings(honest, levels) == []
    assert [f["code"] for f in cliff_findings(hidden, levels)] == ["cache_capacity_not_confirmed"]
