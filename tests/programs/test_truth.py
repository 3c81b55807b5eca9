"""The hand counts of truth.py against counters that know nothing of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"program_{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TRUTH = load(HERE / "truth.py")
TRUTHS = {truth.name: truth for truth in TRUTH.all_truths()}


def torch_flop(*runs: tuple[str, list[str]]) -> list[int]:
    """Return what torch's dispatch-level counter sees in each run: a program's name, and options for one step."""
    pytest.importorskip("torch")
    requests = [[str(TRUTHS[name].folder), [*TRUTHS[name].command, *options]] for name, options in runs]
    done = subprocess.run(
        [sys.executable, str(HERE / "torch_flop.py")],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return json.loads(done.stdout.splitlines()[-1])


ONE_STEP = ["--steps", "1"]
ONE_BATCH = ["--epochs", "1", "--batches", "1"]


def test_torch_programs():
    options = {
        "torch/large_gemm": ONE_BATCH,
        "torch/elementwise_chain": [*ONE_STEP, "--elements", "64"],
        "torch/tiny_ops": ONE_STEP,
        "torch/tiny_ops train": ONE_STEP,
        "torch/slow_loader": ONE_STEP,
        "torch/mix": ONE_STEP,
        "torch/mlp_trainer": ONE_BATCH,
    }
    assert dict(zip(options, torch_flop(*options.items()), strict=True)) == {
        name: TRUTHS[name].flop for name in options
    }


@pytest.mark.slow
def test_executed_flop_of_transformers():
    """A dispatch counter sees the full square and the recomputation of the flash backward: the executed count."""
    pytest.importorskip("transformers")
    names = [
        "real/gpt2",
        "real/gpt2 dropout",
        "real/mixtral train",
        "real/mixtral eager experts",
        "example/gpt_train_torch",
    ]
    decode = [("real/mixtral generate", ["--steps", str(count)]) for count in (2, 3)]
    *found, two, three = torch_flop(*[(name, ONE_STEP) for name in names], *decode)
    assert dict(zip(names, found, strict=True)) == {name: TRUTHS[name].flop_executed for name in names}
    # n new tokens are a prefill and n - 1 steps, at 129, 130, ... tokens: the third token less the second is the step at
    # 130. One more key than at 129 costs 4 layers * 4 * 4 sequences * 256 = 16,384 FLOP.
    assert three - two == TRUTHS["real/mixtral generate"].flop_range[0] + 16_384


def test_jax_programs():
    jax = pytest.importorskip("jax")
    counter = load(HERE / "jaxpr_flop.py")
    shape = jax.ShapeDtypeStruct
    gemm = load(HERE / "jax" / "large_gemm.py")
    operands = [shape(size, "float32") for size in ((2048, 1536), (1536, 1792), (1792, 1536))]
    assert counter.function_flop(gemm.project, *operands) == TRUTHS["jax/large_gemm"].flop
    assert counter.function_flop(gemm.project_loop, *operands, rounds=4) == TRUTHS["jax/large_gemm loop"].flop

    tiny = load(HERE / "jax" / "tiny_ops.py")
    params = {"w": shape((16, 32), "float32"), "u": shape((32, 32), "float32"), "b": shape((32,), "float32")}
    assert (
        counter.function_flop(tiny.scanned, params, shape((2000, 4, 16), "float32")) == TRUTHS["jax/tiny_ops scan"].flop
    )

    loader = load(HERE / "jax" / "slow_loader.py")
    sizes = {"w1": (784, 512), "b1": (512,), "w2": (512, 10), "b2": (10,)}
    weights = {key: shape(size, "float32") for key, size in sizes.items()}
    batch = shape((128, 784), "float32"), shape((128,), "int32")
    assert counter.function_flop(loader.train_step, weights, *batch) == TRUTHS["jax/slow_loader"].flop


def test_gpt_in_jax_runs_full_squares():
    jax = pytest.importorskip("jax")
    counter = load(HERE / "jaxpr_flop.py")
    gpt = load(TRUTH.EXAMPLES / "gpt_train_jax.py")
    params = gpt.init(jax.random.key(0), 1024, 256, 256, 4)
    tokens = jax.ShapeDtypeStruct((8, 257), "int32")
    state = (params, params, params, jax.numpy.array(0.0))
    assert (
        counter.function_flop(gpt.train_step, state, tokens, heads=4) == TRUTHS["example/gpt_train_jax"].flop_executed
    )


def test_flax_and_equinox():
    jax = pytest.importorskip("jax")
    nnx = pytest.importorskip("flax.nnx")
    eqx = pytest.importorskip("equinox")
    counter = load(HERE / "jaxpr_flop.py")
    shape = jax.ShapeDtypeStruct

    cnn = load(HERE / "real" / "flax_cnn.py")
    definition, state = nnx.split(cnn.CNN(rngs=nnx.Rngs(0)))
    grad = jax.value_and_grad(lambda s, x, y: cnn.loss_fn(nnx.merge(definition, s), x, y))
    images, labels = shape((128, 28, 28, 1), "float32"), shape((128,), "int32")
    assert counter.function_flop(grad, state, images, labels) == TRUTHS["real/flax_cnn"].flop

    rnn = load(HERE / "real" / "equinox_rnn.py")
    arrays, static = eqx.partition(rnn.RNN(2, 128, jax.random.key(0)), eqx.is_array)
    batch = shape((64, 64, 2), "float32"), shape((64,), "float32")
    found = counter.function_flop(lambda a, x, y: rnn.loss_of(eqx.combine(a, static), x, y), arrays, *batch)
    assert found == TRUTHS["real/equinox_rnn"].flop
