"""What every rank but 0 does in a job: it comes, tells that it lives, starts ranks when told to, and goes when told to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mansard.core.document import TOOL_VERSION
from mansard.core.errors import InputError
from mansard.measure.launch import Launch
from mansard.measure.links.hub import BEAT_S, JOIN_S, MAGIC, PORTS_TRIED, SILENT_S, Awake, send
from mansard.measure.links.ranks import environment_of_rank

RETRY_S = 0.2


def follow(launch: Launch, *, limit_s: float = JOIN_S) -> int:
    """Take part in the run of rank 0 until it ends, and return its exit code.

    Raises:
        InputError: rank 0 was not found in time, or it went without a word.
    """
    connection, lines = _join(launch, limit_s)
    children: list[tuple[subprocess.Popen[bytes], Any]] = []
    lock = threading.Lock()
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(connection, children, lock, stop), daemon=True)
    beat.start()
    how = "its process ended"
    try:
        for line in lines:
            message = json.loads(line)
            if "end" in message:
                return int(message["end"])
            if "start" in message:
                with lock:
                    children.append(_started(message["start"], launch))
    except SilentError as error:
        how = str(error)
    except (OSError, ValueError) as error:
        how = f"its connection broke ({error})"
    finally:
        stop.set()
        _end(children)
        connection.close()
    raise InputError(
        f"rank 0 of {launch.world} on {launch.host} is lost: {how}", hint="see its output", code="rank_lost"
    )


class SilentError(Exception):
    """Rank 0 gave no sign of life."""


def lines_of(connection: socket.socket, silent_s: float = SILENT_S) -> Iterator[str]:
    """Return the lines that come from rank 0 until it closes the connection.

    Args:
        connection: To rank 0, which says something every second.
        silent_s: Without anything for so long it is lost [s]; time in which this process was stopped does not count.

    Raises:
        SilentError: it is lost.
        OSError: the connection broke.
    """
    clock, pending = Awake(), b""
    heard = clock.look()
    while True:
        ready, _, _ = select.select([connection], [], [], BEAT_S)
        now = clock.look()
        if not ready:
            if now - heard > silent_s:
                raise SilentError(f"no sign of life for {silent_s:.0f} s")
            continue
        piece = connection.recv(1 << 16)
        if not piece:
            return
        heard = now
        *whole, pending = (pending + piece).split(b"\n")
        yield from (line.decode() for line in whole)


def _join(launch: Launch, limit_s: float) -> tuple[socket.socket, Iterator[str]]:
    """Find rank 0 at one of its ports."""
    end = time.monotonic() + limit_s
    unknown = ""
    hello = {
        "magic": MAGIC, "job": launch.job, "rank": launch.rank, "host": socket.gethostname(), "pid": os.getpid(),
        "version": TOOL_VERSION,
    }  # fmt: skip
    while time.monotonic() < end:
        for port in range(launch.port, min(launch.port + PORTS_TRIED, 65536)):
            try:
                connection = socket.create_connection((launch.host, port), timeout=2.0)
            except socket.gaierror as error:  # a name may come to be known, as that of a pod does
                unknown = f"; the name {launch.host} is not known here: {error.strerror}"
                break
            except OSError:
                unknown = ""
                continue
            lines = lines_of(connection)
            try:
                send(connection, hello)
                if not select.select([connection], [], [], 2.0)[0]:
                    raise SilentError("nobody answers")  # something else listens there
                answer = json.loads(next(lines, "{}"))
            except (OSError, ValueError, SilentError):
                answer = {}
            if answer.get("ok"):
                connection.settimeout(None)
                return connection, lines
            connection.close()
            if "refused" in answer:
                raise InputError(
                    str(answer["refused"]), hint=str(answer.get("hint") or "give every process its own --rank")
                )
        time.sleep(RETRY_S)
    raise InputError(
        f"rank 0 of {launch.world} was not found at {launch.host}, ports {launch.port} to {launch.port + PORTS_TRIED - 1}, "
        f"within {limit_s:.0f} s{unknown}",
        hint="give --coordinator ADDRESS:PORT"
        if unknown
        else "start the same command on every rank; see that the ports are open",
        code="rank_missing",
    )


def _started(words: Mapping[str, Any], launch: Launch) -> tuple[subprocess.Popen[bytes], Any]:
    """Start this rank's process for the points of one worker of rank 0; it connects by itself."""
    mine = {
        "rank": launch.rank, "ranks": launch.world, "store": f"tcp://{launch.host}:{words['store_port']}",
        "device_type": words["device_type"], "channel": [launch.host, words["port"]],
        "device_index": launch.local_rank or 0,
    }  # fmt: skip
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    child = subprocess.Popen(
        [sys.executable, "-m", "mansard.measure.links.rank_worker", json.dumps(mine)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment_of_rank(),
    )  # fmt: skip
    return child, errors


def _beat(connection: socket.socket, children: list[Any], lock: threading.Lock, stop: threading.Event) -> None:
    """Tell that this rank lives, and when a process of it does not, or is stopped for as long as silence is forgiven."""
    held: Counter[int] = Counter()  # beats at which a process was found stopped
    while not stop.wait(BEAT_S):
        message: dict[str, Any] = {"alive": True}
        with lock:
            for child, errors in children:
                code = child.poll()
                held[child.pid] = held[child.pid] + 1 if code is None and is_stopped(child.pid) else 0
                if code:
                    message = {"lost": f"its process of a point ended (exit {code}){_last_line(errors)}"}
                elif held[child.pid] * BEAT_S > SILENT_S:
                    message = {"lost": f"its process of a point is stopped for {SILENT_S:.0f} s"}
            children[:] = [pair for pair in children if pair[0].poll() is None or pair[0].poll()]
        with contextlib.suppress(OSError):
            send(connection, message)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger; False where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def _last_line(errors: Any) -> str:
    errors.seek(0)
    lines = [x for x in errors.read()[-20_000:].decode(errors="replace").splitlines() if x.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def _end(children: list[Any]) -> None:
    for child, errors in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=2.0)
        if child.poll() is None:
            child.kill()
            child.wait()
        errors.close()
