"""Fetching data sets from their official sites."""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.data.registry import find_folder, load

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Remote:
    """A file on an official site, and the checksum that was published with it."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file without its address."""
        return self.url.rsplit("/", 1)[-1]


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
REMOTES = {
    "fashion-mnist": (
        Remote(f"{_FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(f"{_FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Remote(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Remote(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (Remote(f"{_CIFAR}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    "cifar100": (Remote(f"{_CIFAR}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
}


def download(name: str, root: str | Path, *, progress: Progress | None = None) -> Path:
    """Fetch a data set unless it is already there and whole.

    Files arrive under another name, are checked, and only then take their place, where they
    replace damaged ones; a copy that somebody unpacked stays, and is read first. The embedded
    data set is always there.

    Args:
        name: "fashion-mnist", "cifar10", "cifar100" or "embedded".
        root: folder of the data sets, created if it does not exist.
        progress: called with the bytes of a file that have come, and with how many it has.

    Returns:
        The folder that holds the files.

    Raises:
        ConnectionError: a file cannot be fetched, or not all of it.
        ValueError: there is no such data set, or a file is not the one that was published.
    """
    root = Path(root)
    if name == "embedded":
        return find_folder(name, root)
    if name not in REMOTES:
        known = ", ".join([*REMOTES, "embedded"])
        raise ValueError(f"`name` must be a data set to download, one of {known}, got {name!r}")
    if not _is_whole(name, root):
        root.mkdir(parents=True, exist_ok=True)
        for remote in REMOTES[name]:
            _install_file(remote, root, name, progress)
    return find_folder(name, root)


def _is_whole(name: str, root: Path) -> bool:
    try:
        load(name, root)
    except (FileNotFoundError, ValueError):
        return False
    return True


def _install_file(remote: Remote, root: Path, name: str, progress: Progress | None) -> None:
    """Fetch one file, unpack it if it is an archive, and move the content into place."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as scratch:
        fetched = Path(scratch, remote.name)
        _fetch_file(remote, fetched, progress)
        if remote.name.endswith(".tar.gz"):
            fetched = _unpack_archive(fetched)
        _move_files(fetched, root / name if fetched.is_file() else root / fetched.name)


def _unpack_archive(archive: Path) -> Path:
    """The one folder at the top of an archive."""
    target = archive.parent / "unpacked"
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    (folder,) = target.iterdir()
    return folder


def _move_files(source: Path, folder: Path) -> None:
    """Move a file, or the files of a folder, into `folder`, replacing earlier ones."""
    folder.mkdir(exist_ok=True)
    for file in [source] if source.is_file() else sorted(source.iterdir()):
        file.replace(folder / file.name)


def _fetch_file(remote: Remote, path: Path, progress: Progress | None) -> None:
    """Write a remote file to `path`."""
    try:
        md5 = _copy_url(remote.url, path, progress)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"{remote.url} cannot be downloaded: {error}; try again") from error
    if md5 != remote.md5:
        raise ValueError(
            f"{remote.url} must have the MD5 {remote.md5}, got a file with {md5}; try again, or "
            "fetch it by hand"
        )


def _copy_url(url: str, path: Path, progress: Progress | None) -> str:
    """Copy `url` to `path` and return the MD5 of what came."""
    md5, done = hashlib.md5(usedforsecurity=False), 0
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply, path.open("wb") as file:
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
