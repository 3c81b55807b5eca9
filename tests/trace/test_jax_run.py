"""Real JAX programs under the recorder: FLOP by hand, steps, and every nanosecond of an operation counted once."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.core import InputError, Unknown
from mansard.trace.jax_run import _faults, load
from mansard.trace.run import Part, RunTrace, Steps, WaitCause

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
lax = jax.lax


class Recorder:
    """Profiles a function as the controller does, with loop marks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marks: list[list[Any]] = []

    def mark(self) -> None:
        self.marks.append([time.time_ns(), "loop#0", len(self.marks), 1])

    def run(self, program: Callable[[Recorder], None], *, marks: bool = True) -> RunTrace:
        from mansard.trace.recorders.jax_session import JaxSession

        session = JaxSession()
        where = self.directory / "window-0" / "jax"
        where.mkdir(parents=True)
        session.start(where)
        start = time.time_ns()
        program(self)
        session.synchronize()
        end = time.time_ns()
        files = session.stop()
        window = {
            "kind": "profiled",
            "directory": "window-0",
            "files": {"jax": files},
            "start_ns": start,
            "end_ns": end,
        }
        meta = {
            "windows": [window],
            "marks": self.marks if marks else [],
            "loops": [{"file": "t.py", "line": 1, "counted": True}],
            "frameworks": {"jax": session.metadata()},
            "page_bytes": 4096,
        }
        return load(self.directory, json.loads(json.dumps(meta)))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def in_steps(run: RunTrace) -> Any:
    at = np.searchsorted(run.steps.start_ns, run.start_ns, side="right") - 1
    return (at >= 0) & (run.start_ns < run.steps.end_ns[np.maximum(at, 0)])


def flop_per_step(run: RunTrace, part: Part | None = None) -> float:
    total = 0.0
    for index in run.op[in_steps(run)].tolist():
        operator = run.operators[index]
        assert not isinstance(operator.demand, Unknown), operator
        if part is None or operator.part is part:
            total += float(operator.demand.total_flop)
    return total / run.steps.count


def attributed(run: RunTrace) -> float:
    length = (run.end_ns - run.start_ns).astype(float)
    known = np.array([not isinstance(o.demand, Unknown) for o in run.operators])[run.op]
    return float(length[known].sum() / length.sum())


def sound(run: RunTrace) -> None:
    """Times are ordered and lanes do not overlap."""
    assert (run.end_ns > run.start_ns).all()
    assert run.start_ns.min() >= run.window_ns[0] - 5_000_000
    assert run.end_ns.max() <= run.window_ns[1] + 5_000_000
    for lane in np.unique(run.lane):
        mine = run.lane == lane
        assert (run.start_ns[mine][1:] >= run.end_ns[mine][:-1]).all()


def repeat(recorder: Recorder, count: int, body: Callable[[int], None]) -> None:
    for i in range(count):
        recorder.mark()
        body(i)
    recorder.mark()


def test_a_training_step_with_a_scan(recorder: Recorder) -> None:
    @jax.jit
    def step(ws: Any, x: Any, y: Any) -> Any:
        def loss(ws: Any) -> Any:
            h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)
            return ((h - y) ** 2).mean()

        value, grad = jax.value_and_grad(loss)(ws)
        return ws - 0.1 * grad, value

    state = [jnp.ones((4, 256, 256)) * 0.01, jnp.ones((128, 256)), jnp.zeros((128, 256))]

    def body(_: int) -> None:
        state[0], value = step(*state)
        float(value)

    run = recorder.run(lambda r: repeat(r, 12, body))
    sound(run)
    # 4 layers x (1 forward + 2 backward) products of 128 x 256 by 256 x 256
    one = 2 * 128 * 256 * 256
    assert flop_per_step(run) == 12 * one
    assert flop_per_step(run, Part.FORWARD) == 4 * one
    assert flop_per_step(run, Part.BACKWARD) == 8 * one
    assert attributed(run) >= 0.95
    assert run.steps.source == "loop"
    assert run.steps.count + run.steps.skipped == 12
    assert WaitCause.COMPILE in run.wait_cause


def test_without_marks_the_launches_tell_the_period(recorder: Recorder) -> None:
    f = jax.jit(lambda x, w: lax.fori_loop(0, 10, lambda _, h: h @ w, x))
    x = jnp.ones((128, 128))
    run = recorder.run(lambda r: repeat(r, 20, lambda _: float(f(x, x)[0, 0])), marks=False)
    sound(run)
    assert run.steps.source == "periodicity"
    assert run.steps.count >= 17
    assert flop_per_step(run) == pytest.approx(10 * 2 * 128**3, rel=0.01)


def test_optax_and_flax_transformer_block(recorder: Recorder) -> None:
    nn = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, h)
            h = nn.Dense(256)(nn.LayerNorm()(x))
            return x + nn.Dense(64)(nn.gelu(h))

    block, optimizer = Block(), optax.adamw(1e-3)
    x = jax.random.normal(jax.random.key(0), (4, 32, 64))
    params = block.init(jax.random.key(1), x)
    state = [params, optimizer.init(params)]

    @jax.jit
    def train(params: Any, opt: Any, x: Any) -> Any:
        grad = jax.grad(lambda p, x: (block.apply(p, x) ** 2).mean())(params, x)
        updates, opt = optimizer.update(grad, opt, params)
        return optax.apply_updates(params, updates), opt

    def body(_: int) -> None:
        state[:] = train(*state, x)
        jax.block_until_ready(state)

    run = recorder.run(lambda r: repeat(r, 12, body))
    sound(run)
    # 128 tokens, width 64: q, k, v, o 4 x 2 x 128 x 64 x 64; MLP 2 x 2 x 128 x 64 x 256; scores and values 2 x 2 x 4 x 4 heads
    # x 32 x 32 x 16. Backward twice, without the gradient of x through q, k and v (it is not asked for, but the sum of the layer
    # norm's gradient to its scale is), so between 2 and 3 times the forward.
    forward = 4 * 2 * 128 * 64 * 64 + 2 * 2 * 128 * 64 * 256 + 2 * 2 * 4 * 4 * 32 * 32 * 16
    assert flop_per_step(run, Part.FORWARD) == forward
    assert flop_per_step(run, Part.BACKWARD) == 2 * forward
    assert attributed(run) >= 0.95
    assert any(o.part is Part.OPTIMIZER for o in run.operators)


def test_decoding_with_a_cache(recorder: Recorder) -> None:
    d, s = 64, 128
    ws = {name: jax.random.normal(jax.random.key(i), (d, d)) for i, name in enumerate("qkvo")}

    def decode(cache: Any, x: Any, pos: Any) -> Any:
        k, v = cache
        k = lax.dynamic_update_slice(k, x @ ws["k"], (pos, 0))
        v = lax.dynamic_update_slice(v, x @ ws["v"], (pos, 0))
        p = jax.nn.softmax(jnp.where(jnp.arange(s) <= pos, (x @ ws["q"]) @ k.T, -1e9))
        return (k, v), (p @ v) @ ws["o"]

    step = jax.jit(decode, donate_argnums=0)
    state = [(jnp.zeros((s, d)), jnp.zeros((s, d))), jnp.ones((1, d))]

    def body(i: int) -> None:
        state[:] = step(*state, i)
        state[1].block_until_ready()

    run = recorder.run(lambda r: repeat(r, 30, body))
    sound(run)
    # 4 projections 2 d^2, scores and values 2 s d each over the whole cache
    assert flop_per_step(run) == pytest.approx(4 * 2 * d * d + 2 * 2 * s * d, rel=0.01)
    assert attributed(run) >= 0.95


def test_eager_operations(recorder: Recorder) -> None:
    x = jnp.ones((64, 64))

    def body(_: int) -> None:
        y = x
        for _ in range(20):
            y = jnp.tanh(y @ x) + 1.0
        y.block_until_ready()

    run = recorder.run(lambda r: repeat(r, 12, body))
    sound(run)
    assert flop_per_step(run) == pytest.approx(20 * 2 * 64**3, rel=0.01)
    per_step = np.count_nonzero(in_steps(run)) / run.steps.count
    assert per_step == pytest.approx(60, rel=0.02)  # product, tanh, addition
    assert run.dispatch_start_ns.size > 12 * 60


def test_a_starved_loop_is_mostly_nothing(recorder: Recorder) -> None:
    f = jax.jit(lambda x: jnp.sin(x).sum())
    x = jnp.ones((1000,))

    def body(_: int) -> None:
        time.sleep(0.01)
        f(x).block_until_ready()

    run = recorder.run(lambda r: repeat(r, 10, body))
    busy = (run.end_ns - run.start_ns)[in_steps(run)].sum()
    length = (run.steps.end_ns - run.steps.start_ns).sum()
    assert busy < 0.2 * length
    assert (run.steps.end_ns - run.steps.start_ns).min() >= 10_000_000


def test_an_elementwise_chain_reads_and_writes_once(recorder: Recorder) -> None:
    f = jax.jit(lambda x, y: jnp.clip(0.5 * x + y, 0.0, 1.0), donate_argnums=0)
    state = [jnp.ones((1 << 20,)), jnp.ones((1 << 20,))]

    def body(_: int) -> None:
        state[0] = f(*state)
        state[0].block_until_ready()

    run = recorder.run(lambda r: repeat(r, 10, body))
    (operator,) = {run.operators[i].name: run.operators[i] for i in run.op[in_steps(run)].tolist()}.values()
    assert not isinstance(operator.demand, Unknown)
    assert (operator.demand.read_bytes, operator.demand.write_bytes) == (2 * 4 * 2**20, 4 * 2**20)
    assert operator.fresh_bytes == 0  # the result takes the place of the donated argument
    assert operator.category == "elementwise"


def test_branches_that_ran_are_known(recorder: Recorder) -> None:
    f = jax.jit(lambda p, x: lax.cond(p, lambda: x @ x, lambda: x))
    x = jnp.ones((128, 128))
    run = recorder.run(lambda r: repeat(r, 22, lambda i: f(i % 2 == 0, x).block_until_ready()))
    assert attributed(run) == 1.0
    products = [run.operators[i] for i in run.op.tolist() if run.operators[i].category == "gemm"]
    assert len(products) == 11


def test_programs_of_one_name_and_other_shapes(recorder: Recorder) -> None:
    f = jax.jit(lambda x: x @ x)
    a, b = jnp.ones((64, 64)), jnp.ones((96, 96))
    run = recorder.run(lambda r: repeat(r, 10, lambda _: (f(a).block_until_ready(), f(b).block_until_ready())))
    assert flop_per_step(run) == 2 * 64**3 + 2 * 96**3


SCRIPT = """
import json, os, sys, time
from pathlib import Path
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from mansard.trace.recorders.jax_session import make_session
out = Path(sys.argv[1])
events = []
class Controller:
    def ready(self):
        from jax._src import xla_bridge
        events.append("ready")
        (out / "window-0" / "jax").mkdir(parents=True)
        session.start(out / "window-0" / "jax")
        events.append(time.time_ns())
    def mark(self, source): pass
    def set_aside(self, seconds): pass
    def yield_profiler(self): events.append("yield")
session = make_session()
session.install(Controller())
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "installing must not initialise a backend"
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("d",))
def f(w, x):
    loss, grad = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
    return w - 0.01 * jax.lax.pmean(grad, "d"), jax.lax.pmean(loss, "d")
step = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("d")), out_specs=(P(), P())))
w = jax.device_put(np.ones((128, 128), np.float32) * 0.01, NamedSharding(mesh, P()))
x = jax.device_put(np.ones((256, 128), np.float32), NamedSharding(mesh, P("d")))
marks = []
for i in range(40):
    marks.append([time.time_ns(), "loop#0", i, 1])
    w, loss = step(w, x)
    loss.block_until_ready()
marks.append([time.time_ns(), "loop#0", 40, 1])
session.synchronize()
end = time.time_ns()
files = session.stop()
facts = session.metadata()
facts["calibration"] = session.calibrate()
try:
    jax.profiler.start_trace(str(out / "own"))
    jax.profiler.stop_trace()
finally:
    window = {"kind": "profiled", "directory": "window-0", "files": {"jax": files}, "start_ns": events[1], "end_ns": end}
    json.dump({"windows": [window], "marks": marks, "loops": [{"file": "s.py", "line": 1, "counted": True}],
               "frameworks": {"jax": facts}, "events": [str(e) for e in events]}, open(out / "meta.json", "w"))
"""


def test_two_devices_in_a_process_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), str(out)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    meta = json.loads((out / "meta.json").read_text())
    assert meta["events"][0] == "ready"
    assert meta["events"][2:] == [
        "yield"
    ]  # the program's own use of the profiler was noticed, ours was not taken for it
    run = load(out, meta)
    sound(run)
    # forward and backward on each of 2 devices: 2 x 2 x 2 x 128 x 128 x 128; a device may lag over the edge of a step
    assert flop_per_step(run) == pytest.approx(8 * 128**3, rel=0.03)
    collectives = [o for o in run.operators if o.category == "collective"]
    assert collectives
    assert all(sum(o.demand.link_bytes.values()) > 0 for o in collectives if not isinstance(o.demand, Unknown))
    assert attributed(run) >= 0.95
    assert run.devices == ("cpu", "cpu")
    assert 0 < run.op_floor_s < 1e-3
    assert run.environment["num_devices"] == 2


def test_a_damaged_window_is_a_finding_and_none_at_all_an_error(tmp_path: Path) -> None:
    window = {
        "kind": "profiled",
        "directory": "window-0",
        "files": {"jax": ["trace.xplane.pb"]},
        "start_ns": 1,
        "end_ns": 2,
    }
    (tmp_path / "window-0" / "jax").mkdir(parents=True)
    (tmp_path / "window-0" / "jax" / "trace.xplane.pb").write_bytes(b"\x0a\x10xx")
    with pytest.raises(InputError):
        load(tmp_path, {"windows": [window], "frameworks": {}})
    with pytest.raises(InputError, match="no JAX profile"):
        load(tmp_path, {"windows": [], "frameworks": {}})


def test_programs_that_were_not_recorded_are_unknown(recorder: Recorder) -> None:
    x = jnp.ones((64, 64))
    f = jax.jit(lambda x: x @ x)
    recorder.run(lambda r: repeat(r, 5, lambda _: f(x).block_until_ready()))
    where = recorder.directory / "window-0" / "jax"
    (where / "programs.json").write_text("[]")
    meta = {
        "windows": [
            {"kind": "profiled", "directory": "window-0", "files": {"jax": ["x"]}, "start_ns": 0, "end_ns": 2**62}
        ],
        "frameworks": {"jax": {"platform": "cpu"}},
    }
    run = load(recorder.directory, meta)
    assert run.operators
    assert all(isinstance(o.demand, Unknown) and "not recorded" in o.demand.reason for o in run.operators)


def test_page_faults_of_profiled_windows_stand_in_where_no_window_was_unprofiled() -> None:
    # 3000 faults in a window of 3 s, steps of 10 ms: 10 a step. What the windows with the profiler off say comes first.
    second = 1_000_000_000
    usage = ({"minor_faults": 500.0}, {"minor_faults": 3500.0})
    window = {"kind": "profiled", "start_ns": 0, "end_ns": 3 * second, "rusage_start": usage[0], "rusage_end": usage[1]}
    edges = np.arange(0, 50) * 10_000_000
    steps = Steps(start_ns=edges[:-1], end_ns=edges[1:], source="loop")
    assert _faults(None, {"windows": [window]}, steps) == pytest.approx(10.0)
    assert _faults(7.0, {"windows": [window]}, steps) == 7.0
    assert _faults(None, {"windows": []}, steps) is None
