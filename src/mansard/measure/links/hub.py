"""Rank 0's side of a job of several processes: who is there, who is lost, and orders to start the ranks of a point.

The others connect to it once and stay: each tells that it lives, and is told when a process of ranks is to be started
(`links.follow`). What the ranks of a point say to each other goes over connections of its own (`links.ranks`).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core.document import TOOL_VERSION
from mansard.core.errors import InputError
from mansard.measure.launch import Launch

MAGIC = "mansard-ranks/1"
SAME_VERSION = "install the same version on every host"
PORTS_TRIED = 16
BEAT_S = 1.0
SILENT_S = 20.0  # without a sign of life for so long a rank is lost
LOOK_S = (
    2.0  # of a longer time between two looks only so much counts: this process was stopped, as the others may have been
)
JOIN_S = 120.0
HUB_VARIABLE = "MANSARD_HUB"  # where the worker processes of rank 0 find it: port and job
WORLD_VARIABLE = "MANSARD_WORLD"
LINK_VARIABLE = "MANSARD_LINK"


def send(where: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message, a line of JSON."""
    where.sendall((json.dumps(dict(message)) + "\n").encode())


@dataclass(slots=True)
class Member:
    """One other rank.

    Args:
        rank, host: Who and where it is.
        connection: To it.
        seen: When it last gave a sign of life, on the clock of the hub [s].
        lost: Why it is lost; empty while it lives.
    """

    rank: int
    host: str
    connection: socket.socket
    seen: float
    lost: str = ""


class Hub:
    """The meeting point of a job; it lives as long as the run.

    Args:
        launch: Place of this process, which is rank 0.
        silent_s: Time without a sign of life after which a rank is lost [s].
    """

    def __init__(self, launch: Launch, *, silent_s: float = SILENT_S) -> None:
        self.launch = launch
        self.members: dict[int, Member] = {}
        self._other_version = ""
        self._silent_s = silent_s
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._closed = False
        self._clock = Awake()
        self._listener = _listen(launch)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def wait(self, limit_s: float = JOIN_S, say: Callable[[str], None] = lambda _text: None) -> None:
        """Wait until all ranks are there.

        Raises:
            InputError: some are not in time; they are named.
        """
        end = time.monotonic() + limit_s
        told = -1
        while len(self.members) < self.launch.world - 1:
            if self.lost():
                raise InputError(self.lost(), code="rank_lost")
            if self._other_version:
                raise InputError(self._other_version, hint=SAME_VERSION, code="rank_version")
            if time.monotonic() > end:
                missing = [str(r) for r in range(1, self.launch.world) if r not in self.members]
                raise InputError(
                    f"rank {', '.join(missing)} of {self.launch.world} did not come to {self.launch.host}:{self.port} "
                    f"within {limit_s:.0f} s",
                    hint="start the same command on every rank; see that the port is open",
                    code="rank_missing",
                )
            if len(self.members) != told:
                told = len(self.members)
                say(f"{told + 1} of {self.launch.world} ranks are here")
            time.sleep(0.02)
        say(f"all {self.launch.world} ranks are here")

    def lost(self) -> str:
        """Return which rank is lost and how, in words; empty while all live."""
        now = self._clock.look()
        for member in sorted(self.members.values(), key=lambda m: m.rank):
            if not member.lost and now - member.seen > self._silent_s:
                member.lost = f"no sign of life for {self._silent_s:.0f} s"
            if member.lost:
                return f"rank {member.rank} of {self.launch.world} on {member.host} is lost: {member.lost}"
        return ""

    def end(self, code: int) -> None:
        """Tell all ranks that the run is over, and with which exit code."""
        self._closed = True
        for member in self.members.values():
            try:
                with self._sending:
                    send(member.connection, {"end": code})
                    member.connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Take a newcomer in, then listen to it; whoever does not know the job is sent away."""
        with connection, connection.makefile("r", encoding="utf-8") as lines:
            try:
                hello = json.loads(lines.readline() or "{}")
            except (OSError, ValueError):
                return
            if not isinstance(hello, dict) or hello.get("magic") != MAGIC or hello.get("job") != self.launch.job:
                return
            if "pool" in hello:  # a worker process of this rank
                self._start(hello["pool"])
                send(connection, {"ok": len(self.members)})
                return
            rank = int(hello["rank"])
            if hello.get("version") != TOOL_VERSION:
                self._other_version = (
                    f"rank {rank} of {self.launch.world} on {hello.get('host')} runs Mansard {hello.get('version', 'unknown')}, "
                    f"rank 0 runs {TOOL_VERSION}"
                )
                send(connection, {"refused": self._other_version, "hint": SAME_VERSION})
                return
            with self._lock:
                if rank in self.members or not 0 < rank < self.launch.world:
                    send(connection, {"refused": f"rank {rank} is here already, or is not one of {self.launch.world}"})
                    return
                send(connection, {"ok": True})
                member = Member(rank=rank, host=str(hello["host"]), connection=connection, seen=self._clock.look())
                self.members[rank] = member
            self._listen_to(member, lines)

    def _listen_to(self, member: Member, lines: Any) -> None:
        try:
            for line in lines:
                member.seen = self._clock.look()
                message = json.loads(line)
                if "lost" in message:
                    member.lost = str(message["lost"])
        except (OSError, ValueError):
            pass
        if not self._closed and not member.lost:
            member.lost = "its process ended"

    def _start(self, words: Mapping[str, Any]) -> None:
        for member in self.members.values():
            try:
                with self._sending:
                    send(member.connection, {"start": dict(words)})
            except OSError:
                member.lost = member.lost or "its connection broke"

    def _beat(self) -> None:
        """Tell the others that this rank lives."""
        while not self._closed:
            for member in list(self.members.values()):
                with contextlib.suppress(OSError), self._sending:
                    if not self._closed:
                        send(member.connection, {"alive": True})
            time.sleep(BEAT_S)


class Awake:
    """A clock that stands still while this process is stopped, as long as somebody looks at it every second or two.

    Args:
        now: Clock it follows [s].

    >>> times = iter([10.0, 11.0, 311.0, 312.5])
    >>> clock = Awake(lambda: next(times))
    >>> clock.look(), clock.look(), clock.look()
    (1.0, 3.0, 4.5)
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._last = now()
        self._total_s = 0.0

    def look(self) -> float:
        """Return the time since it was made in which this process was not stopped [s]."""
        with self._lock:
            now = self._now()
            self._total_s += min(now - self._last, LOOK_S)
            self._last = now
            return self._total_s


def _listen(launch: Launch) -> socket.socket:
    """Return a socket at the port of the job, or at one of the next ones where it is taken."""
    tried = range(launch.port, min(launch.port + PORTS_TRIED, 65536))
    for port in tried:
        found = socket.socket(socket.AF_INET6 if ":" in launch.host else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("", port))
            found.listen(launch.world + 4)
            return found
        except OSError:
            found.close()
    raise InputError(
        f"no port of {tried.start} to {tried.stop - 1} is free for the ranks to meet", hint="--coordinator HOST:PORT"
    )


def ask_hub(where: str, words: Mapping[str, Any]) -> None:
    """Ask the hub of this rank to start the other ranks of a point.

    Args:
        where: Port and job, from `HUB_VARIABLE`.
        words: What each is told.
    """
    port, _, job = where.partition(" ")
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10.0) as connection:
        send(connection, {"magic": MAGIC, "job": job, "pool": dict(words)})
        with connection.makefile("r", encoding="utf-8") as lines:
            if not lines.readline():
                raise InputError("the run that this worker belongs to is gone", code="rank_lost")
