"""What lies beside the project's own files: names that look like them, and are a user's."""

import hashlib
import os
import shutil

import pytest

GONE = 2**22 + 1
"""The number of no process: what one of this number left is leftover."""
NAMES = (
    *("step-00000010.bak", "keep-step-1", "my-step-backup", "step-old", "step-1", "step-000000001"),
    *("step-", "step-0000000a", "step-00000002 (copy)", "STEP-00000002", "step-٠٠٠٠٠٠٠٢"),
    *("step--0000001", "step-00000002.123", "a step-00000002", "step-00000002\n", "best.bak"),
    *(".step-00000001", ".step-00000002.partial", f".step-1.{GONE}.partial", ".partial"),
    *(".step-00000002.old.partial", f".step-00000002.a.{GONE}.partial", ".weights.123.partial"),
    *(f".step-00000002.0{GONE}.partial", f".step-00000002.{GONE}.partial.bak", "notes-step-1.txt"),
    *(f"step-00000002.{GONE}.partial", f".step-000000002.{GONE}.partial", "1.json", "2.json.bak"),
    *("notes.json", "old.png", "maps.png", "train.bak", ".download-mine", "cache-8.pixels.bak"),
)
KINDS = ("folder", "file", "link", "dangling")


def beside(name):
    """Names that look like what is written in the place of `name`."""
    stem, _, suffix = name.rpartition(".")
    yield from (f"{name}.bak", f"{name}~", f"copy of {name}", f".{name}", f"{stem} (1).{suffix}")
    yield from (f".{name}.partial", f".{name}.old.partial", f".{name}.1.{GONE}.partial")
    yield from (f".{name}.-{GONE}.partial", f"{name}.{GONE}.partial", f".{name}.{GONE}.part")


def put(path, kind, likeness):
    """Put a neighbour of a kind, with the content of a file or folder that is the project's."""
    if kind == "folder":
        shutil.copytree(likeness, path, copy_function=os.link)
    elif kind == "file":
        path.write_bytes(b"mine")
    else:
        path.symlink_to(likeness if kind == "link" else likeness / "missing")


def pictured(path):
    """Everything about a neighbour: kind, content and time of change, of all that is in it."""
    state = path.lstat()
    facts = [path.name, state.st_mode, state.st_mtime_ns]
    if path.is_symlink():
        return [*facts, str(path.readlink())]
    if path.is_dir():
        return [*facts, *(pictured(inner) for inner in sorted(path.iterdir()))]
    return [*facts, hashlib.sha256(path.read_bytes()).hexdigest()]


class Neighbours:
    """Neighbours in many folders; nothing may happen to them."""

    def __init__(self, kind, outside):
        self.kind, self.found = kind, {}
        self.outside = outside / "theirs"

    def add(self, *folders, likeness=None, names=NAMES):
        """Fill folders of the project with neighbours, new ones where it has written since.

        Args:
            folders: made where they are missing.
            likeness: folder that the first neighbours are copies of, or lead to.
            names: of neighbours, besides those that look like what is there.
        """
        if likeness is not None and not self.outside.exists():
            shutil.copytree(likeness, self.outside)
            self.found[self.outside] = pictured(self.outside)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            ours = [path.name for path in folder.iterdir() if path not in self.found]
            theirs = {*names, *(other for name in ours for other in beside(name))}
            for path in (folder / name for name in sorted(theirs)):
                if not os.path.lexists(path):
                    put(path, self.kind, self.outside)
                    self.found[path] = pictured(path)

    def assert_untouched(self):
        for path, before in self.found.items():
            assert os.path.lexists(path), f"{path} is gone"
            assert pictured(path) == before, f"{path} has changed"


@pytest.fixture(params=KINDS)
def neighbours(request, tmp_path):
    return Neighbours(request.param, tmp_path / "elsewhere")
