"""Collectives by `torch.distributed`: gloo between processes of this host, NCCL between CUDA devices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core.unknown import Unknown
from mansard.measure.links.mesh import Groups
from mansard.measure.links.ranks import Pool, last_in_to_last_out, pool_of, release
from mansard.measure.links.shapes import Shapes, worst
from mansard.measure.links.with_jax_mesh import slowest
from mansard.measure.points.benchmark import Check, CompilerCount, Operand, Prepared
from mansard.measure.points.inputs import data_kind

#: What PyTorch's profiler must see, by operation: under gloo, then under NCCL.
EXPECTED: dict[str, tuple[str, ...]] = {
    "all_reduce": ("gloo:all_reduce", "nccl:all_reduce", "c10d::allreduce_"),
    "all_gather": ("gloo:all_gather", "gloo:_all_gather_base", "nccl:_all_gather_base", "c10d::_allgather_base_"),
    "reduce_scatter": ("gloo:reduce_scatter", "gloo:_reduce_scatter_base", "nccl:_reduce_scatter_base", "c10d::_reduce_scatter_base_"),
    "all_to_all": ("gloo:all_to_all", "nccl:all_to_all", "c10d::alltoall_base_"),
    "broadcast": ("gloo:broadcast", "nccl:broadcast", "c10d::broadcast_"),
    "ppermute": ("gloo:send", "nccl:send", "c10d::send"), "send_recv": ("gloo:send", "nccl:send", "c10d::send"),
}  # fmt: skip
_numbers = itertools.count()


@dataclass(slots=True)
class OnRanks:
    """One collective over the ranks of a pool.

    Args:
        pool: The processes.
        key: Name of the point among them.
        shapes: Its arrays.
        groups: Ranks of each group.
        spans: Time of one operation of each rank, in each sample [s].
    """

    pool: Pool
    key: str
    shapes: Shapes
    groups: Groups
    spans: dict[int, list[float]] = field(default_factory=dict)
    seen: tuple[str, ...] = ()

    def timed(self, count: int, among: Sequence[int] | None = None) -> float:
        """Do `count` operations and return the time from the last rank's begin to the last one's end [s].

        Args:
            count: Operations.
            among: Ranks that count; None for all.
        """
        spans = self.pool.tell("run", {"key": self.key, "count": count})
        if among is not None:
            return last_in_to_last_out([spans[rank] for rank in among])
        start = max(s[0] for s in spans)
        for rank, span in enumerate(spans):
            self.spans.setdefault(rank, []).append(max(0.0, span[1] - start) / max(count, 1))
        return last_in_to_last_out(spans)

    def run(self, count: int) -> None:
        """Do `count` operations on all ranks and return when the last one has finished."""
        self.timed(count)

    def verify(self) -> Check:
        """Compare the result of every rank with numpy; each rank does it, on fresh inputs."""
        answers = self.pool.tell("verify", {"key": self.key})
        return worst({rank: ratio for rank, ratio in enumerate(answers) if ratio is not None}, "ranks")

    def counts(self) -> CompilerCount:
        """Return the operations that the profiler saw; there is no compiler that counts."""
        missing = Unknown("the collective is a library call; there is no compiled program of it")
        return CompilerCount(
            flop=missing, bytes=missing, operations=self.operations(), expected=EXPECTED[self.shapes.operation], source="PyTorch profiler on every rank",
        )  # fmt: skip

    def operations(self) -> tuple[str, ...]:
        """Return the operations that the profiler sees in one call, of all ranks."""
        if not self.seen:
            seen = self.pool.tell("seen", {"key": self.key})
            self.seen = tuple(dict.fromkeys(name for names in seen for name in names))
        return self.seen

    def done_as(self) -> str:
        """Return the operation of the backend that does the work, where it has another name; else nothing."""
        own = [n for n in self.operations() if n.startswith(("gloo:", "nccl:")) and not n.endswith(":barrier")]
        expected = EXPECTED[self.shapes.operation]
        return "" if not own or any(n in expected for n in own) else ", ".join(own)

    def operands(self) -> list[Operand]:
        """Return the arrays of rank 0."""
        some = self.pool.own.values(self.key)
        in_place = self.shapes.operation in ("all_reduce", "broadcast")
        return [
            Operand(name="input", role="input", bytes=self.shapes.local_bytes, values=some["input"]),
            Operand(
                name="result", role="in_place" if in_place else "output", bytes=self.shapes.result_bytes,
                values=some["result"],
            ),
        ]  # fmt: skip

    def after(self) -> dict[str, Any]:
        """Return the time of each rank over the samples, and the slowest one."""
        return (
            slowest(self.spans, "median over the samples, from when the last rank began", "rank") if self.spans else {}
        )

    def close(self) -> None:
        """Release the point, and the processes if it is the last."""
        try:
            self.pool.tell("drop", {"key": self.key})
        finally:
            release(self.pool)


def on_ranks(
    groups: Groups, shapes: Shapes, *, ranks: int, device_type: str, reduce_op: str = "sum", seed: int = 0,
    pairs: Sequence[tuple[int, int]] = (),
) -> OnRanks:  # fmt: skip
    """Start the ranks, if they are not there yet, and make the arrays of a collective on all of them.

    Args:
        groups: Ranks of each group; each rank is in one.
        shapes: The arrays.
        ranks: All ranks.
        device_type: `cpu` for gloo, `cuda` for NCCL.
        reduce_op: Reduction, where there is one.
        seed: Seed of the inputs.
        pairs: Sender and receiver of each message; empty for one step around each group.
    """
    pool = pool_of(ranks, device_type)
    key = f"point{next(_numbers)}"
    try:
        pool.tell(
            "prepare",
            {"key": key, "shapes": dataclasses.asdict(shapes), "groups": [list(g) for g in groups],
             "reduce_op": reduce_op, "seed": seed, "pairs": [list(p) for p in pairs]},
        )  # fmt: skip
    except BaseException:
        release(pool)
        raise
    return OnRanks(pool=pool, key=key, shapes=shapes, groups=groups)


def prepared(point: OnRanks, facts: Mapping[str, Any]) -> Prepared:
    """Return a collective over ranks as a point."""
    in_place = point.shapes.operation in ("all_reduce", "broadcast")
    more: dict[str, Any] = {}
    if point.shapes.operation == "all_reduce":
        more["values"] = "sums are started anew before they overflow; that copy is in the time"
    instead = point.done_as()
    if instead:
        text = f"the backend does this {point.shapes.operation} as {instead}; S and busbw are those of {point.shapes.operation}"
        more.update(done_as=instead, note=text)
    return Prepared(
        run=point.run, timed=point.timed, verify=point.verify, count_by_compiler=point.counts, operands=point.operands,
        facts_after=point.after, close=point.close,
        facts={"data": data_kind(point.shapes.dtype), "replica_groups": [list(g) for g in point.groups],
               "participants": len(point.groups[0]), "placement": "in_place" if in_place else "out_of_place",
               "clock": "from when the last rank began to when the last one ended", **more, **facts},
    )  # fmt: skip
