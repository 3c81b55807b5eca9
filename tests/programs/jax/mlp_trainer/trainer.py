"""The model and its loop."""

import itertools

import jax
import jax.numpy as jnp

Layer = tuple[jax.Array, jax.Array]


def apply(layers: list[Layer], x: jax.Array) -> jax.Array:
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


@jax.jit
def train_step(layers: list[Layer], x: jax.Array, target: jax.Array) -> tuple[list[Layer], jax.Array]:
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((apply(p, x) - target) ** 2))(layers)
    return jax.tree.map(lambda p, g: p - 0.01 * g, layers, grads), loss


class Trainer:
    """Holds the layers; the data is one random batch."""

    def __init__(self, widths: list[int]) -> None:
        self.widths = widths
        self.key = jax.random.key(0)
        self.layers = []
        for n_in, n_out in itertools.pairwise(widths):
            self.key, key = jax.random.split(self.key)
            self.layers.append((jax.random.normal(key, (n_in, n_out)) / n_in**0.5, jnp.zeros(n_out)))

    def run_epoch(self, batches: int, batch: int) -> float:
        self.key, key_x, key_y = jax.random.split(self.key, 3)
        x = jax.random.normal(key_x, (batch, self.widths[0]))
        target = jax.random.normal(key_y, (batch, self.widths[-1]))
        for _ in range(batches):
            self.layers, loss = train_step(self.layers, x, target)
            loss.block_until_ready()
        return float(loss)
