"""Memory ceilings: bandwidth per level, access mix, page size and store type, and the cliff that confirms capacities.

Bytes are counted as STREAM counts them: every touched array once; that a cache reads a line before it is written
(write-allocate) is not counted. `in_place` is `a = s*a`, 2 bytes moved per byte of the array, and needs no such read.
`fresh` writes once into newly mapped memory, page faults included.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.ceilings import Area, Ceiling, Kind, MemoryLevel, Resource
from mansard.core.errors import UndecidedError
from mansard.measure import kernels
from mansard.measure.buffers import HUGE_BYTES, Buffer
from mansard.measure.envelope import envelope
from mansard.measure.machine import Cache, meminfo
from mansard.measure.team import Team

SCALE = 0.5
CACHES_BELOW_DRAM = 12.0  # working set of a DRAM probe over the last-level cache: 3 arrays of 4 times it
LEAST_DRAM_BYTES = 192 * 2**20
LIMIT_S = 20.0  # no new round after this: a busy machine makes fewer windows, not a longer wait
SHARE_OF_FREE_MEMORY = 0.05  # of MemAvailable, for one working set; four exist at a time
FRESH_BYTES = 64 * 2**20
CACHE_SAMPLE_BYTES = 128e6  # traffic of one sample of a cache probe: about a millisecond
STAGGER_BYTES = 4096 + 1024  # between arrays, so that equal offsets do not fall on the same sets and banks
ALIGN_BYTES = kernels.BLOCK_BYTES

SOURCE = "Mansard vector kernels, STREAM counting, write-allocate not counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One memory measurement.

    Args:
        level, mix, page, store, scope: As in `Resource` and `Ceiling`.
        working_set_bytes: All arrays of one thread together [B].
        repeats: Sweeps in one sample.
        shape: Bytes of one vector and vectors per loop body of the kernel; None takes the first of `kernels.SHAPES`.
    """

    level: str
    mix: str
    page: str
    store: str
    scope: str
    working_set_bytes: int
    repeats: int = 1
    shape: tuple[int, int] | None = None

    @property
    def array_bytes(self) -> int:
        """Size of one array of one thread, a multiple of the unrolled block [B]."""
        count = kernels.arrays_of(self.mix)
        usable = self.working_set_bytes - (count - 1) * STAGGER_BYTES
        return max(ALIGN_BYTES, usable // count // ALIGN_BYTES * ALIGN_BYTES)

    def sample_bytes(self, threads: int) -> float:
        """Bytes that one sample of `threads` threads counts [B]."""
        return kernels.counted_bytes(self.mix, self.array_bytes) * self.repeats * threads

    def offsets(self) -> tuple[int, int, int]:
        """Offsets of dst, a and b in a thread's buffer; an array that the mix does not touch is given that of dst [B]."""
        reads, writes = kernels.MIXES[self.mix]
        step = self.array_bytes + STAGGER_BYTES
        if self.mix == "in_place" or reads + writes == 1:
            return (0, 0, 0)
        return (0, step, 2 * step if reads == 2 else 0)


def dram_bytes(caches: Sequence[Cache], available_bytes: float | None) -> int:
    """Return the working set of a DRAM probe [B]: 12 times the last-level caches within reach, within the free memory.

    Three arrays of at least four times the cache each is STREAM's rule; a one-array mix walks through all of it. Twice as
    much is 4 to 5 % slower, a third as much 20 to 40 % faster (docs/pitfalls.md).
    """
    last = max((c.level for c in caches), default=0)
    cache = sum(c.size_bytes for c in caches if c.level == last)
    wanted = max(LEAST_DRAM_BYTES, CACHES_BELOW_DRAM * cache)
    limit = wanted if available_bytes is None else max(LEAST_DRAM_BYTES / 4, SHARE_OF_FREE_MEMORY * available_bytes)
    return int(min(wanted, limit)) // HUGE_BYTES * HUGE_BYTES


def cache_working_sets(caches: Sequence[Cache], cpus: Sequence[int], level: int) -> tuple[int, ...]:
    """Return per-thread working sets that live in one cache level and not in a nearer one [B]; empty if none can.

    Args:
        caches: All caches within reach.
        cpus: The CPUs of the team; instances are shared by those of them that can reach them.
        level: Cache level.

    Assumes: a working set of at least 4 times the nearer cache, swept in order, is hardly ever found there.
    """

    def share(number: int) -> float:
        mine = [c for c in caches if c.level == number]
        parts = [c.size_bytes / max(1, len(set(c.cpus) & set(cpus))) for c in mine if set(c.cpus) & set(cpus)]
        return min(parts, default=0.0)

    nearer = max((share(n) for n in {c.level for c in caches} if n < level), default=0.0)
    sizes = [f * share(level) for f in (0.25, 0.5, 0.75)]
    return tuple(int(s) // ALIGN_BYTES * ALIGN_BYTES for s in sizes if s > 0 and s >= 4.0 * nearer)


@dataclass(slots=True)
class Arena:
    """The buffers of one team for one page size, each first touched by the thread that uses it."""

    team: Team
    page: str
    size_bytes: int
    buffers: list[Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        def touch(_index: int) -> Buffer:
            buffer = Buffer(self.size_bytes, self.page)
            buffer.floats()[:] = np.float32(1.0)
            return buffer

        self.buffers = self.team.each(touch)

    def base(self, probe: Probe, place: int) -> int:
        """Return the offset of a probe's arrays in the buffers for the `place`-th placement [B].

        Which lines of a physically indexed cache collide is a matter of the pages one happens to get: the same 16 MiB
        read at 105 or 129 GB/s from a 32 MiB L3. Separated windows use separated places, and the best one stands.
        """
        step = -(-probe.working_set_bytes // HUGE_BYTES) * HUGE_BYTES
        return place % max(1, self.size_bytes // step) * step

    def run(self, probe: Probe, samples: int, *, audit: bool = False, place: int = 0) -> npt.NDArray[np.float64]:
        """Return the rates of `samples` samples of a probe [B/s].

        Args:
            probe: What to run; its working set fits the buffers.
            samples: How many.
            audit: Also check what the kernels wrote, at the ends and inside of every thread's arrays (in place 0).
            place: Which part of the buffers to use, where they hold several.

        Raises:
            UndecidedError: a kernel wrote something else than its mix says.
        """
        if audit:
            place = 0
            self._mark(probe)
        kernel = kernels.memory_kernel(probe.mix, probe.store, probe.shape)
        offsets, blocks = probe.offsets(), probe.array_bytes // kernels.BLOCK_BYTES
        factor = np.float32(1.0 if probe.mix == "in_place" else SCALE)

        def arguments(index: int) -> tuple[Any, ...]:
            base = self.buffers[index].address + self.base(probe, place)
            return (*(base + o for o in offsets), blocks, probe.repeats, factor)

        wall_s, results = self.team.sample(kernel, arguments, samples)
        if audit:
            self._check(probe, samples, results)
        rates: npt.NDArray[np.float64] = probe.sample_bytes(len(self.team)) / wall_s
        return rates

    def _spots(self, probe: Probe) -> npt.NDArray[np.int64]:
        count = probe.array_bytes // 4
        return np.unique(np.array([0, 1, count // 3, count // 2, count - 2, count - 1], dtype=np.int64))

    def _mark(self, probe: Probe) -> None:
        spots, (dst, a, b) = self._spots(probe), probe.offsets()
        for buffer in self.buffers:
            buffer.floats(b)[spots] = np.float32(5.0)
            buffer.floats(a)[spots] = np.float32(3.0)
            if probe.mix not in ("in_place", "read"):
                buffer.floats(dst)[spots] = np.float32(-1.0)
            if probe.mix == "read":
                buffer.floats(a, probe.array_bytes // 4)[:] = np.float32(1.0)

    def _check(self, probe: Probe, samples: int, results: Sequence[Any]) -> None:
        wanted = {"write": 0.5, "copy": 3.0, "scale": 1.5, "add": 8.0, "triad": 5.5, "in_place": 3.0}
        for buffer, result in zip(self.buffers, results, strict=True):
            if probe.mix == "read":  # ones: the sum counts the elements, within what f32 partial sums can hold
                count = probe.array_bytes / 4 * probe.repeats * samples
                fine = abs(float(result) - count) <= 1e-3 * count
                got: Any = result
            else:
                got = buffer.floats(probe.offsets()[0])[self._spots(probe)]
                fine = bool((got == np.float32(wanted[probe.mix])).all())
            if not fine:
                raise UndecidedError(f"the {probe.mix} kernel with {probe.store} stores gave a wrong result: {got}")


def fresh_rates(team: Team, page: str, samples: int, size_bytes: int = FRESH_BYTES) -> npt.NDArray[np.float64]:
    """Return rates of writing once into newly mapped memory, page faults included [B/s]."""
    probe = Probe(level="dram", mix="write", page=page, store="regular", scope="core", working_set_bytes=size_bytes)
    kernel = kernels.memory_kernel("write", "regular")
    rates = []
    for _ in range(samples):
        buffers = [Buffer(size_bytes, page) for _ in team.cpus]

        def arguments(index: int, made: list[Buffer] = buffers) -> tuple[Any, ...]:
            base = made[index].address
            return (base, base, base, probe.array_bytes // kernels.BLOCK_BYTES, 1, np.float32(SCALE))

        wall_s, _ = team.sample(kernel, arguments, 1)
        if any(float(b.floats()[probe.array_bytes // 4 - 1]) != SCALE for b in buffers):
            raise UndecidedError("the write kernel did not reach the end of the new memory")
        rates.append(probe.sample_bytes(len(team)) / float(wall_s[0]))
        del buffers
    return np.asarray(rates)


def dram_probes(scope: str, pages: Iterable[str], size_bytes: int) -> list[Probe]:
    """Return every sensible DRAM probe of a scope: each mix and page, streaming stores where there are plain stores."""
    probes = []
    for page in pages:
        for mix, shapes in kernels.SHAPES.items():
            kinds: list[tuple[str, tuple[int, int]]] = [("regular", shape) for shape in shapes]
            if mix in kernels.STREAMING_MIXES:
                kinds.append(("streaming", shapes[0]))
            probes += [
                Probe(
                    level="dram",
                    mix=mix,
                    page=page,
                    store=store,
                    scope=scope,
                    working_set_bytes=size_bytes,
                    shape=shape,
                )
                for store, shape in kinds
            ]
    return probes


def cache_probes(scope: str, page: str, caches: Sequence[Cache], cpus: Sequence[int]) -> list[Probe]:
    """Return the probes of every cache level: each mix, several working sets, regular stores."""
    probes = []
    for level in sorted({c.level for c in caches}):
        for size in cache_working_sets(caches, cpus, level):
            for mix in kernels.MIXES:
                one = Probe(level=f"l{level}", mix=mix, page=page, store="regular", scope=scope, working_set_bytes=size)
                repeats = max(1, round(CACHE_SAMPLE_BYTES / kernels.counted_bytes(mix, one.array_bytes)))
                probes += [dataclasses.replace(one, repeats=repeats, shape=shape) for shape in kernels.SHAPES[mix]]
    return probes


def working_set_curve(arena: Arena) -> list[dict[str, float]]:
    """Return read bandwidth over the working set, from 8 KiB to the whole buffer in steps of about 1.41."""
    points = []
    size, step = 8 * 2**10, 0
    while size <= arena.size_bytes:
        probe = Probe(level="", mix="read", page=arena.page, store="regular", scope="core", working_set_bytes=size)
        probe = dataclasses.replace(probe, repeats=max(1, round(CACHE_SAMPLE_BYTES / probe.array_bytes)))
        points.append({"working_set_bytes": float(probe.array_bytes), "bytes_per_s": float(arena.run(probe, 3).max())})
        step += 1
        size = int(8 * 2**10 * 2 ** (step / 2)) // ALIGN_BYTES * ALIGN_BYTES
    return points


def cliff_findings(points: Sequence[dict[str, float]], levels: Sequence[MemoryLevel]) -> list[dict[str, str]]:
    """Return a finding for each cache whose capacity in sysfs the bandwidth does not confirm.

    A cache is confirmed when the bandwidth at half of its capacity is well above (15 %) that at twice the
    capacity; where the next level is as fast, nothing can be said and nothing is.
    """
    findings = []
    sizes = np.array([p["working_set_bytes"] for p in points])
    rates = np.array([p["bytes_per_s"] for p in points])
    last = [v for v in levels if v.level != "dram"][-1:]
    for level in last:
        inside, outside = level.capacity_bytes / 2, level.capacity_bytes * 3
        if sizes.size == 0 or sizes[-1] < outside:
            continue
        near = float(np.interp(np.log(inside), np.log(sizes), rates))
        far = float(np.interp(np.log(outside), np.log(sizes), rates))
        if near < 1.15 * far:
            text = (
                f"sysfs says {level.level} holds {level.capacity_bytes / 2**20:.3g} MiB, but reading half of that is no "
                f"faster ({near / 1e9:.3g} GB/s) than reading three times as much ({far / 1e9:.3g} GB/s): the share of the "
                "cache this machine may use is probably smaller"
            )
            findings.append({"code": "cache_capacity_not_confirmed", "text": text})
    return findings


@dataclass(slots=True)
class MemoryResult:
    """What the memory group found."""

    ceilings: list[Ceiling] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)


def measure_memory(
    cpus: Sequence[int],
    caches: Sequence[Cache],
    levels: Sequence[MemoryLevel],
    *,
    pages: Sequence[str],
    rounds: int = 4,
    samples: int = 4,
    progress: Callable[[float], None] = lambda _share: None,
) -> MemoryResult:
    """Measure all memory ceilings of one thread (scope `core`) and of the team (scope `node`).

    The whole grid is run `rounds` times in random order, so that every figure has separated windows and no figure
    owes its place to a drift of the machine.
    """
    result = MemoryResult()
    size = dram_bytes(caches, meminfo("MemAvailable"))
    last_cache = sum(c.size_bytes for c in caches if c.level == max((x.level for x in caches), default=0))
    if size < 0.99 * CACHES_BELOW_DRAM * last_cache:
        text = f"free memory allows a working set of {size / 2**20:.0f} MiB, less than {CACHES_BELOW_DRAM:.0f} last-level caches"
        result.findings.append({"code": "small_working_set", "text": text + ": DRAM figures may come from the cache"})
    scopes = {"core": cpus[:1], "node": cpus} if len(cpus) > 1 else {"core": cpus}
    rates: dict[Probe, list[npt.NDArray[np.float64]]] = {}
    teams = {scope: Team(chosen) for scope, chosen in scopes.items()}
    try:
        arenas = {
            (scope, page): Arena(team, page, size // len(team) // ALIGN_BYTES * ALIGN_BYTES)
            for scope, team in teams.items()
            for page in pages
        }
        result.findings += _page_findings(arenas)
        jobs = [p for scope, team in teams.items() for p in _probes(scope, team, pages, caches, size)]
        order = random.Random(1)
        begin = time.monotonic()
        for turn in range(rounds):
            if turn and time.monotonic() - begin > LIMIT_S:
                break
            order.shuffle(jobs)
            for number, probe in enumerate(jobs):
                rates.setdefault(probe, []).append(_run(probe, arenas, teams, samples, turn))
                progress((turn + number / len(jobs)) / rounds)
        points = working_set_curve(arenas[("core", pages[-1])])
    finally:
        for team in teams.values():
            team.__exit__(None, None, None)
    result.curves.append(
        {"name": "working_set", "scope": "core", "mix": "read", "page": pages[-1], "unit": "B/s", "points": points}
    )
    result.findings += cliff_findings(points, levels)
    for scope, team in teams.items():
        result.ceilings += _ceilings({p: r for p, r in rates.items() if p.scope == scope}, len(team), result.findings)
    if len(cpus) == 1:
        result.ceilings += [as_node(c) for c in result.ceilings]
    return result


def as_node(ceiling: Ceiling) -> Ceiling:
    """Return a ceiling of the only core as that of the node."""
    return dataclasses.replace(ceiling, scope="node")


def _probes(scope: str, team: Team, pages: Sequence[str], caches: Sequence[Cache], size: int) -> list[Probe]:
    fresh = [
        Probe(level="dram", mix="fresh", page=p, store="regular", scope=scope, working_set_bytes=FRESH_BYTES)
        for p in pages
    ]
    dram = dram_probes(scope, pages, size // len(team) // ALIGN_BYTES * ALIGN_BYTES)
    return dram + cache_probes(scope, pages[-1], caches, team.cpus) + fresh


def _run(
    probe: Probe, arenas: dict[tuple[str, str], Arena], teams: dict[str, Team], samples: int, turn: int
) -> npt.NDArray[np.float64]:
    if probe.mix == "fresh":
        return fresh_rates(teams[probe.scope], probe.page, max(1, samples // 2))
    return arenas[(probe.scope, probe.page)].run(probe, samples, audit=turn == 0, place=turn)


def _page_findings(arenas: dict[tuple[str, str], Arena]) -> list[dict[str, str]]:
    findings = []
    for (scope, page), arena in arenas.items():
        ratios = [r for r in (b.huge_ratio() for b in arena.buffers) if r is not None]
        if page == "huge" and ratios and min(ratios) < 0.9:
            text = f"asked for huge pages, got them for {min(ratios):.0%} of a buffer ({scope}): `huge` figures are too low"
            findings.append({"code": "huge_pages_missing", "text": text})
        if page == "4k" and ratios and max(ratios) > 0.1:
            text = f"asked for 4 KiB pages, {max(ratios):.0%} of a buffer ({scope}) lies on huge pages"
            findings.append({"code": "huge_pages_forced", "text": text})
    return findings


def _ceilings(
    rates: dict[Probe, list[npt.NDArray[np.float64]]], threads: int, findings: list[dict[str, str]]
) -> list[Ceiling]:
    """Return one ceiling per resource; of several working sets in one cache the fastest stands."""
    best: dict[Resource, Ceiling] = {}
    for probe, windows in rates.items():
        found = envelope(windows)
        resource = Resource(area=Area.MEMORY, level=probe.level, mix=probe.mix, page=probe.page, store=probe.store)
        conditions = {
            "threads": threads,
            "working_set_bytes": float(probe.working_set_bytes * threads),
            "sample_bytes": (probe.sample_bytes(threads) if probe.mix != "fresh" else float(FRESH_BYTES * threads)),
            "kernel_shape": list(probe.shape or kernels.SHAPES.get(probe.mix, kernels.SHAPES["write"])[0]),
            **found.conditions(),
        }
        ceiling = Ceiling(
            resource=resource,
            value=found.value,
            unit="B/s",
            kind=Kind.MEASURED,
            scope=probe.scope,
            ci95=(found.low, found.high),
            conditions=conditions,
            source=SOURCE,
        )
        if resource not in best or best[resource].value < ceiling.value:
            best[resource] = ceiling
    split = [c for c in best.values() if "regimes" in c.conditions and c.resource.level == "dram"]
    if split:
        low, high = split[0].conditions["regimes"]
        text = (
            f"DRAM bandwidth of {threads} thread(s) sat in two regimes for {len(split)} of the probes (for "
            f"{split[0].resource.mix}: {low / 1e9:.3g} and {high / 1e9:.3g} GB/s); the ceiling is the faster one"
        )
        findings.append({"code": "two_regimes", "text": text})
    return list(best.values())
