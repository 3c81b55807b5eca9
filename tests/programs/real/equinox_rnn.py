"""Train a recurrent network on spirals, after the Equinox tutorial: a GRU cell inside a scan, mapped over the batch."""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class RNN(eqx.Module):
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear
    hidden: int = eqx.field(static=True)

    def __init__(self, inputs: int, hidden: int, key: jax.Array) -> None:
        cell_key, linear_key = jax.random.split(key)
        self.hidden = hidden
        self.cell = eqx.nn.GRUCell(inputs, hidden, key=cell_key)
        self.linear = eqx.nn.Linear(hidden, 1, key=linear_key)

    def __call__(self, sequence: jax.Array) -> jax.Array:
        out, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(self.hidden), sequence)
        return jax.nn.sigmoid(self.linear(out))[0]


def spirals(count: int, length: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    t = jnp.linspace(0, 4 * jnp.pi, length)
    offset = jax.random.uniform(key, (count, 1), maxval=2 * jnp.pi)
    label = (jnp.arange(count) < count // 2).astype(jnp.float32)
    x = jnp.sin(t + offset) / (1 + t)
    y = jnp.cos(t + offset) / (1 + t) * jnp.where(label[:, None] > 0, -1.0, 1.0)
    return jnp.stack([x, y], axis=-1), label


@eqx.filter_value_and_grad
def loss_of(model: RNN, x: jax.Array, y: jax.Array) -> jax.Array:
    p = jax.vmap(model)(x)
    return -jnp.mean(y * jnp.log(p + 1e-7) + (1 - y) * jnp.log(1 - p + 1e-7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    args = parser.parse_args()

    data_key, model_key = jax.random.split(jax.random.key(0))
    xs, ys = spirals(args.batch * 8, args.length, data_key)
    model = RNN(2, args.hidden, model_key)
    optim = optax.adam(3e-3)
    state = optim.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def make_step(
        model: RNN, state: optax.OptState, x: jax.Array, y: jax.Array
    ) -> tuple[RNN, optax.OptState, jax.Array]:
        loss, grads = loss_of(model, x, y)
        updates, state = optim.update(grads, state)
        return eqx.apply_updates(model, updates), state, loss

    for step in range(args.steps):
        chosen = slice(step % 8, None, 8)
        model, state, loss = make_step(model, state, xs[chosen], ys[chosen])
        loss = loss.item()
        if step % 30 == 0:
            print(f"step {step}: loss {loss:.4f}")


if __name__ == "__main__":
    main()
