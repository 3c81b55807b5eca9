"""Train the convolutional network of the Flax NNX tutorial on random digits."""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class CNN(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
        self.avg_pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear(3136, 256, rngs=rngs)
        self.linear2 = nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.avg_pool(nnx.relu(self.conv1(x)))
        x = self.avg_pool(nnx.relu(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)
        return self.linear2(nnx.relu(self.linear1(x)))


def loss_fn(model: CNN, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def train_step(model: CNN, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, images, labels)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()

    model = CNN(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(0.005, 0.9), wrt=nnx.Param)
    key = jax.random.key(0)
    for step in range(args.steps):
        key, key_x, key_y = jax.random.split(key, 3)
        images = jax.random.normal(key_x, (args.batch, 28, 28, 1))
        labels = jax.random.randint(key_y, (args.batch,), 0, 10)
        loss = float(train_step(model, optimizer, images, labels))
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}")
    assert jnp.isfinite(loss)


if __name__ == "__main__":
    main()
