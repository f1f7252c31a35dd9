import gzip
import hashlib
import io
import socket
import struct
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from neural_similarity.lab.data import download_dataset
from neural_similarity.lab.data.download import REMOTES, Remote

MEMBERS = {"data_batch_1.bin": b"first", "test_batch.bin": b"second"}


def fashion_files():
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        for stem, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            header = struct.pack(f">{1 + len(shape)}I", 2048 + len(shape), *shape)
            size = count * (784 if len(shape) == 3 else 1)
            yield f"{part}-{stem}-ubyte.gz", gzip.compress(header + bytes(size), compresslevel=1)


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

    def serve(self, name, files, monkeypatch, md5=None):
        """Put files on the site and into the table."""
        self.pages = {f"/{file}": content for file, content in files}
        address = f"http://127.0.0.1:{self.server_port}"
        remotes = tuple(
            Remote(f"{address}{path}", md5 or hashlib.md5(content).hexdigest())
            for path, content in self.pages.items()
        )
        monkeypatch.setitem(REMOTES, name, remotes)


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
    site.serve("cifar10", [("cifar-10-binary.tar.gz", packed)], monkeypatch)
    root = tmp_path / "new" / "data"
    folder = download_dataset("cifar10", root)
    assert folder == root / "cifar-10-batches-bin"
    (folder / "mine.txt").write_text("stays")
    (folder / "test_batch.bin").write_bytes(b"half")
    download_dataset("cifar10", root)
    inside = [f"{folder.name}/{name}" for name in (*MEMBERS, "mine.txt")]
    assert everything_in(root) == sorted([folder.name, *inside])
    assert {name: (folder / name).read_bytes() for name in MEMBERS} == MEMBERS


def test_files_are_fetched_once_unless_damaged(tmp_path, site, monkeypatch):
    files = dict(fashion_files())
    site.serve("fashion-mnist", files.items(), monkeypatch)
    told = []
    folder = download_dataset("fashion-mnist", tmp_path, progress=lambda *state: told.append(state))
    assert folder == tmp_path / "fashion-mnist"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert [t for done, t in told if done == t] == [len(content) for content in files.values()]

    assert download_dataset("fashion-mnist", tmp_path) == folder
    assert len(site.requests) == 4

    damaged = folder / "t10k-labels-idx1-ubyte.gz"
    damaged.write_bytes(b"half")
    assert download_dataset("fashion-mnist", tmp_path) == folder
    assert damaged.read_bytes() == files[damaged.name]


def test_a_set_that_is_elsewhere_below_root_is_found(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in fashion_files():
        (raw / name).write_bytes(content)
    assert download_dataset("fashion-mnist", tmp_path) == raw


def test_length_may_be_unknown(tmp_path, site, monkeypatch):
    site.announces = False
    unpacked = tmp_path / "fashion-mnist" / "a"
    unpacked.parent.mkdir(exist_ok=True)
    unpacked.write_bytes(b"damaged, and read first")
    site.serve("fashion-mnist", [("a.gz", b"content")], monkeypatch)
    told = []
    download_dataset("fashion-mnist", tmp_path, progress=lambda *state: told.append(state))
    assert told == [(7, None)]
    assert (tmp_path / "fashion-mnist" / "a.gz").read_bytes() == b"content"
    assert unpacked.read_bytes() == b"damaged, and read first"


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
    site.serve("cifar10", [("a.tar.gz", content)], monkeypatch, md5=faults.get("md5"))
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
    monkeypatch.setitem(REMOTES, "cifar10", (Remote(f"http://127.0.0.1:{port}/a.tar.gz", ""),))
    with pytest.raises(ConnectionError, match=r"/a\.tar\.gz cannot be downloaded: .*refused"):
        download_dataset("cifar10", tmp_path)


def test_embedded_is_already_there(tmp_path):
    assert (download_dataset("embedded", tmp_path) / "LICENSE").is_file()


@pytest.mark.parametrize("name", ["folder", "imagenet"])
def test_unknown_name(tmp_path, name):
    match = f"one of fashion-mnist, cifar10, cifar100, embedded, got '{name}'"
    with pytest.raises(ValueError, match=match):
        download_dataset(name, tmp_path)
