"""`plan disaggregate`: means of workers by hand, splits against every split, and what the verb says."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

from mansard.cli.plan.disaggregate import command
from mansard.core import Unknown
from mansard.core.errors import UndecidedError, UsageError
from mansard.plan.disaggregate import _splits, _together, divisions
from mansard.plan.queueing import mean_wait_s, most_rate_per_s
from mansard.plan.workers import Bench, Decoder, Engine, Job, Prefiller, _shared, decoder, prefiller, transfer_s
from mansard.predict.machines import load_machine
from mansard.workload.model.load import load_model
from mansard.workload.parallel import Plan

JOB = Job(prompt=1000, output=101, kv_bytes_per_s=1e9)


class Fixed(Bench):
    """A worker of round numbers: prompts of 0.2 s, steps of 10 ms and 0.1 ms for each sequence, 40 sequences fit."""

    def __init__(self, job=JOB, plan=None):
        super().__init__(None, None, job, plan or Plan())

    prefill_s = 0.2
    budget_bytes = 50.0
    whole_prompt_bytes = 4e6
    prompt_bytes = 4e6

    def decode_s(self, batch):
        return 0.010 + 1e-4 * batch

    def mixed_s(self, batch, chunk):
        return 0.060

    def memory_bytes(self, batch, *, reading=False):
        return 10.0 + batch


def test_waiting_by_hand():
    # 2.5 requests/s of 0.2 s: half busy, 0.5 x 0.2 / (2 x 0.5)
    assert mean_wait_s(rate_per_s=2.5, service_s=0.2) == pytest.approx(0.1)
    assert mean_wait_s(rate_per_s=5.0, service_s=0.2) == math.inf
    assert mean_wait_s(rate_per_s=0.0, service_s=0.2) == 0.0


@pytest.mark.parametrize("limit", [0.21, 0.3, 1.0, 50.0])
def test_the_most_rate_just_meets_its_limit(limit):
    rate = most_rate_per_s(service_s=0.2, limit_s=limit)
    assert 0.2 + mean_wait_s(rate_per_s=rate, service_s=0.2) == pytest.approx(limit)
    assert rate < 5.0


def test_an_engine_that_stops_decoding_for_prompts():
    # b 10, t 11 ms, D 0.2 s, 100 steps: r = 1 / (0.2 + 100 x 0.011 / 10) = 1 / 0.31; TPOT = 0.011 / (1 - 0.2 / 0.31).
    e = _shared(Fixed(), 10, None)
    assert e.rate_per_s == pytest.approx(1 / 0.31)
    assert e.tpot_s == pytest.approx(0.011 / (1 - 0.2 / 0.31)) == pytest.approx(0.031)
    # busy 0.2 / 0.31 with prompts: 0.645 x 0.2 / (2 x 0.355) more than 0.2
    assert e.ttft_s == pytest.approx(0.2 + (0.2 / 0.31) * 0.2 / (2 * (1 - 0.2 / 0.31)))


def test_an_engine_with_chunks_beside_its_steps():
    # Chunks of 500: two mixed steps of 60 ms for a request, 100/10 - 2 = 8 plain ones of 11 ms: r = 1 / 0.208.
    e = _shared(Fixed(), 10, 500)
    assert e.rate_per_s == pytest.approx(1 / 0.208)
    assert e.tpot_s == pytest.approx(10 * 0.208 / 100)
    # 60 sequences: 100/60 steps for each request, fewer than its two chunks.
    assert _shared(Fixed(), 60, 500) is None


def test_a_decoder_stops_at_the_limit_or_at_its_memory():
    # 11 ms at 10: the limit of 11.9 ms, less the transfer of 4 MB at 1 GB/s over 100 steps (40 us), allows 16 of the grid.
    d = decoder(Fixed(Job(prompt=1000, output=101, tpot_s=0.0119, kv_bytes_per_s=1e9)))
    assert (d.batch, d.limited_by, d.most) == (16, "TPOT", 32)
    assert d.rate_per_s == pytest.approx(16 / (0.0116 * 100))
    free = decoder(Fixed())
    assert (free.batch, free.limited_by) == (32, "memory")
    assert decoder(Fixed(Job(prompt=1000, output=101, tpot_s=0.010, kv_bytes_per_s=1e9))) == "TPOT"


def test_data_ranks_of_a_worker_decode_batches_of_their_own():
    d = decoder(Fixed(plan=Plan(dp=4, ep=4)))
    assert d.batch == 4 * 32
    assert d.rate_per_s == pytest.approx(4 * 32 / (0.0132 * 100))


def test_the_cache_of_a_prompt_and_its_way():
    # 131,072 B a token x 4096. A tp 4 worker sends a quarter from each device; a tp 1 worker receives all on one.
    job = Job(prompt=4096, output=128, kv_bytes_per_s=50e9, dtype="bf16")
    model, h100 = load_model("llama-3.1-8b"), load_machine("h100-sxm")
    p = prefiller(Bench(model, h100, job, Plan(tp=4)))
    d = decoder(Bench(model, h100, job, Plan()))
    assert p.sent_bytes == 536_870_912 / 4
    assert d.received_bytes == 536_870_912
    assert transfer_s(p, d, 50e9) == pytest.approx(536_870_912 / 50e9)
    assert isinstance(transfer_s(p, d, Unknown("none", ())), Unknown)


def test_a_latent_cache_is_whole_on_every_rank():
    # (512 + 64) x 2 B x 61 layers = 70,272 B a token, on each of 8 tensor ranks.
    bench = Bench(
        load_model("deepseek-v3"), load_machine("h200"), Job(prompt=100, output=8, kv_bytes_per_s=1e9), Plan(tp=8)
    )
    assert bench.prompt_bytes == bench.whole_prompt_bytes == 7_027_200


P = Prefiller(plan=Plan(tp=2), service_s=0.2, rate_per_s=2.5, memory_bytes=1.0, sent_bytes=1e6)
D = Decoder(
    plan=Plan(), batch=16, tpot_s=0.01, rate_per_s=1.0, memory_bytes=1.0, received_bytes=4e6, limited_by="TPOT", most=32
)  # fmt: skip


def test_workers_for_a_rate():
    # 10 requests/s: four prefill workers of 2 devices at 2.5, ten decode workers of 1.
    (s,) = _splits(P, D, JOB, 10.0, None)
    assert (s.prefillers, s.decoders, s.devices) == (4, 10, 18)
    # 4 MB at 1 GB/s: 4 ms over 100 steps.
    assert s.tpot_s == pytest.approx(0.01 + 0.004 / 100)
    assert s.ttft_s == pytest.approx(0.3)


def test_the_best_split_of_some_devices_is_the_best_of_all():
    (s,) = _splits(P, D, JOB, None, 16)
    every = [(min(2.5 * x, 1.0 * (16 - 2 * x)), x) for x in range(1, 8)]
    assert s.rate_per_s == max(every)[0] == 8.0
    # Idle devices count: 16 of 17 work.
    (odd,) = _splits(P, D, JOB, None, 17)
    assert odd.goodput == pytest.approx(odd.rate_per_s / 17)


def test_the_best_ratio():
    # 2 prefill workers feed 5 decode workers: 5 requests/s on 9 devices.
    (s,) = _splits(P, D, JOB, None, None)
    assert (s.prefillers, s.decoders) == (2, 5)
    assert s.goodput == pytest.approx(5 / 9)


def test_a_slow_link_bounds_the_rate_of_a_worker():
    # 4 MB at 1 MB/s: 4 s a request on each decode worker, so a quarter of a request a second.
    slow = Job(prompt=1000, output=101, kv_bytes_per_s=1e6)
    (s,) = _splits(P, D, slow, 10.0, None)
    assert s.decoders == 40
    assert s.transfer_s == 4.0


def test_engines_for_the_same_question():
    e = Engine(
        plan=Plan(tp=4),
        batch=8,
        chunk=None,
        rate_per_s=3.0,
        ttft_s=0.1,
        tpot_s=0.01,
        memory_bytes=1.0,
        limited_by="memory",
    )
    assert _together([e], 10.0, None).devices == 16
    assert _together([e], None, 10).goodput == pytest.approx(2 * 3.0 / 10)
    assert isinstance(_together([], None, None), Unknown)


def test_divisions_share_experts_over_tensor_or_data_ranks():
    dense = divisions(load_model("llama-3.1-8b"), 4)
    assert dense == (Plan(), Plan(tp=2), Plan(tp=4))
    mixed = divisions(load_model("qwen3-30b-a3b"), 2)
    assert mixed == (Plan(), Plan(tp=2), Plan(tp=2, ep=2), Plan(dp=2, ep=2))


# --- the verb ------------------------------------------------------------------------------------------------------

ARGS = ("llama-3.1-8b", "--on", "h100-sxm", "--prompt", "2048", "--output", "128", "--worker-most", "2")


def run(*args, ok=0):
    done = CliRunner().invoke(command, list(args), standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == ok
    return done.output


def test_without_limits_it_does_not_pay():
    text = run(*ARGS)
    assert "it does not pay" in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_candidate_has_the_keys_of_a_plan():
    document = json.loads(run(*ARGS, "--ttft", "200 ms", "--tpot", "10 ms", "--devices", "8", "--json"))
    for row in document["candidates"]:
        assert {"fits", "time_s", "cost", "memory_bytes", "why_not", "goodput_per_device"} <= set(row)
        assert row["ttft_s"] <= 0.2 + 1e-9
        assert row["tpot_s"] <= 0.01 + 1e-9
        assert row["devices"] <= 8
    split = document["candidates"][0]
    assert split["kv"]["bytes"] == 131072 * 2048
    assert document["gain_ratio"] > 0


def test_limits_that_nothing_meets():
    text = run(*ARGS, "--ttft", "1 ms", ok=3)
    assert "nothing meets these limits: one prompt alone takes" in text


def test_a_model_that_fits_no_worker():
    # 141 GB of weights on one device of 85.5 GB.
    with pytest.raises(UndecidedError, match="fits no worker of up to 1"):
        run("llama-3.1-70b", *ARGS[1:-1], "1")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--rate", "1", "--devices", "2"), "--rate or --devices"),
        (("--rate", "0"), "positive"),
        (("--kv-rate", "0 B/s"), "above zero"),
    ],
)
def test_wrong_usage(more, says):
    with pytest.raises(UsageError) as caught:
        run(*ARGS, *more)
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_the_best_division_of_many_devices_is_found_without_trying_each():
    from mansard.plan.disaggregate import _crossing

    for devices in (3, 8, 17, 64, 399):
        for p, d in (((1, 3.0), (2, 1.7)), ((4, 11.0), (1, 0.3)), ((2, 5.0), (8, 40.0)), ((8, 2.0), (8, 2.0))):
            every = [(x, (devices - x * p[0]) // d[0]) for x in range(1, devices // p[0] + 1)]
            best = max((min(x * p[1], y * d[1]) for x, y in every), default=0.0)
            found = max((min(x * p[1], y * d[1]) for x, y in _crossing(devices, p, d) if x > 0 and y > 0), default=0.0)
            assert found == best


def test_a_server_that_is_busy_but_for_rounding_is_never_idle():
    from mansard.plan.queueing import mean_wait_s

    assert mean_wait_s(rate_per_s=3.0, service_s=1.0 / 3.0 - 1e-17) == float("inf")
    # Busy 0.9 of the time: 0.9 x 1 s / (2 x 0.1) = 4.5 s.
    assert mean_wait_s(rate_per_s=0.9, service_s=1.0) == pytest.approx(4.5)
