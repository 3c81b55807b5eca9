"""What counts as silence of a rank: time in which the other side says nothing, never time in which this side was stopped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mansard.core.document import TOOL_VERSION
from mansard.core.errors import InputError
from mansard.measure.launch import Launch
from mansard.measure.links.follow import SilentError, follow, is_stopped, lines_of
from mansard.measure.links.hub import LOOK_S, MAGIC, SAME_VERSION, Awake, Hub


def test_a_clock_that_stands_still_while_the_process_is_stopped():
    times = iter([0.0, 0.5, 1.5, 601.5, 602.0])
    clock = Awake(lambda: next(times))
    # 0.5, then 1.0 more, then 600 s between two looks of which LOOK_S count, then 0.5
    assert [clock.look() for _ in range(4)] == [0.5, 1.5, 1.5 + LOOK_S, 2.0 + LOOK_S]


def test_lines_come_whole_and_end_with_the_connection():
    here, there = socket.socketpair()
    with here:
        there.sendall(b'{"alive": true}\n{"sta')
        lines = lines_of(here)
        assert next(lines) == '{"alive": true}'
        there.sendall(b'rt": 1}\n{"e')
        there.close()
        assert list(lines) == ['{"start": 1}']


def test_silence_is_told_from_an_end():
    here, there = socket.socketpair()
    with here, there, pytest.raises(SilentError, match="no sign of life for 0 s"):
        next(lines_of(here, silent_s=0.0))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
def test_a_stopped_process_is_told_from_one_that_runs():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)  # returns once it is stopped
        assert is_stopped(child.pid)
        child.send_signal(signal.SIGCONT)
        child.kill()
    assert not is_stopped(child.pid)


class Hand:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def launch_of_two() -> Launch:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Launch(
        launcher="flags", rank=0, world=2, local_rank=None, local_world=None, host="127.0.0.1", port=port, job="j"
    )


def test_a_rank_is_lost_by_its_silence_and_not_by_ours():
    launch = launch_of_two()
    hub = Hub(launch, silent_s=20.0)
    hand = Hand()
    hub._clock = Awake(hand)
    with contextlib.closing(socket.create_connection(("127.0.0.1", hub.port), timeout=10.0)) as rank_1:
        hello = {"magic": MAGIC, "job": "j", "rank": 1, "host": "h", "version": TOOL_VERSION}
        rank_1.sendall((json.dumps(hello) + "\n").encode())
        end = time.monotonic() + 30.0
        while 1 not in hub.members and time.monotonic() < end:
            time.sleep(0.01)
        assert hub.lost() == ""
        hand.now = 3600.0  # all were stopped for an hour, and this one looks first
        assert hub.lost() == ""
        for _ in range(20):  # 20 looks, a second apart, in which rank 1 says nothing: 2 + 20 s
            hand.now += 1.0
            told = hub.lost()
        assert told == "rank 1 of 2 on h is lost: no sign of life for 20 s"
    hub.end(1)


def test_a_rank_of_another_version_is_refused_by_name_and_ends_both():
    hub = Hub(launch_of_two())
    with contextlib.closing(socket.create_connection(("127.0.0.1", hub.port), timeout=10.0)) as rank_1:
        hello = {"magic": MAGIC, "job": "j", "rank": 1, "host": "h", "version": "0.0.7"}
        rank_1.sendall((json.dumps(hello) + "\n").encode())
        answer = json.loads(rank_1.makefile("r", encoding="utf-8").readline())
    text = f"rank 1 of 2 on h runs Mansard 0.0.7, rank 0 runs {TOOL_VERSION}"
    assert answer == {"refused": text, "hint": SAME_VERSION}
    with pytest.raises(InputError) as caught:
        hub.wait(30.0)
    assert (caught.value.message, caught.value.hint) == (text, SAME_VERSION)
    hub.end(1)


def test_a_name_of_rank_0_that_nobody_knows_is_said():
    launch = Launch(
        launcher="slurm", rank=1, world=2, local_rank=None, local_world=None, host="no-such-node.invalid", port=61440, job="j"
    )  # fmt: skip
    with pytest.raises(InputError, match=r"the name no-such-node.invalid is not known here"):
        follow(launch, limit_s=0.01)
