"""Where a run computes, in which precision, and what its folder says of it."""

import ctypes
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tiny_images import TINY, make_images
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.case import Case
from benchmarks.compare import Entrant, compare
from neural_similarity.lab.data import Preprocess
from neural_similarity.lab.session import train
from neural_similarity.lab.train import environment, predict_logits, runtime
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.runtime import choose_runtime


@pytest.mark.parametrize("name", ["cud", "meta", "cuda:one"])
def test_other_devices_are_errors(name):
    with pytest.raises(ValueError, match=f"`device` must be auto, cpu, .*, got '{name}'"):
        choose_runtime(name)


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_devices_are_taken_where_torch_has_them(monkeypatch, kind):
    module = getattr(torch, kind)
    monkeypatch.setattr(module, "device_count", lambda: 2)
    monkeypatch.setattr(module, "is_available", lambda: True, raising=False)
    chosen = choose_runtime(kind, "fp32")
    assert chosen.device.type == kind
    assert chosen.sum_dtype == (torch.float32 if kind == "mps" else torch.float64)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_runtime(kind, "fp32").device.index == (None if kind == "mps" else 1)
    with pytest.raises(ValueError, match=f"`device` must be present, got '{kind}:2', .* 2 "):
        choose_runtime(f"{kind}:2", "fp32")
    monkeypatch.setattr(module, "is_available", lambda: False, raising=False)
    with pytest.raises(ValueError, match="torch finds 0"):
        choose_runtime(kind, "fp32")


@pytest.mark.parametrize(
    ("supported", "bf16_seconds", "chosen"),
    [(True, 0.5, "bf16"), (True, 0.9, "fp32"), (True, 2.0, "fp32"), (False, 0.5, "fp32")],
)
def test_auto_precision_is_the_faster_one(monkeypatch, supported, bf16_seconds, chosen):
    seconds = {torch.bfloat16: bf16_seconds, torch.float32: 1.0}
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(runtime, "_convolution_seconds", lambda dtype, _: seconds[dtype])
    assert choose_runtime("cpu").precision == chosen
    assert choose_runtime("cpu", "bf16").precision == "bf16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_convolution_is_timed_with_the_threads_of_the_run(dtype, monkeypatch):
    told, count = [], torch.get_num_threads() + 1

    def conv2d(images, kernel, **_):
        told.append((images.dtype, kernel.dtype, torch.get_num_threads()))

    monkeypatch.setattr(F, "conv2d", conv2d)
    runtime._convolution_seconds.cache_clear()
    assert runtime._convolution_seconds(dtype, count) > 0
    runtime._convolution_seconds.cache_clear()
    assert set(told) == {(dtype, dtype, count)}


def is_tuning():
    return torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("tiny")
def test_training_and_benchmarks_let_cudnn_tune(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    told = []
    hook = register_module_forward_pre_hook(lambda *_: told.append(is_tuning()))
    with hook:
        train(TINY, out=tmp_path / "run", device="cpu")
    assert told
    assert all(told)
    timed = []
    seconds = {"forward": lambda: timed.append(is_tuning())}
    one = Entrant(name="one", errors=lambda: {torch.float32: 0.0}, calls=seconds)
    compare({}, [one], Case(runtime=choose_runtime("cpu", "fp32"), width=0.1, batch=2, rounds=3))
    assert timed
    assert all(timed)
    assert not is_tuning()


@pytest.mark.usefixtures("tiny")
def test_a_run_times_with_its_own_threads(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(runtime, "_bf16_is_fast", lambda _, count: told.append(count))
    train(replace(TINY, precision="auto", threads=3), out=tmp_path / "run", device="cpu")
    assert told == [3]


def test_scores_are_computed_in_the_precision_of_the_run():
    images, runtime = make_images(4, 3), choose_runtime("cpu", "bf16")
    kinds, model = [], nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())
    model[0].register_forward_hook(lambda _m, _x, y: kinds.append(y.dtype))
    preprocess = Preprocess.raw_values(1)
    assert predict_logits(model, images, preprocess, runtime).dtype == torch.float32
    assert kinds == [torch.bfloat16]


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
