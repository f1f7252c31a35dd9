"""The C code is compiled once for all processes, and what cannot be loaded safely is not.

Compilers are scripts in a folder that PATH names; one copies a library that was made before.
"""

import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from compiler import in_c
from torch.testing import assert_close

from neural_similarity.functional import similarity_conv2d
from neural_similarity.hidden import hidden_folder
from neural_similarity.ops import declines
from neural_similarity.ops.native import compiling

X = torch.zeros(1, 2, 4, 4)
NO_COMPILER = "there is no C compiler (GCC, as cc, gcc or CC)"
WRITING = 'echo call >> "$0.log"\nwhile [ "$1" != -o ]; do shift; done\n'


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """All programs there are, no compiler as yet, and a cache of the test's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("cp", "sleep"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv("CC", raising=False)
    compiling.load_library.cache_clear()
    yield folder
    compiling.load_library.cache_clear()


def add_compiler(folder, script, name="cc", shell="/bin/sh"):
    path = folder / name
    path.write_text(f"#!{shell}\n{script}")
    path.chmod(0o700)
    return path


@pytest.fixture
def whole():
    """The library of this machine."""
    return Path(compiling.load_library()._name)


@pytest.fixture
def copying(whole, programs):
    """A compiler that copies it; its calls are the lines of a file beside it."""
    return add_compiler(programs, f'{WRITING}cp "{whole}" "$2"').with_name("cc.log")


def cached():
    return [path for path in compiling._cache_folder().iterdir() if path.is_file()]


@pytest.mark.usefixtures("programs")
def test_without_a_compiler_eager_runs():
    assert declines("compiled", X, 9) == NO_COMPILER
    weight, m = torch.randn(3, 2, 3, 3), torch.randn(1, 9, 4, 4)
    y = similarity_conv2d(X, weight, m, padding=1)
    assert_close(y, similarity_conv2d(X, weight, m, padding=1, backend="eager"))


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(("chosen", "told"), [("gcc '", True), ("  ", False), ("\n", False)])
def test_a_compiler_that_is_no_command_is_told(monkeypatch, chosen, told):
    monkeypatch.setenv("CC", chosen)
    with pytest.warns(UserWarning, match="CC must be the command") if told else nullcontext():
        assert compiling.load_library() == NO_COMPILER


def test_compilers_are_tried_in_turn_and_quoted_in_one_warning(programs, monkeypatch):
    """On many machines cc is clang; what is told is a compiler's first error."""
    failing = "echo 'x.c: note\nx.c:1: error: no such builtin\n1 generated' >&2\nexit 1"
    ccache, cc = (add_compiler(programs, failing, name) for name in ("ccache", "cc"))
    gcc = add_compiler(programs, "", "gcc", shell="/nowhere")
    monkeypatch.setenv("CC", "ccache gcc-13")
    with pytest.warns(UserWarning, match="run in their slower eager form: .* fails: ") as told:
        reasons = [declines("compiled", X, 9) for _ in range(2)]
    assert len(told) == 1
    first, second, third = reasons[1].split("; ")
    assert first == f"{ccache} gcc-13 fails: x.c:1: error: no such builtin"
    assert second == f"{cc} fails: x.c:1: error: no such builtin"
    assert third.startswith(f"{gcc} cannot run: ")


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(programs, monkeypatch):
    compiler = add_compiler(programs, 'sleep 1000 & echo $! > "$0.pid"\nwait\n')
    monkeypatch.setattr(compiling, "_SECONDS", 1)
    with pytest.warns(UserWarning, match="cc takes more than 1 seconds"):
        assert "takes more than 1 seconds" in declines("compiled", X, 9)
    started = compiler.with_name("cc.pid").read_text().strip()
    while Path(f"/proc/{started}/exe").exists():  # until it is reaped
        time.sleep(0.01)
    assert not list(compiling._cache_folder().iterdir())


def flipped(file, content):
    place = len(content) // 2
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def linked(file, content):
    """To what is whole now, and may change at any time."""
    other = file.parent.with_name("elsewhere")
    other.write_bytes(content)
    file.symlink_to(other)


HARMS = {
    "none": lambda file, content: (file.write_bytes(content), file.chmod(0o700)),
    "empty": lambda file, _: file.touch(),
    "short": lambda file, content: file.write_bytes(content[:-1]),
    "zeroed": lambda file, content: file.write_bytes(bytes(len(content))),
    "flipped": flipped,
    "writable": lambda file, content: (file.write_bytes(content), file.chmod(0o777)),
    "link": linked,
}


@in_c
@pytest.mark.parametrize("harm", HARMS)
def test_a_library_is_made_once_and_again_where_it_is_damaged_or_foreign(copying, harm):
    """Another process finds it, as this one does when it looks again."""
    assert declines("compiled", X, 9) is None
    (file,) = cached()
    content = file.read_bytes()
    file.unlink()  # What this process has loaded stays whole.
    HARMS[harm](file, content)
    compiling.load_library.cache_clear()
    assert declines("compiled", X, 9) is None
    assert copying.read_text().count("call") == (1 if harm == "none" else 2)
    (made,) = cached()
    assert compiling._is_ours(made)
    assert (made.name, made.read_bytes()) == (file.name, content)


def test_what_does_not_load_is_gone_and_told(programs):
    """As of a disk that filled up unnoticed."""
    add_compiler(programs, f'{WRITING}echo "?" > "$2"')
    with pytest.warns(UserWarning, match="library does not load: .*(too short|invalid)"):
        assert "does not load" in declines("compiled", X, 9)
    assert not list(compiling._cache_folder().iterdir())


def test_the_cache_is_where_the_system_has_its_own_and_of_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiling._cache_folder() == tmp_path / ".cache" / "neural_similarity"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiling._cache_folder()
    assert folder == tmp_path / "neural_similarity"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert compiling._cache_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    mine = compiling.os.geteuid()
    monkeypatch.setattr(compiling.os, "geteuid", lambda: mine + 1)
    other = compiling._cache_folder()
    assert other != folder
    assert other.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("error", [RuntimeError("no home directory"), PermissionError("denied")])
def test_without_a_home_the_cache_is_gone_with_the_process(monkeypatch, error):
    """As in a container of an unknown user, or where nothing can be written."""

    def no_home():
        raise error

    kept = []
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compiling.Path, "home", no_home)
    monkeypatch.setattr(compiling.atexit, "register", lambda *call, **how: kept.append((call, how)))
    folder = compiling._cache_folder()
    assert folder.is_dir()
    (((remove, *what), how),) = kept
    remove(*what, **how)
    assert not folder.exists()


@in_c
@pytest.mark.usefixtures("copying")
def test_only_a_compiler_is_announced_in_one_line(caplog):
    for lines in (1, 0):
        caplog.clear()
        compiling.load_library.cache_clear()
        assert declines("compiled", X, 9) is None
        assert len(caplog.messages) == lines
        assert all("compiling the C operators" in line for line in caplog.messages)


def test_other_sources_and_processors_have_another_library(copying, monkeypatch):
    for name, other in (
        ("_SOURCES", compiling._SOURCES),
        ("_SOURCES", compiling._SOURCES[:-1]),
        ("_processor_features", lambda: "another"),
    ):
        monkeypatch.setattr(compiling, name, other)
        compiling.load_library.cache_clear()
        assert declines("compiled", X, 9) is None
    assert copying.read_text().count("call") == len(cached()) == 3


def test_a_relative_cache_is_ignored(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert compiling._cache_folder() == tmp_path / "home" / ".cache" / "neural_similarity"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_cache_that_is_a_link_is_named_and_its_target_untouched(monkeypatch, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o755)
    (tmp_path / "neural_similarity").symlink_to(target)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(UserWarning, match="neural_similarity, which must be a folder, not a link"):
        folder = compiling._cache_folder()
    assert folder.parent != tmp_path
    assert target.stat().st_mode & 0o777 == 0o755
    assert not list(target.iterdir())


def test_a_compilation_that_is_interrupted_leaves_nothing(monkeypatch, tmp_path):
    """It is compiled beside its place and moved there whole, so another process finds no part."""

    def interrupted(command):
        Path(command[command.index("-o") + 1]).write_bytes(b"a part")
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "_run_compiler", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiling._compile_sources(("cc",), tmp_path / "operators")
    assert list(tmp_path.iterdir()) == []


LINUX = ["-O3", "-march=native", "-fno-strict-aliasing", "-fopenmp", "-fPIC", "-shared"]


@pytest.mark.parametrize(
    ("system", "machine", "missing", "added"),
    [
        ("Linux", "x86_64", [], []),
        ("Linux", "aarch64", [], []),
        ("Darwin", "arm64", ["-march=native"], ["-mcpu=native", "-Xclang"]),
        ("Darwin", "x86_64", [], ["-Xclang"]),
    ],
)
def test_flags(monkeypatch, system, machine, missing, added):
    monkeypatch.setattr(compiling.platform, "system", lambda: system)
    monkeypatch.setattr(compiling.platform, "machine", lambda: machine)
    assert sorted(compiling._compiler_flags()) == sorted({*LINUX, *added} - {*missing})


def test_windows_has_the_eager_form(monkeypatch):
    monkeypatch.setattr(compiling.os, "name", "nt")
    assert compiling.load_library.__wrapped__() == "the C code needs Linux or macOS"


@in_c
@pytest.mark.usefixtures("copying")
@pytest.mark.parametrize("made", [False, True])
def test_what_a_killed_compilation_left_is_removed(made):
    """Of this library or another one, whether or not it is compiled again; what is in use stays."""
    folder = compiling._cache_folder()
    if made:
        assert declines("compiled", X, 9) is None
        compiling.load_library.cache_clear()
    with hidden_folder(folder / "operators") as used:
        left, own = folder / ".operators.1.partial", folder / "tmpown"
        for path in (left, own):
            path.mkdir()
            (path / "operators.so").write_bytes(b"a part")
        assert declines("compiled", X, 9) is None
        assert sorted(p for p in folder.iterdir() if p.is_dir()) == sorted([used, own])
