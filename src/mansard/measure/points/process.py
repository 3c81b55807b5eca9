"""The parent's side of a worker: started with its affinity, threads and flags, asked line by line, ended on time."""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from mansard.core.document import to_jsonable
from mansard.hardware.host import ROOT, read_text
from mansard.measure.frameworks import THREAD_VARIABLES
from mansard.measure.load import parse_busy_ticks
from mansard.measure.points.conditions import load_average

SLICE_S = 0.25  # how long one look at the worker's output lasts
FULL_RATIO = 0.9  # of its CPU time that a machine is used, from which on processes wait for each other
MOST_STRETCH = 3.0  # a limit is at most so many times as long for what others use
DOING = {  # what a worker was at when it was lost, by the order it had
    "prepare": "while it was made ready", "window": "while samples were taken",
    "slope": "after its samples, in a chain of operations", "finish": "after its samples, while its result was checked",
    "drop": "while it was let go",
}  # fmt: skip
JOINED_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # lists of flags: what the user set stays, ours come after it


class WorkerLostError(Exception):
    """The worker died or did not answer in time.

    Args:
        reason: In words.
        silent: Whether it lived and gave no answer in its time.
    """

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.silent = reason, silent


class OrderFailedError(Exception):
    """The worker carried an order out and it failed; the worker lives.

    Args:
        error: `message`, `hint`, `code`, `where`.
    """

    def __init__(self, error: Mapping[str, str]) -> None:
        super().__init__(error["message"])
        self.error = dict(error)


def environment_of(threads: int, flags: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a worker: threads stated, flags added to what the user set.

    >>> environment_of(2, {"XLA_FLAGS": "--b"}, {"XLA_FLAGS": "--a", "PYTHONPATH": ""})["XLA_FLAGS"]
    '--a --b'
    """
    env = dict(os.environ if environ is None else environ)
    for name in THREAD_VARIABLES:
        env[name] = str(threads)
    for name, value in flags.items():
        joined = f"{env.get(name, '')} {value}".strip() if name in JOINED_FLAGS else value
        env[name] = joined
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    env["PYTHONPATH"] = os.pathsep.join(p for p in (source, env.get("PYTHONPATH", "")) if p)
    return env


def load_beside(cpus: int, load: float | None = None) -> str:
    """Return what a reader of a point that did not end must know of the machine: a load far above its CPUs, its own included.

    Args:
        cpus: CPUs that the point may use.
        load: Average number of runnable threads; None reads that of the last minute.

    >>> load_beside(2, 31.5), load_beside(2, 3.0)
    ('; the load was 32 on 2 CPUs', '')
    """
    seen = load_average() if load is None else load
    return f"; the load was {seen:.0f} on {cpus} CPUs" if seen is not None and seen > 2.0 * cpus else ""


def left_by_others(busy_s: float, own_s: float, whole_s: float) -> float:
    """Return by how much a limit counts where others use the machine: the share of it that a process had, where it was full.

    Args:
        busy_s, own_s, whole_s: CPU time of all, of the process, and there was in all [s].

    >>> left_by_others(2.0, 1.0, 8.0), left_by_others(8.0, 4.0, 8.0), round(left_by_others(8.0, 0.1, 8.0), 3)
    (1.0, 0.5, 0.333)
    """
    if whole_s <= 0.0 or busy_s < FULL_RATIO * whole_s:
        return 1.0
    return min(1.0, max(1.0 / MOST_STRETCH, own_s / whole_s))


def _cpu_seconds(pid: int, root: Path = ROOT) -> tuple[float, float, float] | None:
    """Return CPU time of all, of a process, and the time by the clock times the CPUs [s]; None where /proc has none."""
    stat, own = read_text(root / "proc/stat"), read_text(root / f"proc/{pid}/stat")
    if not stat or not own:
        return None
    busy, _, cpus = parse_busy_ticks(stat)
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    mine = sum(int(x) for x in own.rpartition(")")[2].split()[11:15])  # its threads, and children that have ended
    return busy * tick_s, mine * tick_s, time.monotonic() * cpus


class Worker:
    """One worker process, as a context manager.

    Args:
        cpus: The CPUs it may use.
        flags: Environment variables that act before the runtime starts.
        command: What to start; None takes the worker module.
    """

    #: Asked a few times a second why no worker can go on; empty while they can. A job whose rank is lost answers.
    watch: ClassVar[Callable[[], str]] = staticmethod(lambda: "")

    def __init__(
        self, cpus: Sequence[int], flags: Mapping[str, str] | None = None, command: Sequence[str] | None = None
    ) -> None:
        if reason := type(self).watch():
            raise WorkerLostError(reason)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        wanted = list(command or (sys.executable, "-m", "mansard.measure.points.worker"))
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, set(cpus))  # the child is born with it, before its runtime counts the CPUs
        try:
            self._child = subprocess.Popen(
                wanted,
                env=environment_of(len(cpus), flags or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
            )
        finally:
            os.sched_setaffinity(0, before)
        self._buffer = b""
        #: Time it was waited for, all orders together; what both were stopped for is not in it [s].
        self.waited_s = 0.0

    @property
    def pid(self) -> int:
        """Process number of the worker."""
        return self._child.pid

    def ask(
        self,
        op: str,
        *,
        limit_s: float,
        kill_s: float = math.inf,
        meanwhile: Callable[[], None] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Send an order and return its answer.

        Args:
            op: The order.
            limit_s: After this the worker is killed [s]; later, up to three times, where others filled the machine.
            kill_s: After this it is killed whatever others do [s].
            meanwhile: Called a few times a second while the answer is awaited.

        Raises:
            OrderFailedError: the order failed in the worker.
            WorkerLostError: the worker died or was killed for its silence.
        """
        order = json.dumps(to_jsonable({"op": op, **arguments})) + "\n"
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(order.encode())
            self._child.stdin.flush()
        except (BrokenPipeError, ConnectionError):
            raise WorkerLostError(self._last_words()) from None
        line = self._line(min(limit_s, kill_s), kill_s, meanwhile)
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            self.kill()
            raise WorkerLostError("its answer was not JSON") from None
        if "error" in answer:
            raise OrderFailedError(answer["error"])
        return dict(answer["ok"])

    def _line(self, limit_s: float, kill_s: float, meanwhile: Callable[[], None] | None) -> bytes:
        assert self._child.stdout is not None
        waited_s, before = 0.0, _cpu_seconds(self.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if waited_s >= kill_s or (waited_s >= limit_s and waited_s * self._left_since(before) >= limit_s):
                    self.kill()
                    longer = (
                        f" after {waited_s:.0f} s, since others used the machine" if waited_s > 1.1 * limit_s else ""
                    )
                    text = f"no answer within {limit_s:.0f} s, the process was ended{longer}"
                    raise WorkerLostError(text, silent=True)
                begin = time.monotonic()
                ready = selector.select(min(SLICE_S, max(limit_s - waited_s, SLICE_S / 5.0)))
                # This process may have been stopped together with its worker: a slice counts for what it was meant to.
                slice_s = min(time.monotonic() - begin, 2.0 * SLICE_S)
                waited_s += slice_s
                self.waited_s += slice_s
                if ready:
                    piece = os.read(self._child.stdout.fileno(), 1 << 20)
                    if not piece:
                        raise WorkerLostError(self._last_words())
                    self._buffer += piece
                elif reason := type(self).watch():
                    self.kill()
                    raise WorkerLostError(reason)
                elif meanwhile is not None:
                    meanwhile()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _left_since(self, before: tuple[float, float, float] | None) -> float:
        """Return by how much the time since then counts, see `left_by_others`."""
        after = _cpu_seconds(self.pid)
        if before is None or after is None:
            return 1.0
        busy_s, own_s, whole_s = (b - a for a, b in zip(before, after, strict=True))
        return left_by_others(busy_s, own_s, whole_s)

    def _last_words(self) -> str:
        """Return why the process ended, with the last line it wrote."""
        try:
            code = self._child.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return "the process closed its output"
        self._stderr.seek(0)
        lines = [x for x in self._stderr.read()[-20_000:].decode(errors="replace").splitlines() if x.strip()]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        memory = " (out of memory is the usual reason for signal 9)" if code == -9 else ""
        return f"the process ended with {how}{memory}" + (f": {lines[-1][:300]}" if lines else "")

    def kill(self) -> None:
        """End the process at once."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Let the process end by closing its input, and kill it where it does not."""
        if self._child.poll() is None:
            assert self._child.stdin is not None
            try:
                self._child.stdin.close()
                self._child.wait(timeout=5.0)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self.kill()
        for stream in (self._child.stdin, self._child.stdout, self._stderr):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()


class Reserve:
    """The process that was asked what a backend runs on here: it goes on with the first points of the same environment."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._worker: Worker | None = None

    def put(self, key: tuple[Any, ...], worker: Worker) -> None:
        """Keep a process; the one kept before is ended."""
        self.close()
        self._key, self._worker = key, worker

    def take(self, key: tuple[Any, ...]) -> Worker | None:
        """Return the process of this key, which is the caller's from now on; None where another one or none is kept."""
        if key != self._key:
            return None
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """End what is kept."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
