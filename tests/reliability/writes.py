"""Every write of a piece of work: what a kill before it leaves, or refused by a full disk.

Python tells an audit hook of each opening for writing, renaming, removal, folder or truncation
before it happens, and the hook may raise or kill. Flushing to the disk, of which it does not tell,
counts as one more: what was written is in the file by then. A hook stays for ever, so that all of
this belongs into a process of its own, see `children.started`.
"""

import errno
import os
import shutil
import signal
import sys
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FOLDERS = {"open": None, "os.mkdir": 2, "os.rmdir": 1, "os.remove": 1, "os.truncate": None}
"""Events, and where their arguments name the folder that a path is relative to."""
FILLING = "open", "os.mkdir", "fsync"
"""Events that need space."""


def place(path, folder=-1):
    """The absolute path that an event is about, or None for an open file."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    base = Path(f"/proc/self/fd/{folder}").resolve() if folder not in (-1, None) else Path.cwd()
    return base / os.fsdecode(path)


def places(event, args):
    """The paths that an event is about to change; none where it only reads."""
    if event == "open":
        path, mode, flags = args
        writes = set(mode or "") & set("wax+") or (flags or 0) & WRITING
        return [place(path)] if writes else []
    if event == "os.rename":
        return [place(args[0], args[2]), place(args[1], args[3])]
    if event in ("os.link", "os.symlink"):
        return [place(args[1], args[2])]
    if event in FOLDERS:
        number = FOLDERS[event]
        path = place(args[0], args[number] if number else -1)
        return [] if event == "os.mkdir" and path.exists() else [path]
    return []


def watch(act, *folders):
    """Call `act(event, paths)` before every write below `folders`, from now on in this process."""
    roots = [Path(folder).resolve() for folder in folders]
    flush, busy = os.fsync, False

    def tell(event, paths):
        nonlocal busy
        inside = [p for p in paths if p and any(p.is_relative_to(root) for root in roots)]
        if inside and not busy:
            busy = True
            try:
                act(event, inside)
            finally:
                busy = False

    def hook(event, args):
        if event in FOLDERS or event in ("os.rename", "os.link", "os.symlink"):
            tell(event, places(event, args))

    def fsync(descriptor):
        tell("fsync", [Path(f"/proc/self/fd/{descriptor}").resolve()])
        flush(descriptor)

    os.fsync = fsync
    sys.addaudithook(hook)


class Count:
    """Writes the events, one a line, into the open file `descriptor`."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def __call__(self, event, paths):
        os.write(self.descriptor, f"{event} {' '.join(map(str, paths))}\n".encode())


class Copy:
    """Copies `folder` before each write: what a kill would leave, in `copies`/NUMBER of the write.

    What is as it was before the last write, as after a flush, is not copied again.
    """

    def __init__(self, folder, copies, descriptor):
        self.folder, self.copies, self.count = folder, copies, Count(descriptor)
        self.number, self.last = 0, None

    def __call__(self, event, paths):
        self.count(event, paths)
        found = contents(self.folder)
        if found != self.last:
            shutil.copytree(self.folder, self.copies / str(self.number), symlinks=True)
        self.number, self.last = self.number + 1, found


def contents(folder):
    """The bytes of every file below a folder, and None for every folder."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


class Kill:
    """A signal to this process before write `number`, counted from 0."""

    def __init__(self, number, sent=signal.SIGKILL):
        self.left, self.sent = number, sent

    def __call__(self, *_):
        if not self.left:
            os.kill(os.getpid(), self.sent)
        self.left -= 1


def forbid(event, paths):
    """Of processes that must write nothing."""
    raise AssertionError(f"{event} {paths}")


class FullDisk:
    """No space from write `number` on of those that take some; what frees some does not fail."""

    def __init__(self, number):
        self.left = number

    def __call__(self, event, paths):
        self.left -= event in FILLING
        if self.left < 0 and event in FILLING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(paths[-1]))
