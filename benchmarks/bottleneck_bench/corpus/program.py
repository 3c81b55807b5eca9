"""A simulated program: a host thread that launches, waits and thinks; streams that run what was launched, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from corpus.machines import Machine
from corpus.work import Work

LAUNCH_NS = 2_000  # from the return of a launch to the first instruction on an idle device


@dataclass(slots=True, kw_only=True)
class Span:
    """A range or an operator of the host thread."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    args: dict[str, Any] = field(default_factory=dict)
    thread: int = 0


@dataclass(slots=True, kw_only=True)
class Call:
    """A runtime call."""

    name: str
    start_ns: int
    end_ns: int
    correlation: int
    external: int = 0
    thread: int = 0


@dataclass(slots=True, kw_only=True)
class Run:
    """A piece of work on a stream."""

    work: Work
    device: int
    stream: int
    start_ns: int
    end_ns: int
    correlation: int
    external: int
    called_ns: int


class Program:
    """What the generator writes to a file, and what the truth is computed from.

    Args:
        machine: Its devices.
        seed: Of the jitter.
        devices: How many there are.
        jitter: Relative spread of every length.
        shapes: Whether operators record shapes.
        stacks: Whether Python frames are recorded.
        rank, world: Its place in a job of several processes; a world of 1 records none.
        steps: Whether step ranges are written.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        seed: int,
        devices: int = 1,
        jitter: float = 0.01,
        shapes: bool = True,
        stacks: bool = False,
        rank: int = 0,
        world: int = 1,
        marks: bool = True,
    ) -> None:
        self.machine, self.devices, self.jitter = machine, devices, jitter
        self.shapes, self.stacks, self.rank, self.world, self.marks = shapes, stacks, rank, world, marks
        self.random = random.Random(seed)
        self.now = 1_000_000
        self.thread = 0  # the host thread that launches; one at a time works
        self.free: dict[tuple[int, int], int] = {}
        self.spans: list[Span] = []
        self.calls: list[Call] = []
        self.runs: list[Run] = []
        self.activity: list[tuple[int, int, str]] = []  # what the host did, for the cause of idle time
        self.steps: list[tuple[int, int]] = []
        self._correlation, self._external = 1_000, 1

    def length(self, ns: float) -> int:
        """Return a length with this program's jitter [ns]."""
        return max(1, round(ns * self.random.uniform(1 - self.jitter, 1 + self.jitter)))

    def _spend(self, ns: int, what: str) -> tuple[int, int]:
        start, self.now = self.now, self.now + ns
        self.activity.append((start, self.now, what))
        return start, self.now

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step: what happens inside, then a range around it."""
        start, number = self.now, len(self.steps)
        yield
        self.steps.append((start, self.now))
        if self.marks:
            self.spans.append(
                Span(name=f"ProfilerStep#{number + 10}", category="user_annotation", start_ns=start, end_ns=self.now)
            )

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A named range."""
        start = self.now
        yield
        self.spans.append(Span(name=name, category="user_annotation", start_ns=start, end_ns=self.now))

    def launch(
        self,
        work: Work,
        *,
        device: int = 0,
        stream: int = 7,
        host_ns: int = 10_000,
        alone: bool = False,
        after: int = 0,
        slow: float = 1.0,
    ) -> Run:
        """Call an operator whose kernel starts once its stream is free.

        Args:
            work: The work.
            device, stream: Where it runs.
            host_ns: Length of the operator on the host [ns].
            alone: Wait for all streams of the device, and let them wait for it.
            after: Not before this time [ns].
            slow: Factor on its length.
        """
        host = self.length(host_ns)
        start, end = self._spend(host, "launch")
        call_start, call_end = start + host // 3, end - host // 6
        self._correlation += 1
        correlation, external = self._correlation, self._operators(work, start, end)
        names = {"copy": "cudaMemcpyAsync", "graph": "cudaGraphLaunch"}
        self.calls.append(
            Call(
                name=names.get(work.kind, "cudaLaunchKernel"),
                start_ns=call_start,
                end_ns=call_end,
                correlation=correlation,
                external=external,
                thread=self.thread,
            )
        )
        others = [t for (d, s), t in self.free.items() if d == device and (alone or s == stream)]
        begin = max([call_end + LAUNCH_NS, after, *(t + 400 for t in others)])
        done = begin + self.length(work.duration_ns * slow)
        self.free[device, stream] = done
        if alone:
            for key in self.free:
                if key[0] == device:
                    self.free[key] = done
        run = Run(
            work=work,
            device=device,
            stream=stream,
            start_ns=begin,
            end_ns=done,
            correlation=correlation,
            external=external,
            called_ns=call_end,
        )
        self.runs.append(run)
        return run

    def _operators(self, work: Work, start: int, end: int) -> int:
        """Write the operator with those around it; return the id of the innermost."""
        chain = [*work.wrappers, (work.operator, work.dims, work.types, work.values)]
        if work.record:
            chain.append(("record_param_comms", [[]], ["TensorList"], [""]))
        for depth, (name, dims, types, values) in enumerate(chain):
            self._external += 1
            args: dict[str, Any] = {"External id": self._external, "Record function id": 0, "Ev Idx": self._external}
            if self.shapes:
                args |= {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
            if name == "record_param_comms":
                args |= work.record
            first, last = start + 60 * depth, end - 60 * depth
            self.spans.append(
                Span(name=name, category="cpu_op", start_ns=first, end_ns=last, args=args, thread=self.thread)
            )
        return self._external

    def python(self, ns: float) -> None:
        """The interpreter works; nothing is launched."""
        start, end = self._spend(self.length(ns), "python")
        if self.stacks:
            self.spans.append(
                Span(name="train.py(88): build_masks", category="python_function", start_ns=start, end_ns=end)
            )

    def load(self, ns: float) -> None:
        """The program waits for the data loader."""
        start, end = self._spend(self.length(ns), "input")
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self._external += 1
        self.spans.append(
            Span(
                name=name,
                category="user_annotation",
                start_ns=start,
                end_ns=end,
                args={"External id": self._external, "Ev Idx": self._external},
            )
        )

    def wait(self, *, device: int | None = None, call: str = "cudaDeviceSynchronize", item: bool = False) -> None:
        """Wait until the device is done; `item` reads a scalar back first, as `loss.item()` does."""
        start = self.now
        external = 0
        if item:
            self._external += 2
            external = self._external
            self._correlation += 1
            free = max(self.free.values())
            target = device or 0
            copy = Work(
                operator="aten::_local_scalar_dense",
                kernel="Memcpy DtoH (Device -> Pageable)",
                area="host",
                least_s=0.0,
                duration_ns=1_400,
                kind="copy",
                nbytes=4,
            )
            begin = max(free + 400, self.now + 4_000 + LAUNCH_NS)
            self.runs.append(
                Run(
                    work=copy,
                    device=target,
                    stream=7,
                    start_ns=begin,
                    end_ns=begin + 1_400,
                    correlation=self._correlation,
                    external=external,
                    called_ns=self.now + 4_000,
                )
            )
            self.calls.append(
                Call(
                    name="cudaMemcpyAsync",
                    start_ns=self.now + 2_000,
                    end_ns=self.now + 4_000,
                    correlation=self._correlation,
                    external=external,
                )
            )
            self.free[target, 7] = begin + 1_400
            self._spend(4_200, "launch")
            call = "cudaStreamSynchronize"
        done = max(t for (d, _), t in self.free.items() if device is None or d == device)
        self._correlation += 1
        call_start = self.now
        self._spend(max(done - self.now, 0) + 3_000, "sync")
        self.calls.append(
            Call(
                name=call, start_ns=call_start, end_ns=self.now - 200, correlation=self._correlation, external=external
            )
        )
        if item:
            for depth, name in enumerate(("aten::item", "aten::_local_scalar_dense")):
                args: dict[str, Any] = {"External id": external - 1 + depth, "Ev Idx": external - 1 + depth}
                if self.shapes:
                    args |= {"Input Dims": [[]], "Input type": ["float"], "Concrete Inputs": [""]}
                end = self.now - 60 * depth
                self.spans.append(
                    Span(name=name, category="cpu_op", start_ns=start + 60 * depth, end_ns=end, args=args)
                )

    def copy_and_wait(self, work: Work, *, device: int = 0, stream: int = 7) -> None:
        """Copy from pageable memory: the call returns when the copy is done."""
        start = self.now
        idle = max((t for (d, _), t in self.free.items() if d == device), default=0)
        begin = max(start + 9_000, idle + 400)
        done = begin + self.length(work.duration_ns)
        self.activity += [(start, begin, "launch"), (begin, done + 4_000, "sync")]
        self.now = done + 4_000
        self._correlation += 1
        external = self._operators(work, start, self.now)
        call = Call(
            name="cudaMemcpyAsync",
            start_ns=start + 4_000,
            end_ns=done + 2_000,
            correlation=self._correlation,
            external=external,
        )
        self.calls.append(call)
        self.free[device, stream] = done
        self.runs.append(
            Run(
                work=work,
                device=device,
                stream=stream,
                start_ns=begin,
                end_ns=done,
                correlation=self._correlation,
                external=external,
                called_ns=start + 7_000,
            )
        )
