"""Many points at once give what one estimate gives, and obey the laws of a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core import Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource
from mansard.core.errors import UndecidedError, UsageError
from mansard.predict.bound import machine_of
from mansard.predict.estimate import Request, estimate
from mansard.predict.grid import bound_points
from mansard.predict.machines import load_machine
from mansard.workload.kernel import Types
from mansard.workload.model.load import load_model
from mansard.workload.phases import Setting
from mansard.workload.storage import storage_of


def _setting(name):
    model = load_model(name)
    return Setting(
        model=model,
        storage=storage_of(model, dtype="bf16", weights="bf16"),
        types=Types(activation="bf16", cache="bf16"),
    )


def device(bytes_per_s=4.0e12, flop_per_s=990e12, cache=None):
    rows = [
        Ceiling(resource=Resource(area=Area.MEMORY, level="hbm"), value=bytes_per_s, unit="B/s", kind=Kind.DECLARED,
                scope="device"),
        Ceiling(resource=Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"), value=flop_per_s,
                unit="FLOP/s", kind=Kind.DECLARED, scope="device"),
    ]  # fmt: skip
    ceilings = Ceilings(ceilings=tuple(rows), levels=(MemoryLevel(level="hbm", capacity_bytes=96e9),))
    return machine_of(ceilings, name="by hand", on_chip_bytes=cache)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_arrays_agree_with_single_estimates(name, phase):
    machines = [load_machine("h100-sxm"), load_machine("mi300x"), device()]
    batch, context = np.array([1, 17, 256]), np.array([4096, 100, 1500])
    points = bound_points(
        _setting(name), phase=phase, batch=batch, context=context, machines=machines, machine_index=[0, 1, 2]
    )
    for i, machine in enumerate(machines):
        where = {"context": int(context[i])} if phase == "decode" else {"seq": int(context[i])}
        request = Request(phase=phase, batch=int(batch[i]), dtype="bf16", weights="bf16", kv="bf16", **where)
        one = estimate(load_model(name), request, machine)
        assert points.flop[i] == pytest.approx(one.phase.model_flop, rel=1e-9)
        assert points.bytes[i] == pytest.approx(one.bound.bytes, rel=1e-9)
        assert points.time_s[i] == pytest.approx(one.bound.time_s, rel=1e-9)
        assert points.tokens_per_s[i] == pytest.approx(one.tokens_per_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 512), st.integers(0, 100_000), st.floats(1.0, 10.0), st.floats(1.0, 10.0))
def test_a_better_machine_is_never_slower(batch, context, more_bandwidth, more_compute):
    machines = [device(), device(4.0e12 * more_bandwidth), device(4.0e12, 990e12 * more_compute), device(cache=50e6)]
    points = bound_points(
        _setting("gpt2"), phase="decode", batch=[batch] * 4, context=[context] * 4, machines=machines,
        machine_index=[0, 1, 2, 3],
    )  # fmt: skip
    assert points.time_s[1] <= points.time_s[0]
    assert points.time_s[2] <= points.time_s[0]
    # Counting activations that leave the chip never lowers the bound.
    assert points.time_s[3] >= points.time_s[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 256), st.integers(0, 8192))
def test_a_larger_batch_never_emits_fewer_tokens(batch, context):
    points = bound_points(
        _setting("gpt2"), phase="decode", batch=[batch, 2 * batch], context=context, machines=[device()]
    )
    assert points.tokens_per_s[1] >= points.tokens_per_s[0] * (1 - 1e-12)
    assert points.time_s[1] >= points.time_s[0]


def test_blocks_do_not_change_results():
    many = bound_points(_setting("gpt2"), phase="decode", batch=np.arange(1, 20_001), context=64, machines=[device()])
    some = bound_points(
        _setting("gpt2"), phase="decode", batch=[1, 8192, 8193, 20_000], context=64, machines=[device()]
    )
    assert many.time_s[[0, 8191, 8192, 19_999]] == pytest.approx(some.time_s, rel=1e-12)


def test_points_that_cannot_be():
    s = _setting("gpt2")
    with pytest.raises(UsageError):
        bound_points(s, phase="train", batch=1, context=1, machines=[device()])
    with pytest.raises(UsageError):
        bound_points(s, phase="decode", batch=0, context=1, machines=[device()])
    with pytest.raises(UsageError):
        bound_points(s, phase="decode", batch=1, context=float("nan"), machines=[device()])
    with pytest.raises(UsageError):
        bound_points(s, phase="decode", batch=1, context=1, machines=[device(), device()])
    with pytest.raises(UsageError):
        bound_points(s, phase="decode", batch=[1, 2], context=1, machines=[device()], machine_index=[0, 1])
    vector_only = machine_of(
        Ceilings(ceilings=tuple(c for c in device().ceilings.ceilings if c.resource.area is Area.MEMORY)),
        name="no matrix",
    )
    with pytest.raises(UndecidedError):
        bound_points(s, phase="decode", batch=1, context=1, machines=[vector_only])


def test_a_sweep_takes_the_ranges_that_measure_takes():
    from mansard.core.errors import UsageError
    from mansard.predict.sweep import parse_sweep

    assert parse_sweep(["batch=1..8x2,100", "context=1024..4096+2048"]) == {
        "batch": [1, 2, 4, 8, 100],
        "context": [1024, 3072, 4096],
    }
    for text in ("batch=1..8x1", "batch=0..8x2", "batch=1..8", "batch=1,1", "batch=1..2x1.5"):
        with pytest.raises(UsageError):
            parse_sweep([text])
