"""Processes of `torch.distributed` on this host: this one is rank 0, the others are started and told what to do.

All ranks hold the same points. An order goes to the others through a pipe; then each rank passes a barrier, does its
operations and reports when it began and when it ended, on the clock that all processes of a host share.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mansard.core.document import to_jsonable
from mansard.core.errors import InputError
from mansard.measure.links.hub import HUB_VARIABLE, ask_hub
from mansard.measure.links.remote import Remote, meet

TIMEOUT_S = 120.0  # of one collective; a rank that is lost ends the others by then
START_S = 90.0
LOST_S = 3.0  # how long the end of a rank is looked for after a collective failed


class Pool:
    """The processes, held by the points that use them; the last one lets them end.

    On a host of its own they are started here and told by pipes; in a job of a launcher each rank starts its own, and
    connects (`links.hub`, `links.follow`).
    """

    def __init__(self, ranks: int, device_type: str) -> None:
        self.ranks = ranks
        self.device_type = device_type
        self.users = 0
        self._children: list[subprocess.Popen[bytes]] = []
        self._errors: list[Any] = []
        self._remote: list[Remote] = []
        try:
            hub = os.environ.get(HUB_VARIABLE)
            if hub:
                self._meet(hub)
            else:
                self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        from mansard.measure.links.rank_worker import Rank

        listener = socket.create_server(("127.0.0.1", 0), backlog=self.ranks)
        port = int(listener.getsockname()[1])
        own_store = Rank.make_store(self.ranks, listener=listener)
        store = f"tcp://127.0.0.1:{port}"
        for rank in range(1, self.ranks):
            words = {"rank": rank, "ranks": self.ranks, "store": store, "device_type": self.device_type}
            errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the pool
            self._errors.append(errors)
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "mansard.measure.links.rank_worker", json.dumps(words)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment_of_rank(),
                )
            )  # fmt: skip
        end = time.monotonic() + START_S
        for child in self._children:  # all are up before rank 0 waits for them, so that a failure is told at once
            self._answer(child, end)
        self.own = Rank(rank=0, ranks=self.ranks, store=own_store, device_type=self.device_type, timeout_s=TIMEOUT_S)
        self.tell("join", {})

    def _meet(self, hub: str) -> None:
        """Have the other ranks of the job start their processes, and wait for them."""
        from mansard.measure.links.rank_worker import Rank

        listener = socket.create_server(("", 0), backlog=self.ranks)
        with listener:
            store = Rank.make_store(self.ranks)
            ask_hub(hub, {"port": listener.getsockname()[1], "store_port": store.port, "device_type": self.device_type})
            self._remote = meet(listener, self.ranks, START_S)
        own = self._remote[0].connection.getsockname()[0]
        self.own = Rank(
            rank=0, ranks=self.ranks, store=store, device_type=self.device_type, timeout_s=TIMEOUT_S, address=own
        )
        self.tell("join", {})

    def _tell_remote(self, line: bytes, op: str, arguments: Mapping[str, Any]) -> list[Any]:
        for remote in self._remote:
            remote.send(line)
        try:
            mine = getattr(self.own, op)(**arguments)
        except Exception as error:
            for remote in self._remote:  # whose connection is gone is the reason, not who noticed it
                remote.raise_if_gone(LOST_S, error)
            raise
        end = time.monotonic() + TIMEOUT_S
        return [mine, *(remote.answer(end) for remote in self._remote)]

    def tell(self, op: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Give an order to all ranks and return their answers, by rank.

        Raises:
            InputError: a rank failed or is lost.
        """
        line = (json.dumps(to_jsonable({"op": op, **arguments})) + "\n").encode()
        if self._remote:
            return self._tell_remote(line, op, arguments)
        for child in self._children:
            assert child.stdin is not None
            try:
                child.stdin.write(line)
                child.stdin.flush()
            except (BrokenPipeError, ConnectionError):
                raise self._lost(child) from None
        try:
            mine = getattr(self.own, op)(**arguments)
        except Exception as error:
            lost = self._ended_soon()
            if lost is not None:
                raise self._lost(lost) from error
            raise
        end = time.monotonic() + TIMEOUT_S
        return [mine, *(self._answer(child, end) for child in self._children)]

    def _ended_soon(self) -> subprocess.Popen[bytes] | None:
        """Return a rank that has ended; its connection breaks a moment before its end can be seen."""
        end = time.monotonic() + LOST_S
        while True:
            found = next((c for c in self._children if c.poll() is not None), None)
            if found is not None or time.monotonic() > end:
                return found
            time.sleep(0.02)

    def _answer(self, child: subprocess.Popen[bytes], end: float) -> Any:
        assert child.stdout is not None
        line = _line_before(child.stdout, end)
        if not line:
            raise self._lost(child)
        answer = json.loads(line)
        if "error" in answer:
            raise InputError(f"rank {self._children.index(child) + 1}: {answer['error']}", code="rank_failed")
        return answer["ok"]

    def _lost(self, child: subprocess.Popen[bytes]) -> InputError:
        number = self._children.index(child)
        try:
            code: int | str = child.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            code = "still running, no answer in time"
        self._errors[number].seek(0)
        lines = [x for x in self._errors[number].read()[-20_000:].decode(errors="replace").splitlines() if x.strip()]
        last = f": {lines[-1][:300]}" if lines else ""
        return InputError(f"rank {number + 1} of {self.ranks} is lost (exit {code}){last}", code="rank_lost")

    def close(self) -> None:
        """End all processes."""
        own = getattr(self, "own", None)
        for remote in self._remote:
            remote.close()
        for child in self._children:
            if child.stdin is not None and not child.stdin.closed:
                try:
                    child.stdin.close()
                except BrokenPipeError:
                    continue
        if own is not None:
            own.leave()
        for child in self._children:
            try:
                child.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        for errors in self._errors:
            errors.close()
        self._children, self._errors, self._remote = [], [], []


_pools: dict[tuple[int, str], Pool] = {}


def pool_of(ranks: int, device_type: str) -> Pool:
    """Return the processes of a number of ranks; each call must be answered by `release`.

    Raises:
        InputError: this process already belongs to another number of ranks.
    """
    for (held, _), pool in _pools.items():
        if held != ranks:
            raise InputError(f"this process is a rank of {held} (asked for {ranks}); {pool.users} points hold it")
    if (ranks, device_type) not in _pools:
        _pools[ranks, device_type] = Pool(ranks, device_type)
    pool = _pools[ranks, device_type]
    pool.users += 1
    return pool


def release(pool: Pool) -> None:
    """Let a pool go; the last user ends it."""
    pool.users -= 1
    if pool.users <= 0:
        _pools.pop((pool.ranks, pool.device_type), None)
        pool.close()


def environment_of_rank() -> dict[str, str]:
    """Return the environment of a process of a rank: this source first, one thread for each library."""
    env = dict(os.environ)
    source = str(Path(__file__).resolve().parents[3])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (source, env.get("PYTHONPATH", "")) if p)
    env.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    return env


def _line_before(stream: IO[bytes], end: float) -> bytes:
    """Return a line, or nothing where the stream ends or the time is over; answers come one at a time."""
    import selectors

    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                return b""
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                return b""
            found += piece
    return found


def last_in_to_last_out(spans: Sequence[Sequence[float]]) -> float:
    """Return the time from when the last rank began to when the last one ended [s].

    >>> last_in_to_last_out([(0.0, 5.0), (1.0, 6.0)])
    5.0
    """
    return max(s[1] for s in spans) - max(s[0] for s in spans)
