"""Collectives: worked numbers of published measurements, and what must hold for all sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core.collective_times import (
    Axis,
    mesh_all_to_all_time,
    ring_time,
    scaling_book_all_gather_time,
    torus_all_to_all_busbw,
    torus_time,
    tree_time,
    wraps,
)
from mansard.core.collectives import (
    SIZE_MEANS,
    bus_factor,
    canonical,
    fit_alpha_beta,
    ironwood_bytes,
    rates,
    sent_ratio,
    size_bytes,
)
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown

RANKS = st.integers(2, 512)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.75),  # 2 x 7/8
        ("psum", 1.75),
        ("all_gather", 0.875),  # 7/8
        ("psum_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("gather", 0.875),
        ("ppermute", 1.0),
        ("send_recv", 1.0),
        ("device_to_device", 1.0),
    ],
)
def test_bus_factors_of_eight_devices(operation, factor):
    assert bus_factor(operation, 8) == factor
    assert sent_ratio(operation, 8) == factor
    assert canonical(operation) in SIZE_MEANS


def test_one_device_is_unknown_not_zero():
    assert isinstance(bus_factor("all_reduce", 1), Unknown)
    found = rates("all_gather", size_bytes=1e6, ranks=1, seconds=1e-3)
    assert isinstance(found.busbw_bytes_per_s, Unknown)
    assert found.algbw_bytes_per_s == pytest.approx(1e9)
    assert sent_ratio("all_reduce", 1) == 0.0
    assert isinstance(bus_factor("all_reduce", 0), Unknown)
    assert isinstance(bus_factor("hocus", 4), Unknown)
    with pytest.raises(UsageError):
        canonical("hocus")


def test_the_gathered_result_is_the_size_of_an_all_gather():
    # matrix_dim 1024: shard 1024 x 8 x 128 x 2 B = 2 MiB; 8 devices gather 16 MiB and each sends 7 shards = 14 MiB.
    s = size_bytes("all_gather", local_bytes=2.0 * 2**20, ranks=8)
    assert s == 16 * 2**20
    assert s * sent_ratio("all_gather", 8) == 14 * 2**20
    # all-reduce of 16 MiB sends twice that
    assert 16 * 2**20 * sent_ratio("all_reduce", 8) == 28 * 2**20


def test_published_all_gather_per_chip_is_twice_the_one_per_device():
    # TPU7x guide: 178.77 GB/s all-gather "parallel" counts two cores: (n-1) L 2 / t; ours is (n-1) L / t = 89.4 GB/s.
    shard, n = 2.0**24 * 4, 4
    t = ironwood_bytes("all_gather", local_bytes=shard, ranks=n, parallel=True) / 178.77e9
    ours = rates("all_gather", size_bytes=n * shard, ranks=n, seconds=t)
    assert ours.busbw_bytes_per_s == pytest.approx(89.385e9, rel=1e-9)


def test_the_suites_count_of_an_all_reduce_over_32_cores():
    # counted: 2/32 x 30 x 2 MiB = 3,932,160; right: 2 x 31/32 x 2 MiB = 4,063,232
    assert ironwood_bytes("psum", local_bytes=2.0**21, ranks=32, parallel=False) == 3_932_160
    assert sent_ratio("psum", 32) * 2**21 == 4_063_232
    # its 31.8 GB/s at 0.1237 ms; by NCCL's definition 32.8
    counted = 3_932_160 / 0.12376e-3
    assert counted == pytest.approx(31.77e9, rel=1e-3)
    found = rates("psum", size_bytes=2.0**21, ranks=32, seconds=0.12376e-3)
    assert found.busbw_bytes_per_s == pytest.approx(32.83e9, rel=1e-3)


def test_fit_of_the_published_all_reduce():
    # slope (129.91 - 123.76) us / 4,063,232 B -> 660.7 GB/s; alpha 123.76 - 6.15 = 117.61 us; share 117.61/123.76 = 0.950
    fit = fit_alpha_beta({4_063_232.0: [123.76e-6], 8_126_464.0: [129.91e-6]})
    assert fit.alpha_s == pytest.approx(117.61e-6, rel=1e-6)
    assert fit.beta_bytes_per_s == pytest.approx(660.69e9, rel=1e-4)
    assert fit.n_half_bytes == pytest.approx(117.61e-6 * 660.69e9, rel=1e-4)
    assert fit.latency_share_ratio(4_063_232.0) == pytest.approx(0.9503, rel=1e-3)
    # half of beta is reached at n_half: x / t(x) = beta / 2
    assert fit.n_half_bytes / fit.seconds(fit.n_half_bytes) == pytest.approx(fit.beta_bytes_per_s / 2)


def test_fit_of_the_published_permute():
    # v5p-8: t = 4.55 us + B / 86.3 GB/s; 1 MiB 16.94 us by that formula 4.55 + 12.15 = 16.70, 64 MiB 782 us
    fit = fit_alpha_beta({2.0**20: [16.94e-6], 2.0**26: [782e-6]})
    assert fit.beta_bytes_per_s == pytest.approx(86.37e9, rel=1e-3)  # 66,060,288 B / 765.06 us = 86.35 GB/s
    assert fit.alpha_s == pytest.approx(16.94e-6 - 2**20 / 86.35e9, rel=1e-2)


def test_intervals_cover_the_truth_of_a_noisy_sweep():
    rng = np.random.default_rng(3)
    alpha, beta = 20e-6, 50e9
    covered = 0
    for _ in range(40):
        sweep = {
            float(x): (alpha + x / beta) * (1.0 + 0.03 * rng.standard_normal(9)) for x in 2.0 ** np.arange(10, 26, 2)
        }
        fit = fit_alpha_beta(sweep, resamples=200)
        covered += fit.alpha_ci95_s[0] <= alpha <= fit.alpha_ci95_s[1]
        covered += fit.beta_ci95_bytes_per_s[0] <= beta <= fit.beta_ci95_bytes_per_s[1]
        assert fit.error_ratio < 0.1
    assert covered >= 68  # of 80; 76 would be 95 %


def test_what_a_fit_cannot_say_is_unknown():
    assert isinstance(fit_alpha_beta({1e6: [1e-3]}), Unknown)
    flat = fit_alpha_beta({1e6: [2e-3], 2e6: [1e-3]})
    assert isinstance(flat.beta_bytes_per_s, Unknown)
    assert isinstance(flat.n_half_bytes, Unknown)
    assert isinstance(flat.latency_share_ratio(1e6), Unknown)
    # 1 ms and 2.5 ms at one and two MB: t = -0.5 ms + 1.5 ms/MB
    steep = fit_alpha_beta({1e6: [1e-3], 2e6: [2.5e-3]})
    assert steep.alpha_s == pytest.approx(-0.5e-3)
    assert isinstance(steep.n_half_bytes, Unknown)
    assert isinstance(fit_alpha_beta({1e6: [1e-3], 2e6: [float("nan")]}), Unknown)


def test_ring_and_tree_of_eight():
    # 14 steps of 1 us and 1.75 x 8 GB / 400 GB/s = 35 ms
    assert ring_time("all_reduce", size_bytes=8e9, ranks=8, bytes_per_s=400e9, alpha_s=1e-6) == pytest.approx(35.014e-3)
    # half of it
    half = ring_time("all_gather", size_bytes=8e9, ranks=8, bytes_per_s=400e9, alpha_s=1e-6)
    assert half == pytest.approx(17.507e-3)
    assert ring_time("reduce_scatter", size_bytes=8e9, ranks=8, bytes_per_s=400e9, alpha_s=1e-6) == half
    # 2 x 3 levels of 1 us and 2 x 20 ms
    assert tree_time("all_reduce", size_bytes=8e9, ranks=8, bytes_per_s=400e9, alpha_s=1e-6) == pytest.approx(40.006e-3)
    with pytest.raises(UsageError):
        tree_time("all_to_all", size_bytes=1.0, ranks=2, bytes_per_s=1.0)


def test_torus_rows_of_the_scaling_book():
    row = [Axis(length=4, wraps=False)]
    # 34 MB on 4 TPU v5e without wrap: 3/4 x 34e6 / 45e9 = 567 us ("560"); the naive figure is 34e6 / 90e9 = 378 us
    assert torus_time("all_gather", size_bytes=34e6, axes=row, link_bytes_per_s=45e9) == pytest.approx(
        566.7e-6, rel=1e-3
    )
    ring = [Axis(length=4, wraps=True)]
    assert scaling_book_all_gather_time(size_bytes=34e6, axes=ring, both_ways_bytes_per_s=90e9) == pytest.approx(
        377.8e-6, rel=1e-3
    )
    # no wrap counts double in both terms
    assert scaling_book_all_gather_time(size_bytes=34e6, axes=row, both_ways_bytes_per_s=90e9) == pytest.approx(
        755.6e-6, rel=1e-3
    )
    assert scaling_book_all_gather_time(size_bytes=1.0, axes=row, both_ways_bytes_per_s=90e9) == pytest.approx(4e-6)
    # 128 kB: three hops of 1 us; 0.75 x 128e3 / 45e9 = 2.1 us is below them
    assert torus_time("all_gather", size_bytes=128e3, axes=row, link_bytes_per_s=45e9) == pytest.approx(3e-6)
    # an all-reduce is two of them
    assert torus_time("all_reduce", size_bytes=34e6, axes=row, link_bytes_per_s=45e9) == pytest.approx(
        1133.3e-6, rel=1e-3
    )


def test_all_to_all_of_the_complaint_was_near_its_ceiling():
    # 2x2x4 chips, no wrap: cut of 4 links; 4 x 100 x 4 x 30 / 32^2 = 46.875 GB/s; 43.2 is 92 % of it
    axes = [Axis(length=2, wraps=False), Axis(length=2, wraps=False), Axis(length=4, wraps=False)]
    most = torus_all_to_all_busbw(axes=axes, link_bytes_per_s=100e9, devices=32, counted=30)
    assert most == pytest.approx(46.875e9)
    assert 43.2e9 / most == pytest.approx(0.92, abs=0.005)


def test_wraps_of_tpu_slices():
    assert [wraps("tpu-v5e", n) for n in (4, 8, 16)] == [False, False, True]
    assert [wraps("tpu-v5p", n) for n in (2, 4, 8, 6)] == [False, True, True, False]
    assert wraps("tpu-v7x", 4, (2, 2, 4)) is False
    assert wraps("tpu-v7x", 4, (4, 4, 8)) is True
    assert isinstance(wraps("h200", 8), Unknown)


@given(
    ranks=RANKS, size=st.floats(1.0, 1e12), rate=st.floats(1e6, 1e13), more=st.floats(1.0, 100.0), alpha=st.floats(0, 1)
)
def test_more_bandwidth_is_never_slower(ranks, size, rate, more, alpha):
    for fn, names in ((ring_time, ("all_reduce", "all_gather", "broadcast")), (tree_time, ("all_reduce", "broadcast"))):
        for name in names:
            slow = fn(name, size_bytes=size, ranks=ranks, bytes_per_s=rate, alpha_s=alpha)
            assert fn(name, size_bytes=size, ranks=ranks, bytes_per_s=rate * more, alpha_s=alpha) <= slow * (1 + 1e-12)
            assert fn(name, size_bytes=size, ranks=ranks, bytes_per_s=rate, alpha_s=0.0) <= slow
    one = mesh_all_to_all_time(size_bytes=size, ranks=ranks, bytes_per_s=rate)
    assert mesh_all_to_all_time(size_bytes=size, ranks=ranks, bytes_per_s=rate * more) <= one * (1 + 1e-12)


@given(
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=3), size=st.floats(1.0, 1e12), more=st.floats(1.0, 100.0),
    name=st.sampled_from(("all_gather", "reduce_scatter", "all_reduce", "all_to_all")),
)  # fmt: skip
def test_links_between_the_ends_and_bandwidth_never_slow_a_torus(lengths, size, more, name):
    open_, closed = ([Axis(length=n, wraps=w) for n in lengths] for w in (False, True))
    base = torus_time(name, size_bytes=size, axes=open_, link_bytes_per_s=45e9)
    assert torus_time(name, size_bytes=size, axes=closed, link_bytes_per_s=45e9) <= base * (1 + 1e-12)
    assert torus_time(name, size_bytes=size, axes=open_, link_bytes_per_s=45e9 * more) <= base * (1 + 1e-12)


@given(ranks=RANKS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks):
    assert sent_ratio("all_reduce", ranks) == pytest.approx(
        sent_ratio("reduce_scatter", ranks) + sent_ratio("all_gather", ranks)
    )
    assert 0.5 <= sent_ratio("all_gather", ranks) < 1.0
