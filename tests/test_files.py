"""The laws of the one writer and the one reader."""

import os
import resource
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from neural_similarity.files import (
    check_target,
    file_digest,
    new_file,
    open_file,
    read_bytes,
    read_json,
    read_text,
    regular_file,
    remove_file,
    write_json,
    write_text,
)
from neural_similarity.lab.folders import append_text, hold_lock, new_folder, remove_folder


def read_opened(path, within=None):
    with open_file(path, within=within) as file:
        return file.read()


CODE = """
import sys
from pathlib import Path
from neural_similarity.files import new_file, write_text
from neural_similarity.lab.folders import new_folder
path, letter = Path(sys.argv[1]), sys.argv[2]
for _ in range(60):
    write_text(path / "file", letter * 10_000)
    with new_folder(path / letter) as folder:
        write_text(folder / "file", letter * 10_000)
"""
READERS = [read_opened, regular_file, read_bytes, read_text, read_json, file_digest]


def folder(path):
    path.mkdir()
    (path / "file").touch()


def link(path):
    target = path.with_name("target")
    target.write_text("private")
    path.symlink_to(target)


def listener(path):
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(path))  # The whole path may be too long for a socket.


OTHERS = {
    "folder": folder,
    "link": link,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "pipe": os.mkfifo,
    "socket": listener,
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
}


@pytest.fixture(params=OTHERS)
def other(request, tmp_path, monkeypatch):
    """A path that is no regular file, and what it is."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "other"
    try:
        OTHERS[request.param](path)
    except PermissionError:
        pytest.skip("only root makes devices")
    return path, request.param.partition(" ")[0]


def contents(place):
    """Names, kinds and contents of all that is below a folder."""
    found = sorted(place.rglob("*"))
    return {
        str(path.relative_to(place)): (path.lstat().st_mode, path.lstat().st_ino)
        if not path.is_file() or path.is_symlink()
        else (path.lstat().st_mode, path.read_bytes())
        for path in found
    }


@contextmanager
def full_disk(size):
    """No file gets more than `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_folder(path):
    with new_folder(path) as fresh:
        write_text(fresh / "file", "text")


def write_half(path):
    with new_file(path) as file:
        file.write(b"half")
        raise KeyError


def write_half_folder(path):
    with new_folder(path) as fresh:
        write_text(fresh / "half", "half")
        raise KeyError


def write_long(path):
    with new_folder(path) as fresh, new_file(fresh / "file") as file:
        file.write(bytes(4097))


def write_lines(path):
    append_text(path, "new")


def write_locked(path):
    with hold_lock(path, "taken") as file:
        file.write(b"new")


@pytest.mark.parametrize(
    ("write", "what"),
    [
        *((w, "regular file") for w in (write_half, write_lines, write_locked)),
        (write_folder, "folder"),
    ],
)
def test_only_a_file_gives_way_to_a_file_and_a_folder_to_a_folder(other, write, what):
    path, kind = other
    if kind == what:
        write(path)
        assert [child.name for child in path.iterdir()] == ["file"]
        return
    before = contents(path.parent)
    with pytest.raises(ValueError, match=f"other must be a {what} or not exist, got a {kind}"):
        write(path)
    assert contents(path.parent) == before


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_mode_is_that_of_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "deep" / "file", "text")
        append_text(tmp_path / "lines", "text")
        write_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    for name, mode in {"deep/file": 0o666, "lines": 0o666, "folder": 0o777, "deep": 0o777}.items():
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode & ~mask, name


def test_an_error_leaves_what_was_there(tmp_path):
    write_json(tmp_path / "x.json", {"steps": 6})
    before = contents(tmp_path)
    with pytest.raises(KeyError):
        write_half(tmp_path / "x.json")
    with pytest.raises(KeyError):
        write_half_folder(tmp_path / "run")
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_what_was_there_and_names_the_file(tmp_path):
    write_text(tmp_path / "x", "old")
    append_text(tmp_path / "lines", "old\n")
    before = contents(tmp_path)
    for write, name in ((write_text, "x"), (write_text, "y")):
        with full_disk(4096), pytest.raises(OSError, match=rf"File too large: '.*/{name}'"):
            write(tmp_path / name, "new" * 4096)
    with full_disk(4096), pytest.raises(OSError, match=r"File too large: '.*/file'"):
        write_long(tmp_path / "z")
    assert contents(tmp_path) == before
    with full_disk(4096), pytest.raises(OSError, match=r"File too large: '.*/lines'"):
        append_text(tmp_path / "lines", "new" * 4096)


def test_other_names_stay_bit_for_bit(tmp_path):
    hidden = (".x.partial", ".x.12a.partial", ".x..partial", ".x.012.partial", ".y.12.partial")
    others = ("x.12.partial", ".x.12.partial.bak", ".x.1.2.partial", ".x.\u0662.partial")
    for name in (*hidden, *others, "xx", ".xx.12.partial", "x.bak"):
        (tmp_path / name).write_text("others'")
    (tmp_path / ".x.7.partial").symlink_to("x.bak")
    before = contents(tmp_path)
    (tmp_path / ".x.12.partial").write_text("left from a killed process")
    folder(tmp_path / ".x.13.partial")
    with new_file(tmp_path / "x") as file:  # Of another process, as far as the next can see.
        write_text(tmp_path / "x", "new")
        assert Path(file.name).exists()
        assert contents(tmp_path).keys() == {*before, "x", Path(file.name).name}
        file.write(b"newer")
    assert (tmp_path / "x").read_text() == "newer"
    (tmp_path / "x").unlink()
    write_folder(tmp_path / "x")
    remove_folder(tmp_path / "x")
    assert contents(tmp_path) == before


@pytest.mark.long
def test_processes_that_write_to_one_path_never_fail(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    started = [subprocess.Popen([*command, letter]) for letter in "abca"]
    assert [process.wait() for process in started] == [0] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "file"]
    content = (tmp_path / "file").read_text()
    assert content in {letter * 10_000 for letter in "abc"}


def test_threads_that_write_to_one_path_never_fail(tmp_path):
    texts = [letter * 10_000 for letter in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(write_text, tmp_path / "file"), 30 * texts))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() in texts


def test_names_are_as_long_as_the_disk_allows_hidden_ones_included(tmp_path):
    most = os.pathconf(tmp_path, "PC_NAME_MAX") - len("..0123456789.partial")
    for name in ("x" * most, "ä" * (most // 2)):
        write_text(tmp_path / name, "text")
        write_folder(tmp_path / "f" / name)
    before = contents(tmp_path)
    for name in ("x" * (most + 1), "ä" * (most // 2 + 1), "x" * 5000):
        length = len(name.encode())
        reason = rf"must have a name of at most {most} bytes, got {length}"
        with pytest.raises(ValueError, match=reason):
            write_text(tmp_path / name, "text")
        with pytest.raises(ValueError, match=reason):
            check_target(tmp_path / "missing" / name, folder=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("read", READERS)
def test_only_a_regular_file_is_read(other, read):
    path, kind = other
    if kind == "link":
        path.unlink()
        path.symlink_to("/dev/zero")
        kind = "device"
    with pytest.raises(ValueError, match=f"other must be a regular file, got a {kind}"):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_a_link_to_a_file_is_followed_but_not_out_of_a_folder(tmp_path, read):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for place in (run, elsewhere):
        place.mkdir()
        write_json(place / "file", [1])
    (run / "inside").symlink_to("file")
    (run / "outside").symlink_to(elsewhere / "file")
    (run / "folder").symlink_to(elsewhere)
    (tmp_path / "linked").symlink_to(run)
    for within in (run, tmp_path / "linked"):
        for name in ("file", "inside"):
            read(run / name, within=within)
            read(tmp_path / "linked" / name, within=within)
        for name in ("outside", "folder/file", "../elsewhere/file"):
            with pytest.raises(ValueError, match=r"must lie in .*(run|linked), got a link to"):
                read(run / name, within=within)
    read(run / "outside")
    for missing in (run / "none", run / "file" / "none"):
        with pytest.raises(FileNotFoundError, match="none is missing"):
            read(missing, within=run)


def test_a_file_of_another_size_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", size=5, most=5) == b"12345"
    with pytest.raises(ValueError, match="file must hold 4 bytes, got 5"):
        read_bytes(tmp_path / "file", size=4)
    with pytest.raises(ValueError, match="file must hold at most 4 bytes, got 5"):
        read_text(tmp_path / "file", most=4)
    (tmp_path / "file").write_text("9" * 5000)
    with pytest.raises(ValueError, match="file must be JSON, got Exceeds the limit"):
        read_json(tmp_path / "file")


def test_only_files_and_folders_themselves_are_removed(other):
    path, kind = other
    before = contents(path.parent)
    remove_file(path)
    assert contents(path.parent) == before
    remove_folder(path)
    assert (contents(path.parent) == before) == (kind != "folder")
    remove_file(path.with_name("none"))
    remove_folder(path.with_name("none"))


@pytest.mark.parametrize("write", [write_text, append_text])
def test_text_that_is_no_utf8_is_refused_by_the_name_of_the_file(tmp_path, write):
    with pytest.raises(ValueError, match=r"some\.txt takes text in UTF-8, got .*surrogates"):
        write(tmp_path / "some.txt", "a name\udcff")
    assert not list(tmp_path.iterdir())
