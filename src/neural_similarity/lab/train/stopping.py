"""Stopping on Ctrl-C and SIGTERM between two steps, with everything saved."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_noted() -> Iterator[Callable[[], int | None]]:
    """Within, the first Ctrl-C or SIGTERM only makes the yielded function return its number.

    A second one acts as it did before, so a process that hangs can still be stopped.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # Python hands signals to the main thread only.
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        give_back()

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: received[0] if received else None
    finally:
        give_back()
