"""The C code is compiled once for all processes, and what cannot be loaded safely is not."""

import ctypes
import os
import shlex
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from compiler import in_c
from torch.testing import assert_close

from neural_similarity.functional import similarity_conv2d
from neural_similarity.ops import declines
from neural_similarity.ops.native import compiling

X = torch.zeros(1, 2, 4, 4)


@pytest.fixture
def fresh():
    """The library is looked for again, before and after."""
    compiling.library.cache_clear()
    yield
    compiling.library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_eager_runs(monkeypatch):
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert declines("compiled", X, 9) == "there is no C compiler (GCC, as cc, gcc or CC)"
    weight, m = torch.randn(3, 2, 3, 3), torch.randn(1, 9, 4, 4)
    y = similarity_conv2d(X, weight, m, padding=1)
    assert_close(y, similarity_conv2d(X, weight, m, padding=1, backend="eager"))


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling, "_FLAGS", ("--no-such-option",))
    with pytest.warns(UserWarning, match="run in their slower eager form: .* fails:"):
        assert "fails:" in declines("compiled", X, 9)
    assert "fails:" in declines("compiled", X, 9)  # without another warning


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("chosen", "told"), [("gcc '", True), ("  ", False), ("\n", False)])
def test_a_compiler_that_is_no_command_is_told(monkeypatch, chosen, told):
    monkeypatch.setenv("CC", chosen)
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    with pytest.warns(UserWarning, match="CC must be the command") if told else nullcontext():
        assert compiling.library.__wrapped__() == "there is no C compiler (GCC, as cc, gcc or CC)"


def test_compilers_are_tried_in_turn(monkeypatch, tmp_path):
    """On many machines cc is clang."""
    tried = []

    def compiles(compiler, _path):
        tried.append(shlex.join(compiler))
        return f"{tried[-1]} fails: no such builtin"

    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setenv("CC", "ccache gcc-13")
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(compiling, "_compile", compiles)
    with pytest.warns(UserWarning, match="no such builtin"):
        reason = declines("compiled", X, 9)
    assert reason == "; ".join(f"{c} fails: no such builtin" for c in tried)
    assert tried == ["/bin/ccache gcc-13", "/bin/cc", "/bin/gcc"]


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_cannot_be_run_is_no_error(monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling.subprocess, "Popen", full)
    with pytest.warns(UserWarning, match="cannot run: No space left on device"):
        assert "cannot run: No space left on device" in declines("compiled", X, 9)


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(monkeypatch, tmp_path):
    compiler, started = tmp_path / "slow", tmp_path / "pid"
    compiler.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {started}\nwait\n")
    compiler.chmod(0o700)
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling.shutil, "which", lambda _: str(compiler))
    monkeypatch.setattr(compiling, "_COMPILERS", ("cc",))
    monkeypatch.setattr(compiling, "_SECONDS", 1)
    monkeypatch.delenv("CC", raising=False)
    with pytest.warns(UserWarning, match="slow takes more than 1 seconds"):
        assert "takes more than 1 seconds" in declines("compiled", X, 9)
    while Path(f"/proc/{started.read_text().strip()}/exe").exists():  # until it is reaped
        time.sleep(0.01)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid", "slow"]


@pytest.fixture
def quickly(monkeypatch):
    """The library is made without optimisation, in a quarter of the time."""
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, "-O0"))


@pytest.mark.long
@pytest.mark.usefixtures("fresh", "quickly")
def test_a_second_process_finds_the_library(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    assert declines("compiled", X, 9) is None
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
    compiling.library.cache_clear()
    monkeypatch.setattr(compiling, "_compile", None)
    assert isinstance(compiling.library(), ctypes.CDLL)


def zeroed(file, content):
    file.write_bytes(bytes(len(content)))


def flipped(file, content):
    place = len(content) // 2
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """Compiling is copying what was compiled before, into a cache of the test's own."""
    whole = Path(compiling.library()._name).read_bytes()
    compiling.library.cache_clear()
    made = []

    def copy(command):
        made.append(command)
        Path(command[command.index("-o") + 1]).write_bytes(whole)

    monkeypatch.setattr(compiling, "_run", copy)
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    yield made
    compiling.library.cache_clear()


HARMS = {
    "empty": lambda file, _: file.touch(),
    "short": lambda file, content: file.write_bytes(content[:-1]),
    "half": lambda file, content: file.write_bytes(content[: len(content) // 2]),
    "zeroed": zeroed,
    "flipped": flipped,
    "writable": lambda file, content: (file.write_bytes(content), file.chmod(0o777)),
    "link": lambda file, _: file.symlink_to("/bin/sh"),
}


@in_c
@pytest.mark.parametrize("harm", HARMS)
def test_a_library_that_is_damaged_or_foreign_is_made_again(tmp_path, copied, harm):
    assert declines("compiled", X, 9) is None
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.unlink()  # What this process has loaded stays whole.
    HARMS[harm](file, content)
    compiling.library.cache_clear()
    assert declines("compiled", X, 9) is None
    assert len(copied) == 2
    (made,) = tmp_path.iterdir()
    assert compiling._is_ours(made)
    assert (made.name, made.read_bytes()) == (file.name, content)


@in_c
@pytest.mark.usefixtures("fresh")
def test_what_does_not_load_is_gone_and_told(monkeypatch, tmp_path):
    """As of a disk that filled up unnoticed."""
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)

    def unnoticed(command):
        Path(command[command.index("-o") + 1]).write_text("?")

    monkeypatch.setattr(compiling, "_run", unnoticed)
    with pytest.warns(UserWarning, match="library does not load: .*(too short|invalid)"):
        assert "does not load" in declines("compiled", X, 9)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("fresh", "quickly")
def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compiling.Path, "home", lambda: blocked)
    assert declines("compiled", X, 9) is None


def test_the_cache_is_where_the_system_has_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiling._cache_folder() == tmp_path / "neural_similarity"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(compiling.Path, "home", lambda: tmp_path)
    assert compiling._cache_folder() == tmp_path / ".cache" / "neural_similarity"


def test_the_cache_is_of_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiling._cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert compiling._cache_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(compiling.os, "geteuid", lambda: os.getuid() + 1)
    other = compiling._cache_folder()
    assert other != folder
    assert other.stat().st_mode & 0o777 == 0o700


def test_without_a_home_the_cache_is_gone_with_the_process(monkeypatch):
    """As in a container of an unknown user."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    kept = []
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compiling.Path, "home", no_home)
    monkeypatch.setattr(compiling.atexit, "register", lambda *call, **how: kept.append((call, how)))
    folder = compiling._cache_folder()
    assert folder.is_dir()
    (((remove, *what), how),) = kept
    remove(*what, **how)
    assert not folder.exists()


def test_other_sources_are_another_library(monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling, "_compile", lambda _, path: built.append(path) or "not built")
    compiling._built(("cc",))
    monkeypatch.setattr(compiling, "_SOURCES", compiling._SOURCES[:-1])
    compiling._built(("cc",))
    monkeypatch.setattr(compiling, "_processor", lambda: "another")
    compiling._built(("cc",))
    assert len(set(built)) == 3


def test_a_library_that_cannot_be_finished_is_none(monkeypatch, tmp_path):
    """It is compiled beside its place and moved there whole, so another process finds no part."""
    seen = []

    def interrupted(command):
        seen.append(compiling.Path(command[command.index("-o") + 1]))
        seen[0].write_bytes(b"a part")
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "_run", interrupted)
    path = tmp_path / "operators"
    with pytest.raises(KeyboardInterrupt):
        compiling._compile(("cc",), path)
    assert seen[0] != path
    assert list(tmp_path.iterdir()) == []
