"""The printed policies, run: what is kept is what the plan says, and gradients are those without a policy."""

from __future__ import annotations

import contextlib
import functools
import io
import re

import pytest

from mansard.plan.remat_code import Names, jax_code, torch_code

BATCH, SEQ, HEADS, HEAD = 2, 8, 2, 8
HIDDEN, INNER = HEADS * HEAD, 24
SHAPES = {
    "n1": (HIDDEN,), "qkv": (HIDDEN, 3 * HIDDEN), "o": (HIDDEN, HIDDEN), "n2": (HIDDEN,), "gu": (HIDDEN, 2 * INNER),
    "d": (INNER, HIDDEN),
}  # fmt: skip
#: Elements of each activation of a layer, worked by hand: 16 tokens of 16, 48, 16, 16, 16, 48 and 24.
ELEMENTS = {
    "layer_input": 256, "input_layernorm": 256, "qkv_proj": 768, "attention": 256, "o_proj": 256,
    "post_attention_layernorm": 256, "gate_up_proj": 768, "activation": 384,
}  # fmt: skip
EVERYTHING = Names(kept=tuple(n for n in ELEMENTS if n != "layer_input"), offloaded=(), again=())
POLICIES = {
    "nothing": Names(kept=(), offloaded=(), again=("qkv_proj",)),
    "some": Names(kept=("qkv_proj", "attention"), offloaded=(), again=("gate_up_proj",)),
    "to_host": Names(kept=("qkv_proj",), offloaded=("attention", "gate_up_proj"), again=("activation",)),
    "input_to_host": Names(kept=(), offloaded=(), again=("qkv_proj",), input_offloaded=True),
    "all_three": Names(kept=("o_proj",), offloaded=("activation", "qkv_proj"), again=("attention",), input_offloaded=True),
}  # fmt: skip


def numbers(seed=0):
    import numpy as np

    rng = np.random.default_rng(seed)
    weights = {name: (rng.standard_normal(shape) / shape[0] ** 0.5).astype("float32") for name, shape in SHAPES.items()}
    return weights, rng.standard_normal((BATCH, SEQ, HIDDEN)).astype("float32")


def program(code):
    space = {}
    exec(compile(code, "policy", "exec"), space)
    return space


# --- JAX -----------------------------------------------------------------------------------------------------------


@functools.cache
def in_jax(names):
    """Gradients, and the residuals beside arguments: elements by name, and on the host."""
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

    run_layer = program(jax_code(names))["run_layer"]
    weights, x = numbers()

    def norm(x, g, name):
        return checkpoint_name(x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g, name)

    def layer(w, x):
        x = checkpoint_name(x, "layer_input")
        qkv = checkpoint_name(norm(x, w["n1"], "input_layernorm") @ w["qkv"], "qkv_proj")
        q, k, v = (t.reshape(BATCH, SEQ, HEADS, HEAD) for t in jnp.split(qkv, 3, -1))
        o = checkpoint_name(jax.nn.dot_product_attention(q, k, v, is_causal=True), "attention")
        x = x + checkpoint_name(o.reshape(x.shape) @ w["o"], "o_proj")
        gu = checkpoint_name(norm(x, w["n2"], "post_attention_layernorm") @ w["gu"], "gate_up_proj")
        gate, up = jnp.split(gu, 2, -1)
        return x + checkpoint_name(jax.nn.silu(gate) * up, "activation") @ w["d"]

    def loss(w, x):
        return jnp.sum(run_layer(layer, w, x))

    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_saved_residuals(loss, weights, x)
    held, host = {}, []
    for line in out.getvalue().splitlines():
        size = 1
        for n in re.search(r"\[([\d,]*)\]", line)[1].split(","):
            size *= int(n or 1)
        if "<host>" in line:
            host.append(size)
        elif "named" in line:
            held[re.search(r"named '(\w+)'", line)[1]] = size
        elif "from the argument" not in line:
            held[line] = size
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, x)
    return gradients, held, sorted(host)


@pytest.mark.parametrize("name", ["nothing", "some", "all_three"])
def test_jax_keeps_what_the_plan_says(name):
    import jax
    import numpy as np

    names = POLICIES[name]
    gradients, held, host = in_jax(names)
    assert held == {n: ELEMENTS[n] for n in names.kept}
    moved = [*names.offloaded, *(["layer_input"] if names.input_offloaded else [])]
    assert host == sorted(ELEMENTS[n] for n in moved)
    want, _, _ = in_jax(EVERYTHING)
    for got, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


# --- PyTorch -------------------------------------------------------------------------------------------------------


def in_torch(names):
    """Gradients, elements of activations that live between the passes, and elements that were moved to the host."""
    import torch
    from torch.nn import functional

    space = program(torch_code(names))
    named = space.get("named", lambda _name: contextlib.nullcontext())
    arrays, x0 = numbers()
    w = {name: torch.tensor(value, requires_grad=True) for name, value in arrays.items()}
    x = torch.tensor(x0, requires_grad=True)
    moved = []
    if names.offloaded:
        inner = space["_to_host"]

        def counted(t):
            moved.append(t.numel())
            return inner(t)

        space["_to_host"] = counted

    def norm(x, g, name):
        n = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        with named(name):
            return n * g

    def layer(x):
        a = norm(x, w["n1"], "input_layernorm")
        with named("qkv_proj"):
            qkv = functional.linear(a, w["qkv"].T)
        q, k, v = (t.view(BATCH, SEQ, HEADS, HEAD).transpose(1, 2) for t in qkv.chunk(3, -1))
        with named("attention"):
            o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        with named("o_proj"):
            r = functional.linear(o.transpose(1, 2).reshape(x.shape), w["o"].T)
        x = x + r
        n = norm(x, w["n2"], "post_attention_layernorm")
        with named("gate_up_proj"):
            gu = functional.linear(n, w["gu"].T)
        gate, up = gu.chunk(2, -1)
        s = functional.silu(gate)
        with named("activation"):
            t = s * up
        return x + functional.linear(t, w["d"].T)

    cached = []
    if "policy_fn" in space:
        policy_fn, keep = space["policy_fn"], space["CheckpointPolicy"].MUST_SAVE

        def noted(ctx, op, *args, **kwargs):
            now, found = space["_now"], policy_fn(ctx, op, *args, **kwargs)
            if found == keep:
                out = ctx.op_output
                cached.append((now, (out[0] if isinstance(out, tuple) else out).numel()))
            return found

        space["policy_fn"] = noted
    # Without a policy autograd itself holds activations; with one it must hold none, but for the input of the checkpoint.
    held = []

    def pack(t):
        held.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = space["run_layer"](layer, x)
    y.sum().backward()
    own = {t.data_ptr() for t in w.values()}
    kinds = [t.numel() for t in held if t.data_ptr() not in own]
    return [x.grad, *(t.grad for t in w.values())], cached, moved, kinds


@pytest.mark.parametrize("name", list(POLICIES))
def test_torch_keeps_what_the_plan_says(name):
    import torch

    names = POLICIES[name]
    gradients, cached, moved, held = in_torch(names)
    assert sorted(cached) == sorted((n, ELEMENTS[n]) for n in names.kept)
    # Fused attention gives its statistics too, one for each row and head.
    extra = [BATCH * HEADS * SEQ] if "attention" in names.offloaded else []
    assert sorted(n for n in moved if n > 1) == sorted([*(ELEMENTS[n] for n in names.offloaded), *extra])
    # All that autograd holds beside the cache is the input of the layer, and where that is offloaded, not on the device.
    assert [n for n in held if n >= 256] == ([] if names.input_offloaded else [ELEMENTS["layer_input"]])
    want, *_ = in_torch(EVERYTHING)
    for got, expected in zip(gradients, want, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("write", [jax_code, torch_code])
@pytest.mark.parametrize("names", [EVERYTHING, *POLICIES.values()])
def test_code_fits_and_compiles(write, names):
    code = write(names)
    compile(code, "policy", "exec")
    assert max(map(len, code.splitlines())) <= 80


def test_nothing_to_write_where_everything_is_kept():
    for code in (jax_code(EVERYTHING), torch_code(EVERYTHING)):
        assert "import" not in code
        assert program(code)["run_layer"](lambda a, b: a - b, 5, 3) == 2
