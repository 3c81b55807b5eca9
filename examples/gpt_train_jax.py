"""Train a small GPT on random tokens with plain JAX; AdamW is written out."""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


def init(key: jax.Array, vocabulary: int, length: int, width: int, layers: int) -> Params:
    def normal(*shape: int) -> jax.Array:
        nonlocal key
        key, use = jax.random.split(key)
        return 0.02 * jax.random.normal(use, shape)

    def norm() -> Params:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    blocks = [
        {
            "norm1": norm(),
            "qkv": normal(width, 3 * width),
            "out": normal(width, width),
            "norm2": norm(),
            "up": normal(width, 4 * width),
            "up_bias": jnp.zeros(4 * width),
            "down": normal(4 * width, width),
            "down_bias": jnp.zeros(width),
        }
        for _ in range(layers)
    ]
    return {
        "token": normal(vocabulary, width),
        "position": normal(length, width),
        "blocks": blocks,
        "norm": norm(),
        "head": normal(width, vocabulary),
    }


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def attention(p: Params, x: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    q, k, v = (part.reshape(batch, length, heads, -1) for part in jnp.split(x @ p["qkv"], 3, axis=-1))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return attended.reshape(batch, length, width) @ p["out"]


def forward(params: Params, tokens: jax.Array, heads: int) -> jax.Array:
    x = params["token"][tokens] + params["position"][: tokens.shape[1]]
    for p in params["blocks"]:
        x = x + attention(p, layer_norm(p["norm1"], x), heads)
        hidden = jax.nn.gelu(layer_norm(p["norm2"], x) @ p["up"] + p["up_bias"], approximate=False)
        x = x + hidden @ p["down"] + p["down_bias"]
    return layer_norm(params["norm"], x) @ params["head"]


def loss_of(params: Params, tokens: jax.Array, heads: int) -> jax.Array:
    log_p = jax.nn.log_softmax(forward(params, tokens[:, :-1], heads))
    return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1).mean()


def adamw(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, t: jax.Array) -> tuple[jax.Array, ...]:
    rate, beta1, beta2, decay = 3e-4, 0.9, 0.999, 0.01
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    update = (m / (1 - beta1**t)) / (jnp.sqrt(v / (1 - beta2**t)) + 1e-8)
    return p - rate * (update + decay * p), m, v


@partial(jax.jit, static_argnames="heads")
def train_step(state: tuple[Params, Params, Params, jax.Array], tokens: jax.Array, heads: int) -> tuple[Any, jax.Array]:
    params, m, v, t = state
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, heads)
    t = t + 1
    leaves = [jax.tree.leaves(tree) for tree in (params, grads, m, v)]
    updated = [adamw(*leaf, t) for leaf in zip(*leaves, strict=True)]
    params, m, v = (jax.tree.unflatten(jax.tree.structure(params), part) for part in zip(*updated, strict=True))
    return (params, m, v, t), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()

    key = jax.random.key(0)
    params = init(key, args.vocabulary, args.length, args.width, args.layers)
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (params, zeros, zeros, jnp.array(0.0))
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters")
    for step in range(args.steps):
        key, use = jax.random.split(key)
        tokens = jax.random.randint(use, (args.batch, args.length + 1), 0, args.vocabulary)
        state, loss = train_step(state, tokens, args.heads)
        loss = float(loss)
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
