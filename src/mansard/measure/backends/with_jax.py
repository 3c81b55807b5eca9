"""JAX on the CPU. Results go into donated buffers, so that page faults on fresh memory do not enter a rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from mansard.measure.backends.case import ACCUMULATE, Case, gemm_error, random_matrices, special_error, special_inputs


class JaxBackend:
    """JAX: jitted `lax.dot(preferred_element_type=)` and elementwise functions. Threads follow the affinity mask."""

    name = "jax"

    def __init__(self, threads: int) -> None:  # noqa: ARG002 - the CPU client takes its threads from the affinity mask
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        self._jax: Any = jax
        jnp: Any = jax.numpy
        self._dtypes = {
            "f32": jnp.float32, "f64": jnp.float64, "bf16": jnp.bfloat16, "f16": jnp.float16, "i8": jnp.int8,
            "i32": jnp.int32,
        }  # fmt: skip

    def _case(self, call: str, function: Any, inputs: tuple[Any, ...], out: Any, error: Any) -> Case:
        """Return a case that calls `function(*inputs, out)` with `out` donated, again and again."""
        jax: Any = self._jax
        compiled = jax.jit(function, donate_argnums=(len(inputs),), keep_unused=True).lower(*inputs, out).compile()
        kept = [out]

        def run(count: int) -> None:
            last = kept[0]
            for _ in range(count):
                last = compiled(*inputs, last)
            kept[0] = jax.block_until_ready(last)

        return Case(call=call, run=run, error=lambda: error(kept[0]))

    def gemm(self, dtype: str, size: int) -> Case | None:
        """Return a product with the accumulate type as its result type."""
        jax: Any = self._jax
        kind, wide = self._dtypes[dtype], self._dtypes[ACCUMULATE[dtype]]
        x, y = (jax.numpy.asarray(m).astype(kind) for m in random_matrices(dtype, size))
        out = jax.numpy.zeros((size, size), wide)

        def error(got: Any) -> float:
            seen: Any = np.int32 if dtype == "i8" else np.float64
            return gemm_error(dtype, *(np.asarray(m).astype(seen) for m in (x, y, got)))

        def product(a: Any, b: Any, _out: Any) -> Any:
            return jax.lax.dot(a, b, preferred_element_type=wide)

        call = f"jax.lax.dot(preferred_element_type={ACCUMULATE[dtype]}), result donated"
        return self._case(call, product, (x, y), out, error)

    def special(self, function: str, dtype: str, count: int) -> Case | None:
        """Return a jitted elementwise function."""
        jax: Any = self._jax
        values = special_inputs(dtype, count)
        x = jax.numpy.asarray(values)
        call = getattr(jax.lax, function)
        return self._case(
            f"jax.lax.{function}, result donated",
            lambda a, _out: call(a),
            (x,),
            jax.numpy.zeros_like(x),
            lambda got: special_error(function, dtype, values, np.asarray(got)),
        )

    def dispatch(self) -> dict[str, Case]:
        """Return a jitted addition of two scalars: dispatched back to back, and waited for one by one."""
        jax: Any = self._jax
        x, y = jax.numpy.float32(1.0), jax.numpy.float32(2.0)
        add = jax.jit(lambda a, b: a + b)
        kept = [jax.block_until_ready(add(x, y))]

        def run(count: int) -> None:
            last = kept[0]
            for _ in range(count):
                last = add(x, y)
            kept[0] = jax.block_until_ready(last)

        def blocking(count: int) -> None:
            for _ in range(count):
                kept[0] = jax.block_until_ready(add(x, y))

        def error() -> float:
            return abs(float(kept[0]) - 3.0)

        return {
            "back_to_back": Case(call="jitted x + y of two scalars, asynchronous", run=run, error=error),
            "blocking": Case(call="jitted x + y of two scalars, each waited for", run=blocking, error=error),
        }
