import ctypes
import shutil
import subprocess
import sys

import pytest
import torch

from neural_similarity.lab.train import environment
from neural_similarity.lab.train.memory import keep_freed_memory


def git(folder, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_a_hash_behind_a_tag_too_and_dirty_where_code_differs(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "src/package/lab/train/x"))
    assert environment.checkout_commit() is None
    git(tmp_path, "init", "-q")
    code, record = tmp_path / "src" / "file", tmp_path / "results" / "file"
    for file in (code, record):
        file.parent.mkdir()
    for name in ("one", "two"):
        code.write_text(name)
        record.write_text(name)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", name)
        if name == "one":
            git(tmp_path, "tag", "-a", "v0.1.0", "-m", "a version")
    assert environment.checkout_commit() == git(tmp_path, "rev-parse", "HEAD")
    record.write_text("three")
    assert environment.checkout_commit() == git(tmp_path, "rev-parse", "HEAD")
    code.write_text("three")
    assert environment.checkout_commit() == git(tmp_path, "rev-parse", "HEAD") + "-dirty"


@pytest.mark.parametrize(("widest", "ends"), [("AVX2", True), ("AVX512", False)])
def test_processors_without_avx512_are_told_apart(monkeypatch, widest, ends):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: widest)
    assert environment.cpu_name().endswith("(AVX2)") is ends


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("bin/nsim", "nsim train"),
        ("src/neural_similarity/__main__.py", "nsim train"),
        ("benchmarks/__main__.py", "python -m benchmarks train"),
        ("-c", "nsim train"),
    ],
)
def test_the_command_is_as_one_types_it(monkeypatch, program, told):
    monkeypatch.setattr(environment.sys, "argv", [program, "train"])
    assert environment.command_line() == told


COUNT_FAULTS = """
import resource, torch
from neural_similarity.lab.train.memory import keep_freed_memory
torch.set_num_threads(1)

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.empty(2**24).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left = new_pages()
assert keep_freed_memory()
new_pages()
print(left, new_pages())
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's")
def test_freed_memory_is_used_again_without_new_pages():
    command = [sys.executable, "-c", COUNT_FAULTS]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    left, kept = map(int, output.split())
    assert 4 * kept < left


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
