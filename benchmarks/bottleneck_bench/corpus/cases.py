"""Cases of the corpus: how a program is put together, and what must and must not be said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corpus.machines import Machine
from corpus.program import Program
from corpus.work import Work, host_copy, pointwise

STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question with its truth.

    Args:
        name: Unique name, its group first.
        build: Makes the program, or one per rank.
        truth: The true class; where the file cannot tell, `undetermined`.
        accept: Classes that are right as well.
        file_format: `kineto` or `nsys`.
        options: Fields of the question beyond the file: network_rate, node_devices, device, ceilings.
        headroom: Whether the headroom is compared; not where no ceiling defines it.
        must_not: Classes that are wrong in a way that costs the user dearly.
        must_say: Patterns; what is said of the file must match each.
        skip: Warm-up steps, which are not part of the truth.
        verb: `diagnose`, `mfu` or `ranks`.
        memory_known: Whether the file holds the bytes that a memory verdict needs.
        shares: Whether the time shares are compared.
        note: Why this is the truth.
    """

    name: str
    build: Callable[[int], list[Program]]
    truth: str
    accept: tuple[str, ...] = ()
    file_format: str = "kineto"
    options: dict[str, Any] = field(default_factory=dict)
    headroom: bool = True
    must_not: tuple[str, ...] = ()
    must_say: tuple[str, ...] = ()
    skip: int = 0
    verb: str = "diagnose"
    memory_known: bool = True
    shares: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What one step holds, each part with the time it takes on the device [s].

    Args:
        compute, memory, network: Works that are taken in turn until their time is spent.
        compute_s, memory_s, network_s: Those times.
        load_s: Wait for input at the start of the step, with nothing on the device.
        think_s: Python while the device has nothing to do, in pieces of `think_piece_s` after a read-back.
        tiny_s: Time in which tiny kernels are launched one by one.
        copy: A copy from the host, and how often it runs.
        copies: Its number per step.
    """

    compute: Sequence[Work] = ()
    memory: Sequence[Work] = ()
    network: Sequence[Work] = ()
    compute_s: float = 0.0
    memory_s: float = 0.0
    network_s: float = 0.0
    load_s: float = 0.0
    think_s: float = 0.0
    think_piece_s: float = 400e-6
    tiny_s: float = 0.0
    copy: Work | None = None
    copies: int = 0


def steps_of(program: Program, recipe: Recipe, *, steps: int = STEPS) -> Program:
    """Run a recipe for some steps; each ends when the device is done, as with `loss.item()`."""
    for _ in range(steps):
        with program.step():
            one_step(program, recipe)
    return program


def one_step(program: Program, recipe: Recipe, *, slow: float = 1.0) -> None:
    """Run one step: input, copies, tiny kernels, then large work in turn, then Python after read-backs."""
    if recipe.load_s:
        program.load(recipe.load_s * 1e9)
    for _ in range(recipe.copies):
        assert recipe.copy is not None
        program.copy_and_wait(recipe.copy)
    if recipe.tiny_s:
        until = program.now + recipe.tiny_s * 1e9
        tiny = tiny_kernel(program.machine)
        while program.now < until:
            program.launch(tiny, host_ns=7_000)
    large = _interleaved(recipe)
    pieces = min(len(large), round(recipe.think_s / recipe.think_piece_s)) if recipe.think_s else 0
    pauses = {round((i + 1) * len(large) / pieces) - 1 for i in range(pieces)}
    for index, work in enumerate(large):
        network = work.area == "network"
        program.launch(work, stream=20 if network else 7, alone=network, slow=slow)
        if index in pauses:
            program.wait(item=True)
            program.python(recipe.think_s / len(pauses) * 1e9)
    if program.free:
        program.wait()


def tiny_kernel(machine: Machine) -> Work:
    """A kernel of 4,096 elements: it lasts what starting and ending a kernel lasts, about 2 us, whatever it does."""
    return pointwise(machine, 1.0, "add", 4096, duration_ns=2_000, area="latency")


def _interleaved(recipe: Recipe) -> list[Work]:
    """Return the large works of a step in an order in which each kind is spread over it."""
    queues = []
    for works, seconds in (
        (recipe.compute, recipe.compute_s),
        (recipe.memory, recipe.memory_s),
        (recipe.network, recipe.network_s),
    ):
        queue: list[Work] = []
        spent = 0.0
        while works and spent < seconds * 1e9:
            work = works[len(queue) % len(works)]
            if queue and spent + work.duration_ns / 2 > seconds * 1e9:
                break
            queue.append(work)
            spent += work.duration_ns
        queues.append(queue)
    placed = [((i + 0.5) / len(q), k, w) for k, q in enumerate(queues) for i, w in enumerate(q)]
    return [work for *_, work in sorted(placed, key=lambda item: item[:2])]


def recipe_case(
    name: str, machine: Machine, truth: str, recipe: Recipe, *, program: dict[str, Any] | None = None, **more: Any
) -> Case:
    """Return the case of one recipe."""
    fields = dict(program or {})

    def build(seed: int) -> list[Program]:
        return [steps_of(Program(machine, seed=seed, **fields), recipe)]

    return Case(name=name, build=build, truth=truth, **more)


def pageable(machine: Machine, nbytes: int, bytes_per_s: float) -> Work:
    """A copy from pageable memory at a rate far below the link's."""
    return host_copy(machine, bytes_per_s / machine.pcie_bytes_per_s, nbytes, pinned=False)
