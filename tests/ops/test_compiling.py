"""How the C sources would be compiled on machines that are not here."""

import pytest

from neural_similarity.ops.native import compiling

LINUX = ["-O3", "-march=native", "-fno-strict-aliasing", "-fopenmp", "-fPIC", "-shared"]


@pytest.mark.parametrize(
    ("system", "machine", "missing", "added"),
    [
        ("Linux", "x86_64", [], []),
        ("Linux", "aarch64", [], []),
        ("Darwin", "arm64", ["-march=native"], ["-mcpu=native", "-Xclang"]),
        ("Darwin", "x86_64", [], ["-Xclang"]),
        ("Windows", "AMD64", ["-fPIC"], []),
    ],
)
def test_flags(monkeypatch, system, machine, missing, added):
    monkeypatch.setattr(compiling.platform, "system", lambda: system)
    monkeypatch.setattr(compiling.platform, "machine", lambda: machine)
    assert sorted(compiling._flags()) == sorted({*LINUX, *added} - {*missing})


def test_the_first_error_is_told(monkeypatch, tmp_path):
    said = "x.c: note\nx.c:1: error: no such builtin\n1 error generated.\nfailed"
    failed = compiling.subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(compiling.subprocess, "run", lambda *_, **__: failed)
    told = compiling._compile(("ccache", "clang"), tmp_path / "library.so")
    assert told == "ccache clang fails: x.c:1: error: no such builtin"
