"""A slow network on one machine: network namespaces joined by a bridge, or by a relay that adds delay.

Each rank lives in a namespace of its own with one interface `net0`, whose sending side `tc tbf` holds to a rate. Without
delay the interfaces are veth pairs on a bridge. With delay they are TUN devices: a relay process reads every packet and
hands it on later (`relay.py`), since netem is often not in the kernel. Needs root, Linux, iproute2 and /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

MTU = 9000  # a frame of 9014 B carries 8948 B of a message: 99.3 %
SUBNET = "10.77.0"
BURST_S = 1.5e-3  # of the rate that may go at once after a pause
QUEUED_BYTES = 1 << 16  # of one socket, in the queue of its device
GRACE_S = 15.0  # what the other ranks have to end by themselves, once one failed
HERE = Path(__file__).resolve().parent


def missing() -> str:
    """Return why no network can be made here; empty where it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} (iproute2) is not installed"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is not there"
    name = f"mt{os.getpid()}"
    tried = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", "name", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name],
        ["tc", "qdisc", "add", "dev", f"{name}a", "root", "tbf", "rate", "1gbit", "burst", "64kb", "limit", "1mb"],
    ]
    try:
        for words in tried:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"`{' '.join(words[:3])}` failed: {done.stderr.strip()[:200]}"
    finally:
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


@dataclass(slots=True)
class Network:
    """Namespaces of the ranks.

    Args:
        names: Namespace of each rank.
        rate_bit_per_s: What each rank may send; infinite without a limit.
        delay_s: Added to each packet, one way.
    """

    names: tuple[str, ...]
    rate_bit_per_s: float
    delay_s: float
    _relay: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def bytes_per_s(self) -> float:
        """The set rate [B/s]."""
        return self.rate_bit_per_s / 8.0

    def address(self, rank: int) -> str:
        """Return the address of a rank."""
        return f"{SUBNET}.{rank + 1}"

    def command(self, rank: int, words: Sequence[str]) -> list[str]:
        """Return a command that runs in the namespace of a rank."""
        return ["ip", "netns", "exec", self.names[rank], *words]

    def environment(self, rank: int, *, port: int = 29500) -> dict[str, str]:
        """Return the environment that torchrun would give a rank on a host of its own."""
        world = len(self.names)
        return {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.address(0), "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "net0",
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        }  # fmt: skip

    def set_rate(self, rate_bit_per_s: float) -> None:
        """Hold every rank to another rate."""
        self.rate_bit_per_s = rate_bit_per_s
        for name in self.names:
            _shape(name, rate_bit_per_s)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


def _shape(name: str, rate_bit_per_s: float) -> None:
    """Set the token bucket: about 1.5 ms of the rate at once, two frames at least, and a queue that drops nothing.

    An infinite rate takes the bucket away: what is left is what the processors can copy.
    """
    if math.isinf(rate_bit_per_s):
        subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "net0", "root"], capture_output=True, check=False)
        return
    burst = max(2 * (MTU + 14), int(rate_bit_per_s / 8.0 * BURST_S))
    _run(
        "tc", "-n", name, "qdisc", "replace", "dev", "net0", "root", "tbf", "rate", f"{rate_bit_per_s:.0f}bit",
        "burst", str(burst), "limit", str(16 << 20),
    )  # fmt: skip


@contextlib.contextmanager
def network(ranks: int, rate_bit_per_s: float, delay_s: float = 0.0) -> Iterator[Network]:
    """Make a network of `ranks` namespaces, and take it away at the end.

    Args:
        ranks: Namespaces.
        rate_bit_per_s: What each may send [bit/s]; `math.inf` for no limit.
        delay_s: Added one way [s].
    """
    tag = f"mn{os.getpid()}x"
    made = Network(names=tuple(f"{tag}{r}" for r in range(ranks)), rate_bit_per_s=rate_bit_per_s, delay_s=delay_s)
    hub = f"{tag}h"
    try:
        for name in made.names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        if delay_s > 0.0:
            made._relay = _start_relay(made)
        else:
            _run("ip", "netns", "add", hub)
            _run("ip", "-n", hub, "link", "add", "name", "br0", "mtu", str(MTU), "type", "bridge")
            _run("ip", "-n", hub, "link", "set", "br0", "up")
            for rank, name in enumerate(made.names):
                _run(
                    "ip",
                    "-n",
                    name,
                    "link",
                    "add",
                    "net0",
                    "mtu",
                    str(MTU),
                    "type",
                    "veth",
                    "peer",
                    "name",
                    f"p{rank}",
                    "netns",
                    hub,
                )
                _run("ip", "-n", hub, "link", "set", f"p{rank}", "mtu", str(MTU), "master", "br0", "up")
        for rank, name in enumerate(made.names):
            _run("ip", "-n", name, "addr", "add", f"{made.address(rank)}/24", "dev", "net0")
            _run("ip", "-n", name, "link", "set", "net0", "mtu", str(MTU), "txqueuelen", "2000", "up")
            # A connection that rested must not start slowly again: a rank computes between two exchanges.
            # And acknowledgements must not stand behind what this side has to send: the bucket cuts large buffers into
            # frames, by which the kernel's own bound of what a socket may have queued is lost unless it is low.
            for name_of, value in (("tcp_slow_start_after_idle", 0), ("tcp_limit_output_bytes", QUEUED_BYTES)):
                _run("ip", "netns", "exec", name, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name_of}")
        made.set_rate(rate_bit_per_s)
        yield made
    finally:
        if made._relay is not None:
            assert made._relay.stdin is not None
            made._relay.stdin.close()
            made._relay.wait(timeout=10)
        for name in (*made.names, hub):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _start_relay(made: Network) -> subprocess.Popen[bytes]:
    relay = subprocess.Popen(
        [sys.executable, str(HERE / "relay.py"), str(made.delay_s), SUBNET, *made.names],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert relay.stdout is not None
    if relay.stdout.readline() != b"ready\n":
        relay.kill()
        raise RuntimeError("the relay did not start")
    return relay


def run_ranks(
    made: Network, commands: Sequence[Sequence[str]], *, limit_s: float, port: int = 29500, cwd: Path | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run one command in each namespace at the same time, and return what came of each.

    A rank that fails ends the others a few seconds later.

    Raises:
        TimeoutError: one is not done in time; all are ended.
    """
    running = [
        subprocess.Popen(
            made.command(rank, words), env=made.environment(rank, port=port), cwd=cwd, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank, words in enumerate(commands)
    ]  # fmt: skip
    end = time.monotonic() + limit_s
    texts: list[tuple[str, str]] = [("", "")] * len(running)
    with ThreadPoolExecutor(len(running)) as readers:
        reading = [readers.submit(child.communicate) for child in running]
        try:
            while any(child.poll() is None for child in running):
                if any(child.poll() not in (None, 0, 3) for child in running):  # the others would wait for it for long
                    time.sleep(GRACE_S)
                    break
                if time.monotonic() > end:
                    late = [str(r) for r, child in enumerate(running) if child.poll() is None]
                    raise TimeoutError(f"rank {', '.join(late)} is not done within {limit_s:.0f} s")
                time.sleep(0.05)
        finally:
            for child in running:
                if child.poll() is None:
                    child.kill()
        texts = [future.result() for future in reading]
    return [
        subprocess.CompletedProcess(list(words), child.returncode, *text)
        for words, child, text in zip(commands, running, texts, strict=True)
    ]
