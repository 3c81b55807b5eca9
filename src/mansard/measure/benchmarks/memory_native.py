"""One pass over memory by our own vector kernels: pinned threads, a known page size, regular or streaming stores."""

# mypy: disable-error-code="untyped-decorator, no-any-return"
# numba ships no types; everything it decorates is Any.

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core.unknown import Unknown
from mansard.hardware.host import parse_cpu_list, read_text
from mansard.measure import kernels
from mansard.measure.benchmarks.memory_calls import FACTOR, Reference, facts_of
from mansard.measure.benchmarks.memory_mixes import elements_of, mix_of, threads_of
from mansard.measure.buffers import Buffer
from mansard.measure.memory import STAGGER_BYTES
from mansard.measure.points import inputs
from mansard.measure.points.benchmark import Check, Operand, Prepared, Where
from mansard.measure.team import Team, split_evenly

TRIALS = 5
TRIAL_BYTES = 64e6  # traffic of one trial of a kernel's shape


def numa_nodes(cpus: Sequence[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the NUMA nodes that CPUs belong to; empty where the kernel does not say.

    Args:
        cpus: The CPUs of the team.
        root: Root of the file system.
    """
    found = []
    base = root / "sys/devices/system/node"
    for path in sorted(base.glob("node[0-9]*")):
        text = read_text(path / "cpulist")
        if text and set(parse_cpu_list(text)) & set(cpus):
            found.append(int(path.name[4:]))
    return tuple(sorted(found))


@dataclass(slots=True)
class Passes:
    """The arrays of one mix, a part for each thread, first touched by it.

    Args:
        name: Mix.
        page, store: As in the parameters.
        team: The threads.
        array_bytes: Bytes of one array of one thread.
    """

    name: str
    page: str
    store: str
    team: Team
    array_bytes: int
    shape: tuple[int, int] = (64, 8)
    buffers: list[Buffer] = field(default_factory=list)
    results: list[float] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = kernels.arrays_of(self.name)
        whole = count * self.array_bytes + (count - 1) * STAGGER_BYTES

        def made(index: int) -> Buffer:
            buffer = Buffer(whole, self.page)
            for number in range(count):
                values = buffer.floats(number * (self.array_bytes + STAGGER_BYTES), self.array_bytes // 4)
                values[:] = inputs.random_input((values.size,), "f32", seed=8 * index + number)
            return buffer

        self.buffers = self.team.each(made)

    def place(self, index: int, array: str) -> int:
        """Return the offset of `c`, `a` or `b` in a thread's buffer [B]."""
        reads, writes = kernels.MIXES[self.name]
        first = writes if kernels.arrays_of(self.name) > 1 else 0  # where `a` is, behind `c` if that is another
        order = {"c": 0, "a": first, "b": writes + 1 if reads == 2 else 0}
        del index
        return order[array] * (self.array_bytes + STAGGER_BYTES)

    def values(self, index: int, array: str) -> Any:
        """Return an array of one thread."""
        return self.buffers[index].floats(self.place(index, array), self.array_bytes // 4)

    def timed(self, count: int, *, factor: float | None = None, shape: tuple[int, int] | None = None) -> float:
        """Sweep `count` times on all threads behind one barrier and return the wall time [s]."""
        kernel = kernels.memory_kernel(self.name, self.store, shape or self.shape)
        used = np.float32((1.0 if self.name == "in_place" else FACTOR) if factor is None else factor)

        def arguments(index: int) -> tuple[Any, ...]:
            base = self.buffers[index].address
            places = [base + self.place(index, array) for array in ("c", "a", "b")]
            return (*places, self.array_bytes // kernels.BLOCK_BYTES, count, used)

        wall_s, results = self.team.sample(kernel, arguments, 1)
        self.results = [float(r) for r in results]
        return float(wall_s[0])

    def choose_shape(self) -> None:
        """Keep the loop body that was fastest in a few trials; what is timed later is measured anew."""
        shapes = kernels.SHAPES[self.name] if self.store == "regular" else kernels.SHAPES[self.name][:1]
        moved = kernels.counted_bytes(self.name, self.array_bytes) * len(self.team)
        count = max(1, round(TRIAL_BYTES / moved))
        best = {}
        for shape in shapes:
            self.timed(1, shape=shape)
            best[shape] = min(self.timed(count, shape=shape) for _ in range(TRIALS))
        self.shape = min(best, key=lambda s: best[s])

    def verify(self) -> Check:
        """Compare one sweep with its formula, at elements of every thread; sums as a whole."""
        worst = Check(error_ratio=0.0, against="")
        references = self._made_references()
        self.timed(1)
        for index, reference in enumerate(references):
            got = self.results[index] if self.name == "read" else self.values(index, "c")
            found = reference.check(got)
            worst = found if not worst.against or found.error_ratio > worst.error_ratio else worst
        if self.name == "in_place":  # by 1 it leaves all as it is, so it is also asked to do something and to undo it
            for factor in (FACTOR, 1.0 / FACTOR):
                before = [self.values(i, "a")[r.at].astype(np.float64) for i, r in enumerate(references)]
                self.timed(1, factor=factor)
                for index, reference in enumerate(references):
                    got = self.values(index, "a")[reference.at]
                    found = inputs.checked(got, factor * before[index], dtype="f32", against=worst.against)
                    worst = max(worst, found, key=lambda c: c.error_ratio)
        return worst

    def _made_references(self) -> list[Reference]:
        if not self.references:
            for index in range(len(self.team)):
                held = {key: self.values(index, key) for key in ("a", "b")}
                count = self.array_bytes // 4
                self.references.append(Reference(self.name, "f32", held, count, inputs.widened))
        return self.references

    def operands(self) -> list[Operand]:
        """Return the arrays of all threads for the audit."""
        reads, writes = kernels.MIXES[self.name]
        rows = []
        if self.name == "in_place":
            wanted = [("a", "in_place")]
        else:
            wanted = [("a", "input"), ("b", "input")][:reads] + ([("c", "output")] if writes else [])
        for key, role in wanted:
            for index in range(len(self.team)):
                rows.append(inputs.operand(self.values(index, key), f"{key} of thread {index}", role))
        return rows


@functools.cache
def index_kernel(scatter: bool) -> Any:
    """Return `run(flag, threads, times, a, p, c, start, stop, repeats)`: c[i] = a[p[i]], or c[p[i]] = a[i]."""
    from numba import njit

    now_ns, fence, meet = kernels._tools()

    @njit(nogil=True)
    def run(flag: int, threads: int, times: Any, a: Any, p: Any, c: Any, start: int, stop: int, repeats: int) -> None:
        for sample in range(times.shape[0]):
            if not meet(flag, (sample + 1) * threads):
                return
            times[sample, 0] = now_ns()
            for _ in range(repeats):
                if scatter:
                    for i in range(start, stop):
                        c[p[i]] = a[i]
                else:
                    for i in range(start, stop):
                        c[i] = a[p[i]]
            fence()
            times[sample, 1] = now_ns()

    return run


def prepare_native(params: Mapping[str, Any], where: Where) -> Prepared:
    """Return one pass of our own kernels ready to be timed."""
    name, mix = mix_of(params)
    team = Team(where.cpus[: threads_of(params, where)])
    page, store = str(params.get("page", "huge")), str(params.get("store", "regular"))
    facts = facts_of(
        params, "Mansard kernel in LLVM code", page=page, store=store, threads=len(team), cpus=list(team.cpus),
        numa_nodes=list(numa_nodes(team.cpus)), first_touch="by the thread that uses it", repeats_inside=True,
    )  # fmt: skip
    if mix.indices:
        return _indexed(params, name, page, team, facts)
    each = elements_of(params, "native", where) * 4 // len(team)
    passes = Passes(name=name, page=page, store=store, team=team, array_bytes=each)
    passes.choose_shape()
    ratios = [r for r in (b.huge_ratio() for b in passes.buffers) if r is not None]
    facts |= {"kernel_shape": list(passes.shape), "huge_page_ratio": min(ratios) if ratios else None}

    def run(count: int) -> None:
        passes.timed(count)

    return Prepared(
        run=run,
        verify=passes.verify,
        count_by_compiler=lambda: Unknown("LLVM code of our own; nothing counts it but its own result"),
        facts=facts,
        timed=passes.timed,
        empty=lambda: None,  # the clock is read behind the barrier: waking the threads is not in the time
        operands=passes.operands,
        close=lambda: team.__exit__(None, None, None),
    )


def _indexed(params: Mapping[str, Any], name: str, page: str, team: Team, facts: dict[str, Any]) -> Prepared:
    count = int(params["size"])
    buffers = {key: Buffer(4 * count, page) for key in ("a", "c", "p")}
    pieces = split_evenly(count, len(team))
    arrays = {
        key: b.floats(0, count) if key != "p" else b.floats(0, count).view(np.int32) for key, b in buffers.items()
    }
    source = inputs.random_input((count,), "f32")
    order = inputs.random_indices(count, count)

    def touch(index: int) -> None:
        start, length = pieces[index]
        part = slice(start, start + length)
        arrays["a"][part], arrays["p"][part], arrays["c"][part] = source[part], order[part], 0.0

    team.each(touch)
    held = {"a": arrays["a"], "p": arrays["p"]}
    reference = Reference(name, "f32", held, count, inputs.widened)
    kernel = index_kernel(name == "scatter")

    def timed(repeats: int) -> float:
        def arguments(index: int) -> tuple[Any, ...]:
            start, length = pieces[index]
            return (arrays["a"], arrays["p"], arrays["c"], start, start + length, repeats)

        wall_s, _ = team.sample(kernel, arguments, 1)
        return float(wall_s[0])

    def run(repeats: int) -> None:
        timed(repeats)

    run(1)  # numba compiles at the first call
    return Prepared(
        run=run,
        verify=lambda: reference.check(arrays["c"]),
        count_by_compiler=lambda: Unknown("LLVM code of our own; nothing counts it but its own result"),
        facts={**facts, "line_bytes": 64, "index_bytes": 4},
        timed=timed,
        empty=lambda: None,  # the clock is read behind the barrier: waking the threads is not in the time
        operands=lambda: [
            inputs.operand(arrays[key], key, role)
            for key, role in (("a", "input"), ("p", "input"), ("c", "output"))
        ],
        close=lambda: team.__exit__(None, None, None),
    )  # fmt: skip
