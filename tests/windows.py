"""Runs `nsim` as far as Linux can be like Windows: `python tests/windows.py train quickstart`.

What only POSIX has is missing, `os.kill` ends the process it is asked about, folders cannot be
opened, and what was opened to be read cannot be flushed.
"""

import errno
import fcntl
import importlib
import os
import select
import signal
import sys
from pathlib import Path

for name in ("huggingface_hub", "multiprocessing", "tyro", "rich.progress", "torch", "PIL.Image"):
    importlib.import_module(name)  # These ask for Windows' own modules later.
importlib.import_module("matplotlib.pyplot")

MISSING = {
    signal: ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGALRM"),
    os: ("fork", "geteuid", "getuid", "killpg", "sched_getaffinity", "setsid", "statvfs"),
    select: ("poll",),
}
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
open_file, flush = os.open, os.fsync


def kill(process, number):
    raise AssertionError(f"os.kill({process}, {number}) ends the process on Windows")


def opened(path, flags, *args, **options):
    if Path(path).is_dir():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return open_file(path, flags, *args, **options)


def flushed(descriptor):
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    flush(descriptor)


def main(args):
    for module, names in MISSING.items():
        for name in names:
            delattr(module, name)
    sys.modules.update(dict.fromkeys(MODULES))
    os.kill, os.open, os.fsync, sys.platform = kill, opened, flushed, "win32"
    return importlib.import_module("neural_similarity.lab.cli").main(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
