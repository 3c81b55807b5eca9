"""A run over the processes of a job: rank 0 measures, the others take part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mansard.measure.launch import Launch
from mansard.measure.links.hub import HUB_VARIABLE, LINK_VARIABLE, WORLD_VARIABLE, Hub
from mansard.measure.points.process import Worker

LOOPBACK, NETWORK = "loopback", "network"


@dataclass(slots=True)
class Job:
    """A run under way.

    Args:
        hub: Where the ranks meet.
        code: Exit code of the run, which all ranks end with; 1 until it is known.
    """

    hub: Hub
    code: int = 1


@contextlib.contextmanager
def leading(launch: Launch, say: Callable[[str], None] = lambda _text: None) -> Iterator[Job]:
    """Gather the ranks of a job and measure with them; at the end they are told to go.

    Args:
        launch: Place of this process, which is rank 0.
        say: Told who is there.

    Raises:
        InputError: some ranks did not come.
    """
    job = Job(hub=Hub(launch))
    link = LOOPBACK if launch.one_host or launch.host in ("127.0.0.1", "localhost", "::1") else NETWORK
    ours = {
        HUB_VARIABLE: f"{job.hub.port} {launch.job}", WORLD_VARIABLE: str(launch.world), LINK_VARIABLE: link,
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in ours}
    watch = Worker.watch
    try:
        job.hub.wait(say=say)
        os.environ.update(ours)
        Worker.watch = staticmethod(job.hub.lost)
        yield job
    finally:
        Worker.watch = staticmethod(watch)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        job.hub.end(job.code)
