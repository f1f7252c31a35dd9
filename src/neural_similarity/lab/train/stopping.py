"""Stopping on Ctrl-C, SIGTERM and a lost terminal between two steps, with everything saved."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

HANGUP = getattr(signal, "SIGHUP", None)
"""The loss of the terminal, which Windows does not signal."""
SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, HANGUP)))


@contextlib.contextmanager
def catch_signals() -> Iterator[Callable[[], int | None]]:
    """Catch the first of `SIGNALS`; the yielded function returns its number, None until then.

    A second signal has its usual effect, so a process that hangs can still be stopped. Under
    `nohup` the loss of the terminal stays ignored.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # Python hands signals to the main thread only.
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if HANGUP and before[HANGUP] is signal.SIG_IGN:
        del before[HANGUP]

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        give_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: received[0] if received else None
    finally:
        give_back()
