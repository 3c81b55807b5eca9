"""A signal that ends the program ends it as an exception does, so that what it made for itself is taken away first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """The program was told to end; its code is the one that a shell shows, 128 and the number of the signal."""


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `EndedBySignal`, once; a second one ends the program on the spot.

    A signal that is ignored or handled already is left as it is, and so are all of them outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        raise EndedBySignal(128 + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)
