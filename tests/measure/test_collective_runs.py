"""Collectives that run: eight local devices of JAX, two processes of PyTorch; results, groups, loops and failures."""

import json
import os
import subprocess
import sys

import pytest

EIGHT = "--xla_force_host_platform_device_count=8"
JAX = """
import json, re, sys
import numpy as np
from mansard.measure.links import with_jax_mesh as w
from mansard.measure.links.mesh import mesh_of
from mansard.measure.links.shapes import shapes_of
from mansard.measure.links.pairs_jax import pairs_on_devices, prepared
from mansard.measure.links.shapes import Shapes

def in_loop(text, names):
    inside, computation = [], ""
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            computation = line.split()[0]
        if any(f" {n}(" in line for n in names):
            inside.append(computation != "ENTRY")
    return bool(inside) and all(inside)

out = {}
mesh = mesh_of("2x2x2", "2x1x2", 8)
for op, how, dtype in (("all_reduce", "sum", "f32"), ("all_reduce", "mean", "f32"), ("all_reduce", "max", "bf16"),
                       ("all_reduce", "min", "i32"), ("all_gather", "sum", "bf16"), ("reduce_scatter", "sum", "f32"),
                       ("reduce_scatter", "mean", "f32"), ("all_to_all", "sum", "f32"), ("ppermute", "sum", "f32")):
    point = w.on_mesh(mesh, shapes_of(op, {"matrix_dim": 8, "dtype": dtype}, 4), reduce_op=how)
    made = w.prepared(point, {})
    made.run(3)
    first = made.verify().error_ratio
    made.chain(4)
    count = made.count_by_compiler()
    out[f"{op} {how} {dtype}"] = {
        "first": first, "after_chain": made.verify().error_ratio, "groups": point.groups,
        "there": any(n in count.operations for n in count.expected), "moved": made.facts.get("moved_dtype"),
        "in_loop": in_loop(point._chain.as_text(), w.EXPECTED[op]), "after": sorted(made.facts_after()),
    }
# a result that lacks one contribution, and one of which an element is another
point = w.on_mesh(mesh, shapes_of("all_reduce", {"matrix_dim": 8, "dtype": "f32"}, 4))
point.run(1)
point.state = point.state - point.x
out["missing"] = point.verify().error_ratio
point = w.on_mesh(mesh, shapes_of("all_gather", {"matrix_dim": 8, "dtype": "f32"}, 4))
point.run(1)
point.state = point.state.at[3, 0, 0, 0, 0].add(1e-3)
out["altered"] = point.verify().error_ratio
shapes = Shapes(operation="send_recv", local=(4096,), ranks=2, dtype="f32", layout="message")
for copies in (False, True):
    for both in (False, True):
        point = pairs_on_devices([(0, 1), (1, 2)], shapes, both=both, copies=copies)
        made = prepared(point, {})
        made.run(2)
        after = made.facts_after()
        out[f"pairs {copies} {both}"] = {"check": made.verify().error_ratio, "matrix": after["matrix"]}
out["not these groups"] = ""
try:
    w._groups(w.on_mesh(mesh, shapes_of("all_reduce", {"matrix_dim": 8, "dtype": "f32"}, 4)).compiled, mesh_of("8", "8", 8))
except Exception as error:
    out["not these groups"] = f"{type(error).__name__}: {error}"
print(json.dumps(out, default=lambda x: x if x == x and abs(x) != float("inf") else str(x)))
"""

TORCH = """
import json
from mansard.core.errors import InputError
from mansard.measure.links import ranks
from mansard.measure.links.mesh import mesh_of
from mansard.measure.links.pairs_torch import pairs_on_ranks, prepared as pairs_prepared
from mansard.measure.links.shapes import Shapes, shapes_of
from mansard.measure.links.with_torch_ranks import on_ranks, prepared

out = {}
mesh = mesh_of("", "", 2)
def made(op, how, dtype):
    return on_ranks(mesh.groups, shapes_of(op, {"matrix_dim": 8, "dtype": dtype}, 2), ranks=2, device_type="cpu", reduce_op=how)
held = made("all_reduce", "sum", "f32")
for op, how, dtype in (("all_reduce", "sum", "f32"), ("all_reduce", "mean", "f32"), ("all_reduce", "max", "bf16"),
                       ("all_gather", "sum", "bf16"), ("reduce_scatter", "sum", "f32"), ("all_to_all", "sum", "f32"),
                       ("ppermute", "sum", "f32"), ("broadcast", "sum", "bf16")):
    point = prepared(made(op, how, dtype), {})
    spent = point.timed(70)
    count = point.count_by_compiler()
    values = [o.values for o in point.operands()]
    out[f"{op} {how} {dtype}"] = {
        "check": point.verify().error_ratio, "there": any(n in count.operations for n in count.expected),
        "positive": spent > 0, "finite": all(abs(v).max() < 1e30 for v in values), "done_as": point.facts.get("done_as"),
        "slowest": point.facts_after()["slowest_rank"] in (0, 1),
    }
    point.close()
shapes = Shapes(operation="send_recv", local=(4096,), ranks=2, dtype="f32", layout="message")
for both in (False, True):
    point = pairs_prepared(pairs_on_ranks([(0, 1)], shapes, ranks=2, device_type="cpu", both=both), {})
    point.run(3)
    out[f"pair {both}"] = point.verify().error_ratio
    point.close()
try:
    ranks.pool_of(3, "cpu")
except InputError as error:
    out["another number"] = error.message
pool = held.pool
pool._children[0].kill()
try:
    held.timed(1)
except Exception as error:
    out["lost"] = f"{type(error).__name__}: {error}"
ranks._pools.clear()
children = list(pool._children)
pool.close()
out["ended"] = [c.poll() is not None for c in children]
print(json.dumps(out))
"""


def ran(script, **env):
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "JAX_PLATFORMS": "cpu", **env}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def on_jax():
    return ran(JAX, XLA_FLAGS=EIGHT)


@pytest.fixture(scope="module")
def on_torch():
    pytest.importorskip("torch")
    return ran(TORCH)


def test_every_jax_collective_is_right_before_and_after_a_loop(on_jax):
    points = {k: v for k, v in on_jax.items() if isinstance(v, dict) and "first" in v}
    assert len(points) == 9
    for name, found in points.items():
        assert found["first"] <= 1.0, name
        assert found["after_chain"] <= 1.0, name
        assert found["there"], name
        # 2x2x2 with the first and last axis: 0, 1, 4, 5 and 2, 3, 6, 7
        assert sorted(map(sorted, found["groups"])) == [[0, 1, 4, 5], [2, 3, 6, 7]], name
        assert "slowest_device" in found["after"], name


def test_a_collective_stays_inside_its_loop(on_jax):
    # XLA moves a collective whose input does not change out of the loop; ours depends on the turn before.
    assert all(v["in_loop"] for v in on_jax.values() if isinstance(v, dict) and "in_loop" in v)


def test_a_conversion_before_the_wire_is_said(on_jax):
    assert on_jax["all_reduce sum f32"]["moved"] is None
    assert on_jax["all_gather sum bf16"]["moved"] in (None, "f32")  # XLA:CPU 0.10 moves f32


def test_a_wrong_result_is_found(on_jax):
    assert float(on_jax["missing"]) > 1.0
    assert float(on_jax["altered"]) > 1.0


def test_messages_of_jax(on_jax):
    for copies in (False, True):
        for both in (False, True):
            found = on_jax[f"pairs {copies} {both}"]
            assert found["check"] == 0.0
            assert [(r["source"], r["target"]) for r in found["matrix"]] == [(0, 1), (1, 2)]
            # 4096 floats; both ways together twice that
            row = found["matrix"][0]
            assert row["bytes_per_s"] * row["seconds"] == pytest.approx(16384 * (2 if both else 1))


def test_groups_other_than_the_mesh_says_stop_the_point(on_jax):
    assert on_jax["not these groups"].startswith("UndecidedError: the compiled program has the replica groups")


def test_every_torch_collective_is_right(on_torch):
    points = {k: v for k, v in on_torch.items() if isinstance(v, dict)}
    assert len(points) == 8
    for name, found in points.items():
        assert found["check"] <= 1.0, name
        assert found["there"], name
        assert found["finite"], name  # 70 sums over 2 ranks would grow by 2^70
        assert found["positive"], name
        assert found["slowest"], name
    assert on_torch["pair False"] == on_torch["pair True"] == 0.0


def test_ranks_that_cannot_be_are_refused_and_lost_ones_named(on_torch):
    assert "asked for 3" in on_torch["another number"]
    assert on_torch["lost"].startswith("InputError: rank 1 of 2 is lost")
    assert all(on_torch["ended"])
