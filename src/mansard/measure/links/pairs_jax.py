"""Messages between two devices by JAX: a permutation over the two, or a copy by `device_put`; one pair or all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.errors import UndecidedError, UsageError
from mansard.measure.links.shapes import Shapes, error_ratio, local_inputs, positions, worst
from mansard.measure.links.with_jax_mesh import EXPECTED, collective_function
from mansard.measure.points.benchmark import Check, CompilerCount, Operand, Prepared
from mansard.measure.points.inputs import data_kind

Pair = tuple[int, int]


@dataclass(slots=True)
class Pairs:
    """Messages between pairs of devices; one operation is one message (uni) or one each way (bi).

    Args:
        pairs: Source and target of each.
        both: Whether both send at the same time.
        shapes: The message.
        blocks: Data of each device.
        memory: Where each device receives.
        programs: The compiled permutation of each pair, and its placement; empty for copies.
        seconds: Time of one operation of each pair, in each sample [s].
    """

    pairs: Sequence[Pair]
    both: bool
    shapes: Shapes
    blocks: dict[int, Any]
    memory: dict[int, Any]
    devices: Sequence[Any]
    programs: dict[Pair, tuple[Any, Any]]
    compile_s: float
    seconds: dict[Pair, list[float]] = field(default_factory=dict)
    received: dict[Pair, Any] = field(default_factory=dict)

    def timed(self, count: int) -> float:
        """Do `count` messages between each pair, one pair after the other; return the mean of the pairs [s]."""
        total = 0.0
        for pair in self.pairs:
            spent = self._moved(pair, count) if self.programs else self._copied(pair, count)
            self.seconds.setdefault(pair, []).append(spent / max(count, 1))
            total += spent
        return total / len(self.pairs)

    def run(self, count: int) -> None:
        """Do `count` messages between each pair."""
        self.timed(count)

    def _moved(self, pair: Pair, count: int) -> float:
        import jax

        compiled, placed = self.programs[pair]
        shape = (2, *self.shapes.local)
        make = jax.make_array_from_single_device_arrays
        x = make(shape, placed, [self.blocks[d] for d in pair])
        out = make(shape, placed, [self.memory[d] for d in pair])
        begin = time.perf_counter()
        for _ in range(count):
            out = compiled(x, out)
        jax.block_until_ready(out)
        spent = time.perf_counter() - begin
        found = {s.device: s.data for s in out.addressable_shards}
        for device in pair:
            self.memory[device] = found[self.devices[device]]
        return spent

    def _copied(self, pair: Pair, count: int) -> float:
        import jax

        source, target = pair
        got: Any = None
        begin = time.perf_counter()
        for _ in range(count):
            got = [jax.device_put(self.blocks[source], self.devices[target])]
            if self.both:
                got.append(jax.device_put(self.blocks[target], self.devices[source]))
            jax.block_until_ready(got)
        spent = time.perf_counter() - begin
        self.received[pair] = got
        return spent

    def verify(self) -> Check:
        """Compare what every device received with what its sender holds."""
        at = positions(self.shapes.elements)
        ratios: dict[int, float] = {}
        for number, pair in enumerate(self.pairs):
            if self.programs:
                self._moved(pair, 1)
                arrived = {pair[1]: self.memory[pair[1]], **({pair[0]: self.memory[pair[0]]} if self.both else {})}
            else:
                self._copied(pair, 1)
                arrived = dict(zip((pair[1], pair[0]), self.received[pair], strict=False))
            for device, block in arrived.items():
                sender = pair[0] if device == pair[1] else pair[1]
                want = np.asarray(self.blocks[sender]).reshape(-1)[at].astype(np.float64)
                got = np.asarray(block).reshape(-1)[at]
                ratios[number] = max(ratios.get(number, 0.0), error_ratio(got, want, self.shapes))
        return worst(ratios, "pairs")

    def counts(self) -> CompilerCount:
        """Return what XLA says of one message of the first pair."""
        from mansard.core.unknown import Unknown
        from mansard.measure.points.with_jax import count

        if self.programs:
            return count(self.programs[self.pairs[0]][0], EXPECTED["send_recv"])
        none = Unknown("a copy by the runtime is no compiled program")
        return CompilerCount(
            flop=none, bytes=none, operations=("device_put",), expected=("device_put",), source="called"
        )

    def operands(self) -> list[Operand]:
        """Return the message of the first pair."""
        flat = np.asarray(self.blocks[self.pairs[0][0]]).reshape(-1)
        return [
            Operand(
                name="message", role="input", bytes=self.shapes.local_bytes, values=flat[positions(flat.size)[:4096]]
            )
        ]

    def after(self) -> dict[str, Any]:
        """Return the matrix of the pairs and the slowest of them."""
        size = self.shapes.local_bytes * (2.0 if self.both else 1.0)
        medians = {p: float(np.median(t)) for p, t in self.seconds.items()}
        if not medians:
            return {}
        slow = max(medians, key=lambda p: medians[p])
        return {
            "matrix": [
                {"source": a, "target": b, "seconds": t, "bytes_per_s": size / t, "samples": len(self.seconds[a, b])}
                for (a, b), t in sorted(medians.items())
            ],
            "slowest_pair": list(slow), "slowest_pair_s": medians[slow], "fastest_pair_s": min(medians.values()),
            "matrix_means": "both directions together" if self.both else "one direction",
        }  # fmt: skip


def pairs_on_devices(
    pairs: Sequence[Pair], shapes: Shapes, *, both: bool, copies: bool = False, seed: int = 0
) -> Pairs:
    """Compile the messages and make the data of all devices.

    Args:
        pairs: Source and target of each, as numbers of `jax.devices()`.
        shapes: The message.
        both: Whether both send at the same time.
        copies: `device_put` instead of a compiled permutation.
        seed: Seed of the data.

    Raises:
        UsageError: there is no device of a number.
        UndecidedError: a copy shares the memory of its source, so nothing moves.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from mansard.measure.points.with_jax import jax_dtype

    there, kind = jax.devices(), jax_dtype(shapes.dtype)
    used = sorted({d for pair in pairs for d in pair})
    if used[-1] >= len(there):
        raise UsageError(f"there is no device {used[-1]}; JAX sees {len(there)}")

    def block(values: Any, device: int) -> Any:
        return jax.block_until_ready(jax.device_put(values[None], there[device]).astype(kind))

    values_of = local_inputs(shapes, seed)
    blocks = {d: block(values_of(d), d) for d in used}
    memory = {} if copies else {d: block(np.zeros(shapes.local, np.float32), d) for d in used}
    made: dict[Pair, tuple[Any, Any]] = {}
    begin = time.perf_counter()
    for pair in () if copies else pairs:
        grid = jax.sharding.Mesh(np.asarray([there[d] for d in pair], dtype=object), ("pair",))
        spec = PartitionSpec("pair")
        placed = NamedSharding(grid, spec)
        function = collective_function("send_recv", ("pair",), 2, "sum", [(0, 1), (1, 0)] if both else [(0, 1)])
        mapped = jax.shard_map(function, mesh=grid, in_specs=spec, out_specs=spec, check_vma=False)
        form = jax.ShapeDtypeStruct((2, *shapes.local), kind, sharding=placed)
        traced = jax.jit(lambda a, _out, f=mapped: f(a), donate_argnums=(1,), keep_unused=True)
        made[pair] = (traced.lower(form, form).compile(), placed)
    point = Pairs(
        pairs=pairs, both=both, shapes=shapes, blocks=blocks, memory=memory, devices=there, programs=made,
        compile_s=time.perf_counter() - begin,
    )  # fmt: skip
    if copies:
        _must_move(point)
    return point


def _must_move(point: Pairs) -> None:
    source, target = point.pairs[0]
    point.run(1)
    got = point.received[source, target][0]
    if got.unsafe_buffer_pointer() == point.blocks[source].unsafe_buffer_pointer():
        raise UndecidedError(
            f"a copy from device {source} to {target} shares its memory: nothing moves, so there is no bandwidth",
            hint="impl jax moves the data by a collective permutation", code="aliased",
        )  # fmt: skip


def prepared(point: Pairs, facts: Mapping[str, Any]) -> Prepared:
    """Return messages between pairs as a point."""
    return Prepared(
        run=point.run, timed=point.timed, verify=point.verify, count_by_compiler=point.counts, compile_s=point.compile_s,
        operands=point.operands, facts_after=point.after, output_is_fresh=not point.programs,
        facts={"data": data_kind(point.shapes.dtype), "pairs": [list(p) for p in point.pairs],
               "direction": "bi" if point.both else "uni", "participants": 2,
               "sample": "mean over the pairs, which take turns" if len(point.pairs) > 1 else "the one pair", **facts},
    )  # fmt: skip
