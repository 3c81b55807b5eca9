"""Generate tokens one by one with a small decoder and a key-value cache, in plain JAX."""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


def init(key: jax.Array, vocabulary: int, width: int, layers: int, capacity: int) -> Params:
    def normal(*shape: int) -> jax.Array:
        nonlocal key
        key, use = jax.random.split(key)
        return jax.random.normal(use, shape) / shape[0] ** 0.5

    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    return {
        "token": normal(vocabulary, width),
        "position": normal(capacity, width),
        "blocks": [{name: normal(*shape) for name, shape in shapes.items()} for _ in range(layers)],
        "head": normal(width, vocabulary),
    }


def rms_norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


@partial(jax.jit, static_argnames="heads", donate_argnames="cache")
def decode(
    params: Params, cache: Params, token: jax.Array, position: jax.Array, heads: int
) -> tuple[Params, jax.Array]:
    """Return the cache with one more entry, and the most likely next token of each sequence."""
    batch, capacity = token.shape[0], params["position"].shape[0]
    x = params["token"][token] + params["position"][position]
    seen = jnp.arange(capacity) <= position
    new_cache = []
    for p, (keys, values) in zip(params["blocks"], cache, strict=True):
        q, k, v = (part.reshape(batch, heads, -1) for part in jnp.split(rms_norm(x) @ p["qkv"], 3, axis=-1))
        keys = jax.lax.dynamic_update_index_in_dim(keys, k, position, axis=1)
        values = jax.lax.dynamic_update_index_in_dim(values, v, position, axis=1)
        scores = jnp.einsum("bhd,bshd->bhs", q, keys) / q.shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
        x = x + jnp.einsum("bhs,bshd->bhd", weights, values).reshape(batch, -1) @ p["out"]
        x = x + jax.nn.silu(rms_norm(x) @ p["up"]) @ p["down"]
        new_cache.append((keys, values))
    return new_cache, jnp.argmax(rms_norm(x) @ params["head"], axis=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()

    params = init(jax.random.key(0), args.vocabulary, args.width, args.layers, args.tokens)
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters")
    shape = (args.batch, args.tokens, args.heads, args.width // args.heads)
    cache = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(args.layers)]
    token = jnp.zeros(args.batch, dtype=jnp.int32)
    chosen = []
    for position in range(args.tokens):
        cache, token = decode(params, cache, token, jnp.array(position), args.heads)
        chosen.append(int(token[0]))
    print("first tokens:", *chosen[:10])


if __name__ == "__main__":
    main()
