"""Connections from rank 0 to the processes of the other ranks of a job."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from mansard.core.errors import InputError


@dataclass(slots=True)
class Remote:
    """One other rank, on whatever host it is.

    Args:
        rank, ranks: Which of how many.
        connection: To its process.
        pending: What was read of its next answer.
    """

    rank: int
    ranks: int
    connection: socket.socket
    pending: bytes = b""

    def send(self, line: bytes) -> None:
        """Send an order."""
        try:
            self.connection.settimeout(30.0)
            self.connection.sendall(line)
        except OSError as error:
            raise self.gone(f"its connection broke ({error})") from None

    def answer(self, end: float) -> Any:
        """Return the answer to an order.

        Args:
            end: When it is too late, on the monotonic clock [s].

        Raises:
            InputError: it failed, or is lost.
        """
        found = json.loads(self.line(end))
        if "error" in found:
            raise InputError(f"rank {self.rank}: {found['error']}", code="rank_failed")
        return found["ok"]

    def line(self, end: float) -> bytes:
        """Return its next line."""
        while b"\n" not in self.pending:
            self.connection.settimeout(max(0.01, end - time.monotonic()))
            try:
                piece = self.connection.recv(1 << 16)
            except TimeoutError:
                raise self.gone("no answer in time") from None
            except OSError as error:
                raise self.gone(f"its connection broke ({error})") from None
            if not piece:
                raise self.gone("its process ended")
            self.pending += piece
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def raise_if_gone(self, limit_s: float, cause: BaseException) -> None:
        """Raise that this rank is lost, where its connection ends within a time [s]."""
        end = time.monotonic() + limit_s
        self.connection.settimeout(max(0.01, limit_s))
        try:
            while time.monotonic() < end:
                piece = self.connection.recv(1 << 16)
                if not piece:
                    raise self.gone("its process ended") from cause
                self.pending += piece
                if b"\n" in self.pending:
                    return
        except TimeoutError:
            return
        except OSError as error:
            raise self.gone(f"its connection broke ({error})") from cause

    def gone(self, how: str) -> InputError:
        """Return the error of a lost rank."""
        return InputError(f"rank {self.rank} of {self.ranks} is lost: {how}", code="rank_lost")

    def close(self) -> None:
        """Let its process end."""
        self.connection.close()


def meet(listener: socket.socket, ranks: int, limit_s: float) -> list[Remote]:
    """Return the connections of all other ranks, by rank.

    Raises:
        InputError: some are not in time; they are named.
    """
    end = time.monotonic() + limit_s
    found: dict[int, Remote] = {}
    while len(found) < ranks - 1:
        listener.settimeout(max(0.01, end - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            missing = ", ".join(str(r) for r in range(1, ranks) if r not in found)
            raise InputError(
                f"rank {missing} of {ranks} started no process within {limit_s:.0f} s", code="rank_lost"
            ) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        remote = Remote(rank=-1, ranks=ranks, connection=connection)
        try:
            rank = int(json.loads(remote.line(time.monotonic() + 10.0))["rank"])
        except (InputError, ValueError, KeyError, TypeError):
            connection.close()
            continue
        if 0 < rank < ranks and rank not in found:
            found[rank] = Remote(rank=rank, ranks=ranks, connection=connection, pending=remote.pending)
    for remote in found.values():
        remote.answer(end)  # its framework is loaded
    return [found[rank] for rank in sorted(found)]
