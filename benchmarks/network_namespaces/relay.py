"""Hands packets from one namespace to another after a fixed delay: `relay.py DELAY_S SUBNET NAMESPACE...`.

Each namespace gets a TUN device `net0`; all are read by this one process. It writes `ready` when they are there and ends
when its standard input is closed.
"""

import ctypes
import fcntl
import heapq
import os
import selectors
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


def tun_in(namespace: str) -> int:
    """Make `net0` in a namespace and return its file descriptor, which stays valid outside of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"net0", IFF_TUN | IFF_NO_PI))
    finally:
        if libc.setns(own, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns back")
        os.close(own)
        os.close(there)
    return fd


def main(delay_s: float, subnet: str, namespaces: list[str]) -> None:
    prefix = bytes(int(x) for x in subnet.split("."))
    fds = [tun_in(name) for name in namespaces]
    target = {prefix + bytes([rank + 1]): fd for rank, fd in enumerate(fds)}
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    selector = selectors.DefaultSelector()
    for fd in fds:
        selector.register(fd, selectors.EVENT_READ)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    print("ready", flush=True)
    now = time.monotonic
    while True:
        wait = max(0.0, waiting[0][0] - now()) if waiting else None
        for key, _ in selector.select(wait):
            if key.fd == sys.stdin.fileno():
                return
            while True:
                try:
                    packet = os.read(key.fd, 65536)
                except BlockingIOError:
                    break
                except OSError:  # the device is not up yet
                    break
                out = target.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if out is not None:
                    number += 1
                    heapq.heappush(waiting, (now() + delay_s, number, out, packet))
                if waiting and waiting[0][0] <= now():
                    break
        while waiting and waiting[0][0] <= now():
            _, _, out, packet = heapq.heappop(waiting)
            try:
                os.write(out, packet)
            except OSError:  # the queue of the device is full: a packet is lost, as on any link
                continue


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3:])
