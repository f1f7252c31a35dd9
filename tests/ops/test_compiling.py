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
    ],
)
def test_flags(monkeypatch, system, machine, missing, added):
    monkeypatch.setattr(compiling.platform, "system", lambda: system)
    monkeypatch.setattr(compiling.platform, "machine", lambda: machine)
    assert sorted(compiling._compiler_flags()) == sorted({*LINUX, *added} - {*missing})


def test_windows_has_the_eager_form(monkeypatch):
    monkeypatch.setattr(compiling.os, "name", "nt")
    assert compiling.load_library.__wrapped__() == "the C code needs Linux or macOS"
