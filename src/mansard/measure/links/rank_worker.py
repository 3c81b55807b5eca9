"""One rank of `torch.distributed`: it holds points and does their operations when it is told to."""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.measure.links.shapes import Shapes, error_ratio, expected, local_input, most_checked, positions

GROWTH_LIMIT: dict[str, float] = {"f16": 64.0, "i8": 1.0}  # how often values may double while a sum goes around
USUAL_GROWTH = 2.0**60


@dataclass(slots=True)
class Held:
    """A point as one rank holds it: its arrays, its group, and the call."""

    shapes: Shapes
    members: list[int]
    index: int
    group: Any
    reduce_op: str
    seed: int
    source: Any
    buffer: Any
    result: Any
    call: Callable[[], None]
    refill_every: int
    pairs: list[list[int]]


class Rank:
    """One member of the process group; rank 0 lives in the process that measures."""

    def __init__(
        self, *, rank: int, ranks: int, store: Any, device_type: str, timeout_s: float = 120.0, address: str = "",
        device_index: int | None = None,
    ) -> None:  # fmt: skip
        """Be one of several ranks.

        Args:
            rank, ranks: Which of how many.
            store: `tcp://host:port` of a store, or a store.
            device_type: `cpu` for gloo, `cuda` for NCCL.
            timeout_s: Longest time of one exchange [s].
            address: Own address on the network to use; empty for the loopback.
            device_index: Device of this host; None for that of the rank.
        """
        import torch

        self.rank, self.ranks = rank, ranks
        self._store = store
        self._address = address
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self.device = (
            torch.device(device_type, rank if device_index is None else device_index)
            if device_type == "cuda"
            else torch.device("cpu")
        )
        self._held: dict[str, Held] = {}

    @staticmethod
    def make_store(ranks: int, *, listener: socket.socket | None = None) -> Any:
        """Return a store in this process; it leaves no file behind, however the process ends.

        Args:
            ranks: Ranks of the job.
            listener: Where it listens; None for a port that the system chose, which other hosts can reach.
        """
        import torch.distributed as dist

        if listener is None:
            return dist.TCPStore("localhost", 0, ranks, is_master=True, wait_for_workers=False)
        host, port = listener.getsockname()[:2]
        return dist.TCPStore(
            host, port, ranks, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def _reached_store(self) -> Any:
        import torch.distributed as dist

        if not isinstance(self._store, str):
            return self._store
        host, _, port = self._store.removeprefix("tcp://").rpartition(":")
        return dist.TCPStore(host, int(port), self.ranks, is_master=False, timeout=self._timeout)

    def join(self) -> str:
        """Join the process group; every rank does it at the same time."""
        import torch
        import torch.distributed as dist

        before = os.environ.get("GLOO_SOCKET_IFNAME")
        if self.device.type == "cpu" and before is None and os.path.isdir("/sys/class/net/lo"):
            # One host: the loopback, whatever its name resolves to; else the interface that reaches rank 0.
            name = interface_of(self._address) if self._address else "lo"
            if name:
                os.environ["GLOO_SOCKET_IFNAME"] = name
        try:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            dist.init_process_group(
                backend, store=self._reached_store(), rank=self.rank, world_size=self.ranks,
                timeout=self._timeout,
            )  # fmt: skip
        finally:
            if before is None:
                os.environ.pop("GLOO_SOCKET_IFNAME", None)
        return backend

    def leave(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        self._held.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def prepare(
        self, key: str, shapes: Mapping[str, Any], groups: Sequence[Sequence[int]], reduce_op: str, seed: int,
        pairs: Sequence[Sequence[int]] = (),
    ) -> bool:  # fmt: skip
        """Make the arrays of a point; all ranks make all groups."""
        import torch
        import torch.distributed as dist

        made = Shapes(**{**shapes, "local": tuple(shapes["local"])})
        whole = len(groups) == 1 and len(groups[0]) == self.ranks
        own = [None if whole else dist.new_group(list(g)) for g in groups]
        mine = next(i for i, g in enumerate(groups) if self.rank in g)
        members = list(groups[mine])
        index = members.index(self.rank)
        source = self._tensor(local_input(made, self.rank, seed))
        buffer = source.clone().reshape(-1)
        result = torch.empty(made.result_elements, dtype=source.dtype, device=self.device)
        held = Held(
            shapes=made, members=members, index=index, group=own[mine], reduce_op=reduce_op, seed=seed,
            source=source.reshape(-1), buffer=buffer, result=result, call=lambda: None, refill_every=0,
            pairs=[list(p) for p in pairs],
        )  # fmt: skip
        held.call = self._call(held)
        if made.operation == "all_reduce" and reduce_op == "sum":
            limit = GROWTH_LIMIT.get(made.dtype, USUAL_GROWTH)
            held.refill_every = max(1, int(np.log(limit) / np.log(made.ranks)))
        self._held[key] = held
        return True

    def _tensor(self, values: Any) -> Any:
        import torch

        if values.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):  # numpy holds them by ml_dtypes
            bits = torch.from_numpy(values.view(f"u{values.dtype.itemsize}").copy())
            return bits.view(getattr(torch, values.dtype.name)).to(self.device)
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def _call(self, held: Held) -> Callable[[], None]:
        """Return one operation; its buffers exist."""
        import torch.distributed as dist

        d: Any = dist
        src, out, buf, group, n = held.source, held.result, held.buffer, held.group, held.shapes.ranks
        operation = held.shapes.operation
        how = {"sum": d.ReduceOp.SUM, "max": d.ReduceOp.MAX, "min": d.ReduceOp.MIN, "mean": d.ReduceOp.SUM}[
            held.reduce_op
        ]
        scale = held.reduce_op == "mean" and self.device.type != "cuda"
        if held.reduce_op == "mean" and self.device.type == "cuda":
            how = d.ReduceOp.AVG
        if operation == "all_reduce":
            return _then(lambda: d.all_reduce(buf, op=how, group=group), (lambda: buf.div_(n)) if scale else None)
        if operation == "reduce_scatter":
            scatter = getattr(d, "reduce_scatter_single", d.reduce_scatter_tensor)
            step = lambda: scatter(out, src, op=how, group=group)  # noqa: E731
            return _then(step, (lambda: out.div_(n)) if scale else None)
        if operation == "all_gather":
            gather = getattr(d, "all_gather_single", d.all_gather_into_tensor)
            return lambda: gather(out, src, group=group)
        if operation == "all_to_all":
            return lambda: d.all_to_all_single(out, src, group=group)
        if operation == "broadcast":
            return lambda: d.broadcast(buf, src=held.members[0], group=group)
        moves = held.pairs or [[a, held.members[(i + 1) % n]] for i, a in enumerate(held.members)]
        to = [b for a, b in moves if a == self.rank]
        fro = [a for a, b in moves if b == self.rank]

        def exchange() -> None:
            ops = [d.P2POp(d.isend, src, peer, group) for peer in to]
            ops += [d.P2POp(d.irecv, out, peer, group) for peer in fro]
            for work in d.batch_isend_irecv(ops) if ops else ():
                work.wait()

        return exchange

    def run(self, key: str, count: int) -> tuple[float, float]:
        """Do `count` operations after a barrier; return when they began and ended [s]."""
        import torch
        import torch.distributed as dist

        held = self._held[key]
        held.buffer.copy_(held.source)
        cuda = self.device.type == "cuda"
        dist.barrier()
        if cuda:
            torch.cuda.synchronize(self.device)
        begin = time.monotonic()
        for done in range(count):
            if held.refill_every and done and done % held.refill_every == 0:
                held.buffer.copy_(held.source)  # sums grow by n each time; they stay finite
            held.call()
        if cuda:
            torch.cuda.synchronize(self.device)
        return begin, time.monotonic()

    def verify(self, key: str) -> float | None:
        """Do the operation once on fresh inputs and compare this rank's result with numpy."""
        self.run(key, 1)
        held = self._held[key]
        shapes = held.shapes
        in_place = shapes.operation in ("all_reduce", "broadcast")
        receives = not held.pairs or any(b == self.rank for _, b in held.pairs)
        if not receives:
            return None
        at = positions(shapes.result_elements, most=most_checked(shapes.ranks))
        made: dict[int, Any] = {}

        from_rank = next((held.members.index(a) for a, b in held.pairs if b == self.rank), None)

        def fetch(index: int, where: Any) -> Any:
            sender = held.members[index]
            if sender not in made:
                made[sender] = local_input(shapes, sender, held.seed).reshape(-1)
            return made[sender][where]

        want = expected(shapes, held.index, at, fetch, reduce_op=held.reduce_op, sender=from_rank)
        got = _wide(held.buffer if in_place else held.result)[at]
        ratio = error_ratio(got, want, shapes, reduce_op=held.reduce_op)
        return ratio if np.isfinite(ratio) else 1e300

    def seen(self, key: str) -> list[str]:
        """Return the operations that PyTorch's profiler sees in one call of this rank."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as watched:
            self.run(key, 1)
        return sorted({e.key for e in watched.key_averages() if e.key.startswith(("gloo:", "nccl:", "c10d::"))})

    def drop(self, key: str) -> bool:
        """Release a point."""
        return self._held.pop(key, None) is not None

    def values(self, key: str) -> dict[str, Any]:
        """Return some elements of the input and the result of this rank."""
        held = self._held[key]
        out = held.buffer if held.shapes.operation in ("all_reduce", "broadcast") else held.result
        return {
            "input": _wide(held.source)[positions(held.source.numel())[:4096]],
            "result": _wide(out)[positions(out.numel())[:4096]],
        }


def interface_of(address: str) -> str:
    """Return the name of the interface that has an IPv4 address; nothing where none has it.

    >>> interface_of("192.0.2.77")
    ''
    """
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def _then(first: Callable[[], Any], second: Callable[[], Any] | None) -> Callable[[], None]:
    if second is None:
        return first

    def both() -> None:
        first()
        second()

    return both


def _wide(tensor: Any) -> Any:
    import torch

    kind = torch.float64 if tensor.dtype.is_floating_point else torch.int64
    return tensor.detach().to("cpu").to(kind).numpy()


def main(words: str) -> int:
    """Serve until the input ends: standard input and output, or the connection to rank 0 that the words name."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG: end with the parent
    own = os.dup(1)
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    told = json.loads(words)
    channel = told.pop("channel", None)
    if channel is not None:
        connection = socket.create_connection(tuple(channel), timeout=30.0)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        told["address"] = connection.getsockname()[0]
        connection.sendall((json.dumps({"rank": told["rank"]}) + "\n").encode())
        os.close(own)
        own = connection.fileno()
    orders = sys.stdin if channel is None else connection.makefile("r", encoding="utf-8")
    with os.fdopen(own, "w", encoding="utf-8", closefd=channel is None) as stream:

        def say(answer: Mapping[str, Any]) -> None:
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

        rank = Rank(**told)
        say({"ok": True})
        for line in orders:
            order = json.loads(line)
            try:
                say({"ok": getattr(rank, order.pop("op"))(**order)})
            except Exception as error:  # told to rank 0, which decides
                text = str(error).splitlines() or [""]
                say({"error": f"{type(error).__name__}: {text[0][:300]}"})
        rank.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
