import hashlib
import io
import socket
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from neural_similarity.lab.data import download_dataset
from neural_similarity.lab.data.download import REMOTES, Remote

MEMBERS = {"data_batch_1.bin": b"first", "test_batch.bin": b"second"}


def archive(members):
    """A packed archive of the given files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


class Site(ThreadingHTTPServer):
    """A site on this machine; `pages` maps paths to contents, `cut` shortens what is sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages, self.cut, self.requests, self.announces = {}, 0, [], True

    def serve(self, name, file, content, monkeypatch, md5=None):
        """Put a file on the site and into the table."""
        self.pages = {f"/{file}": content}
        address = f"http://127.0.0.1:{self.server_port}/{file}"
        remote = Remote(address, md5 or hashlib.md5(content).hexdigest())
        monkeypatch.setitem(REMOTES, name, remote)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.pages.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        if self.server.announces:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.server.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_archives_are_unpacked_beside_what_is_there(tmp_path, site, monkeypatch):
    packed = archive({f"cifar-10-batches-bin/{name}": data for name, data in MEMBERS.items()})
    site.serve("cifar10", "cifar-10-binary.tar.gz", packed, monkeypatch)
    root = tmp_path / "new" / "data"
    folder = download_dataset("cifar10", root)
    assert folder == root / "cifar-10-batches-bin"
    (folder / "mine.txt").write_text("stays")
    (folder / "test_batch.bin").write_bytes(b"half")
    download_dataset("cifar10", root)
    inside = [f"{folder.name}/{name}" for name in (*MEMBERS, "mine.txt")]
    assert everything_in(root) == sorted([folder.name, *inside])
    assert {name: (folder / name).read_bytes() for name in MEMBERS} == MEMBERS


def cifar_files():
    """The binary layout of CIFAR-10, all images black and of class 0."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return dict.fromkeys(names, bytes(10_000 * 3_073))


def test_files_are_fetched_once_unless_damaged(tmp_path, site, monkeypatch):
    files = cifar_files()
    packed = archive({f"cifar-10-batches-bin/{name}": data for name, data in files.items()})
    site.serve("cifar10", "a.tar.gz", packed, monkeypatch)
    told = []
    folder = download_dataset("cifar10", tmp_path, progress=lambda *state: told.append(state))
    assert told[-1] == (len(packed), len(packed))
    assert download_dataset("cifar10", tmp_path) == folder
    assert len(site.requests) == 1
    damaged = folder / "test_batch.bin"
    damaged.write_bytes(b"half")
    assert download_dataset("cifar10", tmp_path) == folder
    assert damaged.read_bytes() == files[damaged.name]


def test_a_set_that_lies_in_the_root_itself_is_found(tmp_path):
    for name, content in cifar_files().items():
        (tmp_path / name).write_bytes(content)
    assert download_dataset("cifar10", tmp_path) == tmp_path


def test_length_may_be_unknown(tmp_path, site, monkeypatch):
    site.announces = False
    packed = archive({"cifar-10-batches-bin/test_batch.bin": b"content"})
    site.serve("cifar10", "a.tar.gz", packed, monkeypatch)
    told = []
    download_dataset("cifar10", tmp_path, progress=lambda *state: told.append(state))
    assert told == [(len(packed), None)]
    assert (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("content", "faults", "error", "message"),
    [
        (
            b"something else",
            {"md5": "0" * 32},
            ValueError,
            r"http://127\.0\.0\.1:\d+/a\.tar\.gz must have the MD5 0{32}, got a file with \w{32};",
        ),
        (b"", {"gone": True}, ConnectionError, "/a.tar.gz cannot be downloaded: HTTP Error 404"),
        (b"x" * 1_000, {"cut": 1}, ConnectionError, "it ended after 999 of 1,000 bytes; try again"),
        (archive({"../outside": b""}), {}, tarfile.OutsideDestinationError, "outside"),
    ],
    ids=["checksum", "not found", "truncated", "outside"],
)
def test_what_fails_leaves_nothing(tmp_path, site, monkeypatch, content, faults, error, message):
    site.serve("cifar10", "a.tar.gz", content, monkeypatch, md5=faults.get("md5"))
    site.cut = faults.get("cut", 0)
    if "gone" in faults:
        site.pages.clear()
    with pytest.raises(error, match=message):
        download_dataset("cifar10", tmp_path)
    assert everything_in(tmp_path) == []


def test_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setitem(REMOTES, "cifar10", Remote(f"http://127.0.0.1:{port}/a.tar.gz", ""))
    with pytest.raises(ConnectionError, match=r"/a\.tar\.gz cannot be downloaded: .*refused"):
        download_dataset("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["folder", "imagenet"])
def test_unknown_name(tmp_path, name):
    match = f"one of embedded, cifar10, cifar100, got '{name}'"
    with pytest.raises(ValueError, match=match):
        download_dataset(name, tmp_path)
