"""`plan offload`: hit rates against exact replay and brute force, the link by Little's law, and what must always hold."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.cli.plan.offload import command
from mansard.cli.plan.offload_options import read_trace
from mansard.core import Unknown
from mansard.core.errors import InputError, UsageError
from mansard.plan.expert_cache import (
    draw,
    inclusion,
    layers_hit_ratio,
    lru_hit_ratio,
    replay,
    static_hit_ratio,
    together,
    zipf,
)
from mansard.plan.link_use import cpu_or_link, link_use, observed_bytes_per_s
from mansard.plan.offload import ALONE, Bank, Hosts, Rest, Routing, bank_of, offload
from mansard.predict.estimate import Request
from mansard.workload.model.load import load_model

NONE = Unknown("not given")
BANK = Bank(unit="expert", unit_bytes=9.4e6, unit_params=4.7e6, items=128, per_token=8, layers=48)
HOST = Hosts(link_bytes_per_s=31e9, cpu_bytes_per_s=400e9, cpu_flop_per_s=3e12)


def test_bytes_in_flight_of_a_fast_link():
    # 8192 threads x 16 B = 131,072 B; at 220 GB/s each byte is under way 595.8 ns; 418 GB/s x 595.8 ns = 249,037 B.
    u = link_use(in_flight_bytes=8192 * 16, observed_bytes_per_s=220e9, limit_bytes_per_s=418e9)
    assert u.in_flight_bytes == 131072
    assert u.needed_bytes == pytest.approx(131072 * 418 / 220)
    assert u.more_ratio == pytest.approx(1.9)
    assert not u.full
    # Twice as many fill it; four times (8 to 32 blocks) is ample.
    assert u.at(1.0) == pytest.approx(220e9)
    assert u.at(1.89) < 418e9
    assert u.at(2.0) == u.at(4.0) == 418e9


def test_a_slow_link_was_full_already():
    u = link_use(in_flight_bytes=8192 * 16, observed_bytes_per_s=31e9, limit_bytes_per_s=31e9)
    assert u.full
    assert u.more_ratio == 1.0
    assert u.at(4.0) == u.at(1.0) == pytest.approx(31e9)


def test_more_than_the_link_can_do_is_refused():
    with pytest.raises(UsageError, match="were observed on a link"):
        link_use(in_flight_bytes=1e5, observed_bytes_per_s=50e9, limit_bytes_per_s=31e9)


def test_bandwidth_from_misses():
    # 2,340 misses of 9.4 MB in 0.1 s: 21.996 GB / 0.1 s.
    assert observed_bytes_per_s(misses=2340, unit_bytes=9.4e6, time_s=0.1) == pytest.approx(219.96e9)


def test_host_or_link():
    # 9.4 MB / 31 GB/s = 303.2 us; read by the host at 400 GB/s: 23.5 us; a token costs it 9.4e6 / 3e12 = 3.13 us.
    kw = {
        "unit_bytes": 9.4e6,
        "unit_params": 4.7e6,
        "link_bytes_per_s": 31e9,
        "cpu_bytes_per_s": 400e9,
        "cpu_flop_per_s": 3e12,
    }
    one = cpu_or_link(tokens=1.0, **kw)
    assert one.cpu_s == pytest.approx(23.5e-6)
    assert one.cpu_is_faster is True
    assert one.tokens_at_most == pytest.approx(303.226e-6 / 3.1333e-6, rel=1e-4)
    assert cpu_or_link(tokens=96.0, **kw).cpu_is_faster is True
    assert cpu_or_link(tokens=97.0, **kw).cpu_is_faster is False
    # A link faster than the host's memory: fetch, whatever the peak.
    never = cpu_or_link(tokens=1.0, **(kw | {"link_bytes_per_s": 418e9, "cpu_flop_per_s": NONE}))
    assert never.cpu_is_faster is False
    assert never.tokens_at_most == 0.0
    assert isinstance(cpu_or_link(tokens=1.0, **(kw | {"cpu_flop_per_s": NONE})).cpu_s, Unknown)


def test_even_routing_hits_by_the_share_that_is_kept():
    q = inclusion([1.0] * 128, 8)
    for capacity in (8, 16, 32, 64, 100):
        assert lru_hit_ratio(q, capacity) == pytest.approx(capacity / 128, rel=1e-6)
        assert static_hit_ratio(q, capacity) == pytest.approx(capacity / 128)


def test_static_by_hand():
    # Zipf 1 over 4: 12, 6, 4, 3 of 25; the two most popular answer 18.
    assert static_hit_ratio(zipf(4, 1.0), 2) == pytest.approx(18 / 25)


def test_inclusion_adds_up_and_is_cut_at_one():
    q = inclusion([0.7, 0.2, 0.1], 2)
    assert q.tolist() == pytest.approx([1.0, 2 / 3, 1 / 3])
    with pytest.raises(UsageError, match="cannot ask for 3"):
        inclusion([1.0, 1.0, 0.0], 3)


def naive_lru(steps, capacity):
    """LRU as it is written down: what a step finds is what was kept before it."""
    cache, hits, requests = [], 0, 0
    for step in steps:
        wanted = list(dict.fromkeys(step))
        hits += sum(item in cache for item in wanted)
        requests += len(wanted)
        cache = (wanted[::-1] + [c for c in cache if c not in wanted])[:capacity]
    return hits, requests


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=30))
def test_replay_is_lru_for_every_size(steps):
    found = replay(steps, items=7)
    for capacity in range(8):
        hits, requests = naive_lru(steps, capacity)
        assert (found.hits[capacity], found.requests) == (hits, requests)
    distinct = len({i for s in steps for i in s})
    assert found.first == distinct
    assert found.hits[7] == found.requests - distinct


def test_the_best_static_cache_against_every_choice():
    steps = [[0, 1], [1, 2], [1, 3], [0, 1], [4, 2], [2, 1]]
    found = replay(steps, items=5)
    for capacity in range(6):
        best = max(sum(i in kept for s in steps for i in s) for kept in itertools.combinations(range(5), capacity))
        assert found.static_hits[capacity] == best


def exact_lru(p, capacity):
    """LRU hit ratio of independent requests by all orders of recency (King 1971)."""
    total = 0.0
    for order in itertools.permutations(range(len(p)), capacity):
        chance, left = 1.0, 1.0
        for i in order:
            chance *= p[i] / left
            left -= p[i]
        total += chance * sum(p[i] for i in order)
    return total


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.5])
def test_che_against_all_orders_of_recency(exponent):
    # Seven items are few for an approximation: within 0.03.
    p = zipf(7, exponent)
    for capacity in (1, 2, 3, 5):
        assert lru_hit_ratio(p, capacity) == pytest.approx(exact_lru(p, capacity), abs=0.03)


@pytest.mark.parametrize(("exponent", "batch"), [(0.0, 1), (1.0, 1), (1.0, 4), (1.4, 1)])
def test_che_against_a_replayed_sequence(exponent, batch):
    q = inclusion(zipf(64, exponent), 4)
    found = replay(draw(q, steps=2500, seed=7, tokens=batch), items=64, warmup=500, order=range(64))
    asked = together(q, batch)
    # A cache that holds fewer than a step asks for keeps only its last ones: no case for the formula.
    for capacity in (c for c in (8, 16, 32, 48) if c >= asked.sum()):
        assert found.lru_hit_ratio(capacity) == pytest.approx(lru_hit_ratio(asked, capacity), abs=0.02)
        assert found.static_hit_ratio(capacity) == pytest.approx(static_hit_ratio(asked, capacity), abs=0.02)


def test_draws_have_their_probabilities():
    q = inclusion(zipf(16, 1.0), 3)
    steps = draw(q, steps=4000, seed=3)
    assert {len(s) for s in steps} == {3}
    counts = np.bincount([i for s in steps for i in s], minlength=16) / 4000
    assert np.abs(counts - q).max() < 0.04


@settings(max_examples=40, deadline=None)
@given(
    exponent=st.floats(0.0, 3.0), items=st.integers(2, 64), share=st.floats(0.05, 0.9), batch=st.integers(1, 8)
)  # fmt: skip
def test_a_larger_cache_never_hits_less(exponent, items, share, batch):
    q = together(inclusion(zipf(items, exponent), max(1, int(items * share))), batch)
    for ratio in (lru_hit_ratio, static_hit_ratio):
        found = [ratio(q, c) for c in range(items + 1)]
        assert all(b >= a - 1e-9 for a, b in itertools.pairwise(found))
        assert found[0] == 0.0
        assert found[-1] == pytest.approx(1.0)
    # Knowing what is popular is never worse than remembering what was last.
    assert all(static_hit_ratio(q, c) >= lru_hit_ratio(q, c) - 1e-9 for c in range(items + 1))


def test_layers_in_order():
    assert [layers_hit_ratio("lru", layers=80, capacity=c) for c in (0, 40, 79, 80)] == [0.0, 0.0, 0.0, 1.0]
    assert layers_hit_ratio("static", layers=80, capacity=20) == 0.25
    steps = [[layer] for _ in range(20) for layer in range(8)]
    found = replay(steps, items=8, warmup=8)
    assert found.hits[7] == 0
    assert found.lru_hit_ratio(8) == 1.0


def test_a_step_by_hand():
    # Even routing, 32 of 128 kept: hits 1/4; 48 x 8 = 384 requests, 288 misses x 9.4 MB = 2.7072 GB over 31 GB/s: 87.3 ms.
    routing = Routing(name="uniform", token=inclusion([1.0] * 128, 8))
    rest = Rest(step_s=6e-3, resident_bytes=4e9, budget_bytes=24e9)
    o = offload(BANK, routing, HOST, rest, policy="lru", capacity=32)
    assert o.hit_ratio == pytest.approx(0.25)
    assert o.misses_per_step == pytest.approx(288)
    assert o.link_s == pytest.approx(288 * 9.4e6 / 31e9)
    assert o.floor_s == pytest.approx(o.link_s)
    assert o.serial_s == pytest.approx(6e-3 + o.link_s)
    # The host reads each missed one in 23.5 us.
    assert o.cpu_serial_s == pytest.approx(6e-3 + 288 * 23.5e-6)
    # 4 GB + 32 x 48 x 9.4 MB = 18.44 GB.
    assert o.memory_bytes == pytest.approx(18.4384e9)
    assert o.fits is True
    # A static cache needs a place for what is fetched beside it: one unit more.
    static = offload(BANK, routing, HOST, rest, policy="static", capacity=32)
    assert static.memory_bytes == pytest.approx(18.4384e9 + 9.4e6)
    full = offload(BANK, routing, HOST, rest, policy="static", capacity=128)
    assert full.link_s == 0.0
    assert full.serial_s == 6e-3
    assert full.fits is False
    assert "one device needs 61.8 GB and may hold 24.0 GB" in full.why_not
    alone = offload(BANK, routing, HOST, ALONE, policy="lru", capacity=32)
    assert isinstance(alone.serial_s, Unknown)
    assert alone.floor_s == alone.link_s


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(1e9, 1e12), more=st.floats(1.0, 20.0), capacity=st.integers(0, 127), exponent=st.floats(0, 2))
def test_more_bandwidth_or_cache_is_never_slower(rate, more, capacity, exponent):
    routing = Routing(name="zipf", token=inclusion(zipf(128, exponent), 8))
    rest = Rest(step_s=6e-3, resident_bytes=4e9, budget_bytes=24e9)

    def at(speed, kept):
        host = Hosts(link_bytes_per_s=speed, cpu_bytes_per_s=NONE, cpu_flop_per_s=NONE)
        return offload(BANK, routing, host, rest, policy="lru", capacity=kept)

    assert at(rate * more, capacity).serial_s <= at(rate, capacity).serial_s
    assert at(rate, capacity + 1).serial_s <= at(rate, capacity).serial_s * (1 + 1e-9)


def test_units_of_a_model():
    # Qwen3-30B-A3B: 3 x 2048 x 768 weights x 2 B = 9,437,184 B; 48 layers of 128.
    b = bank_of(load_model("qwen3-30b-a3b"), Request(phase="decode", context=4096), "expert")
    assert (b.unit_bytes, b.unit_params, b.items, b.per_token, b.layers) == (9437184, 4718592, 128, 8, 48)
    # Llama 3.1 8B, a layer: attention 4096 x (4096 + 1024 + 1024 + 4096), mlp 3 x 4096 x 14336, two norms of 4096.
    layer = 4096 * 10240 + 3 * 4096 * 14336 + 2 * 4096
    model = load_model("llama-3.1-8b")
    b = bank_of(model, Request(phase="decode", context=4096), "layer")
    assert (b.unit_bytes, b.items, b.per_token) == (2 * layer, 32, 32)
    with pytest.raises(UsageError, match="has no experts"):
        bank_of(model, Request(phase="decode", context=4096), "expert")


def run(*args):
    return CliRunner().invoke(command, list(args), standalone_mode=False)


def test_document_and_text():
    args = ("qwen3-30b-a3b", "--on", "rtx-4090", "--context", "4096", "--routing", "zipf:1", "--simulate", "200")
    doc = json.loads(run(*args, "--json").stdout)
    assert doc["schema"] == "plan-offload/1"
    assert {"fits", "time_s", "cost", "memory_bytes", "why_not"} <= set(doc["candidates"][0])
    best = doc["candidates"][doc["best"]]
    assert best["fits"] is True
    assert best["memory_bytes"] <= doc["rest"]["budget_bytes"]
    assert all(doc["candidates"][i]["fits"] for i in doc["pareto"])
    for c in doc["candidates"]:
        assert c["simulated_hit_ratio"] == pytest.approx(c["hit_ratio"], abs=0.05)
    text = run(*args).stdout
    assert max(map(len, text.splitlines())) <= 80


def test_link_alone():
    args = (
        "--link-rate",
        "418 GB/s",
        "--observed-rate",
        "220 GB/s",
        "--threads",
        "8192",
        "--bytes-per-thread",
        "16",
        "--blocks",
        "8",
    )
    doc = json.loads(run(*args, "--json").stdout)
    assert doc["link"]["more_ratio"] == pytest.approx(1.9)
    assert doc["link"]["blocks_needed"] == 16
    assert [r["blocks"] for r in doc["link"]["with_more"]] == [8, 16, 32]
    assert doc["candidates"] == []
    assert "249,037 B fill it" in run(*args).stdout


def test_a_recorded_trace(tmp_path):
    file = tmp_path / "experts.txt"
    file.write_text("0 1\n0 2\n0,1\n0 3\n")
    args = ("--unit-bytes", "1 MB", "--experts", "4", "--per-token", "2", "--layers", "1", "--link-rate", "10 GB/s")
    doc = json.loads(run(*args, "--routing", f"trace:{file}", "--cache", "1,2,4", "--json").stdout)
    lru = {c["cached_units"]: c["hit_ratio"] for c in doc["candidates"] if c["policy"] == "lru"}
    # Eight requests; with two kept 0 is found three times; with all, 1 as well.
    assert lru[2] == pytest.approx(3 / 8)
    assert lru[4] == pytest.approx(4 / 8)
    static = {c["cached_units"]: c["hit_ratio"] for c in doc["candidates"] if c["policy"] == "static"}
    assert static[1] == pytest.approx(4 / 8)
    assert doc["replay"]["first_requests"] == 4


def test_a_link_is_no_faster_than_the_memory_behind_it():
    args = ("--unit-bytes", "1 MB", "--experts", "4", "--per-token", "2", "--layers", "1", "--routing", "uniform")
    doc = json.loads(run(*args, "--link-rate", "450 GB/s", "--cpu-bandwidth", "384 GB/s", "--json").stdout)
    assert doc["host"]["link_bytes_per_s"] == 384e9
    assert doc["cpu"]["cpu_is_faster"] is False


def test_traces_that_are_none(tmp_path):
    good = tmp_path / "a.json"
    good.write_text('{"0": [[1, 2]], "1": [[3, 0]]}')
    assert read_trace(good) == [[[1, 2]], [[3, 0]]]
    for content in ("[1, 2]", "[[1.5]]", "a b", "[[", "[]", "{}", '[["x"]]'):
        bad = tmp_path / "bad.json"
        bad.write_text(content)
        with pytest.raises(InputError):
            read_trace(bad)
    with pytest.raises(InputError, match="cannot read"):
        read_trace(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no link was described"),
        (("--link-rate", "31 GB/s"), "nothing to plan"),
        (("qwen3-30b-a3b", "--on", "h200", "--context", "5"), "not known"),
        (("qwen3-30b-a3b", "--on", "h200", "--routing", "uniform"), "length of a sequence"),
        (("qwen3-30b-a3b", "--context", "5", "--routing", "uniform"), "from a device"),
        (("qwen3-30b-a3b", "--on", "h200", "--context", "5", "--routing", "zipf:x"), "cannot read"),
        (("qwen3-30b-a3b", "--on", "h200", "--context", "5", "--routing", "uniform", "--cache", "129"), "of 128"),
        (("qwen3-30b-a3b", "--on", "tpu-v5p", "--context", "5", "--routing", "uniform"), "no host link"),
        (("llama-3.1-8b", "--on", "h200", "--context", "5", "--routing", "uniform"), "has no experts"),
        (("--link-rate", "31 GB/s", "--observed-misses", "5", "--unit-bytes", "1 MB"), "need their time"),
        (("--link-rate", "31 GB/s", "--threads", "5"), "belong together"),
        (("--unit-bytes", "1 MB", "--experts", "4", "--link-rate", "31 GB/s"), "--per-token, --layers"),
    ],
)
def test_errors_are_one_clear_message(args, message):
    result = run(*args)
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message
