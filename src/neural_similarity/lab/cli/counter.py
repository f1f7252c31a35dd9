"""A bar for what is counted."""

from collections.abc import Iterator
from contextlib import contextmanager

from neural_similarity.lab.data.files import Progress


@contextmanager
def counter(what: str) -> Iterator[Progress]:
    """A bar on stderr from the first count to the last, in a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bar = RichProgress(*columns, console=console, disable=not console.is_terminal)
    task = bar.add_task("")

    def count(done: int, total: int | None) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()  # The terminal has room for one bar at a time, and training has its own.

    try:
        yield count
    finally:
        bar.stop()
