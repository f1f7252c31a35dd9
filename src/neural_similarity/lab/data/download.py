"""Fetching data sets from their official sites."""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from neural_similarity.files import new_file
from neural_similarity.lab.data.cifar import CIFARS, find_cifar
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.data.registry import load_dataset

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Remote:
    """An archive on an official site, and the checksum that was published with it."""

    url: str
    md5: str


_CIFAR = "https://www.cs.toronto.edu/~kriz"
REMOTES = {
    "cifar10": Remote(f"{_CIFAR}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": Remote(f"{_CIFAR}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}

OURS = ("embedded", *REMOTES)
"""The data sets that come with the package, or can be fetched."""


def download_dataset(
    name: str, root: str | Path, *, progress: ProgressCallback | None = None
) -> Path:
    """Fetch a data set unless it is already there and whole.

    Files arrive under another name, are checked, and only then take their place, where they replace
    damaged ones; a copy that somebody unpacked stays, and is read first. The embedded data set is
    always there. `progress` is called with the bytes of a file that have come.

    Returns:
        The folder that holds the files.

    Raises:
        ConnectionError: a file cannot be fetched, or not all of it.
        ValueError: there is no such data set, or a file is not the one that was published.
    """
    root = Path(root)
    if name == "embedded":
        return Path(__file__).with_name("embedded")
    if name not in REMOTES:
        raise ValueError(
            f"`name` must be a data set to download, one of {', '.join(OURS)}, got {name!r}"
        )
    if not _is_whole(name, root):
        root.mkdir(parents=True, exist_ok=True)
        _install_archive(REMOTES[name], root, progress)
    return find_cifar(CIFARS[name], root)


def _is_whole(name: str, root: Path) -> bool:
    try:
        load_dataset(name, root)
    except (FileNotFoundError, ValueError):
        return False
    return True


def _install_archive(remote: Remote, root: Path, progress: ProgressCallback | None) -> None:
    """Fetch an archive, and write its files to where they are read."""
    with tempfile.TemporaryFile(dir=root) as fetched:  # It has no name, so a kill leaves nothing.
        _fetch_file(remote, fetched, progress)
        fetched.seek(0)
        _unpack_archive(fetched, root)


def _unpack_archive(archive: IO[bytes], root: Path) -> None:
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            content = tar.extractfile(tarfile.data_filter(member, str(root)))
            if content is not None:
                with new_file(root / member.name) as file:
                    shutil.copyfileobj(content, file)


def _fetch_file(remote: Remote, file: IO[bytes], progress: ProgressCallback | None) -> None:
    """Write a remote file to an open one."""
    try:
        md5 = _copy_url(remote.url, file, progress)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"{remote.url} cannot be downloaded: {error}; try again") from error
    if md5 != remote.md5:
        raise ValueError(
            f"{remote.url} must have the MD5 {remote.md5}, got a file with {md5}; try again, or "
            "fetch it by hand"
        )


def _copy_url(url: str, file: IO[bytes], progress: ProgressCallback | None) -> str:
    """Copy `url` to an open file and return the MD5 of what came."""
    md5, done = hashlib.md5(usedforsecurity=False), 0
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
        total = int(reply.headers["Content-Length"]) if reply.headers["Content-Length"] else None
        while chunk := reply.read(CHUNK):
            file.write(chunk)
            md5.update(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
    if total is not None and done != total:
        raise OSError(f"it ended after {done:,} of {total:,} bytes")
    return md5.hexdigest()
