"""What other packages add to the laboratory by entry points, as the paper's does in a clone."""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec


def installed_entries(group: str) -> list[EntryPoint]:
    """The entry points of `neural_similarity.GROUP` whose packages are installed; imports none."""
    entries = entry_points(group=f"neural_similarity.{group}")
    return [entry for entry in entries if find_spec(entry.value.partition(".")[0])]


def load_entries(group: str) -> None:
    """Import every installed module of a group, which registers what it adds."""
    for entry in installed_entries(group):
        entry.load()
