"""The C code under the sanitizers of addresses and of undefined behaviour."""

import os
import subprocess
import sys

import pytest
from compiler import in_c
from reliability.counts import record

CALLS = int(os.environ.get("RELIABILITY_CALLS", "600"))
PROGRAM = """
import random, sys, torch
from pathlib import Path
from neural_similarity.ops import native, similarity_conv
from neural_similarity.ops.native import compiling
compiling._cache_folder = lambda: Path(sys.argv[1])
checks = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
compiling._FLAGS = (*compiling._FLAGS, "-O1", "-g", *checks)
chance = random.Random(2019)
torch.manual_seed(0)


def laid(tensor):
    match chance.randrange(4):
        case 0:
            return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
        case 1:
            return tensor.repeat_interleave(2, -1)[..., ::2]
        case 2:
            return torch.cat([tensor, tensor], 1)[:, : tensor.shape[1]]
    return tensor


def convolution():
    dims, groups = chance.choice([1, 2, 2, 3]), chance.choice([1, 1, 2, 7])
    kernel = [chance.randint(1, 3) for _ in range(dims)]
    stride, dilation = ([chance.randint(1, 3) for _ in range(dims)] for _ in range(2))
    padding = [chance.randint(0, 3) for _ in range(dims)]
    size = [chance.randint(1 + (k - 1) * d, 9) for k, d in zip(kernel, dilation)]
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1
           for n, p, d, k, s in zip(size, padding, dilation, kernel, stride)]
    each = chance.choice([1, 3, 4, 8, 16, 32, 33])
    filters = groups * chance.choice([each, 1, 5, 16, 33])
    dtype, taps = chance.choice([torch.float32, torch.bfloat16]), torch.Size(kernel).numel()
    images = chance.choice([1, 1, 2, 3])
    x = laid(torch.randn(images, groups * each, *size, dtype=dtype))
    weight = laid(torch.randn(filters, each, *kernel, dtype=dtype))
    blocks = chance.choice([None, ("channels", groups)])
    several, square = [groups] if blocks else [], chance.choice([1, 2])
    m = torch.randn(images, *several, *[taps] * square, *out)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, m)]
    y = similarity_conv(dims, *leaves, None, stride, padding, dilation, groups,
                        blocks=blocks, backend="compiled")
    y.float().square().sum().backward()


def pooling():
    n, c, h, w = (chance.randint(1, most) for most in (3, 40, 9, 9))
    x = laid(torch.randn(n, c, h, w, dtype=chance.choice([torch.float32, torch.bfloat16])))
    line = torch.randn(2, c)
    pooled = native.pool_relu(x, line)
    native.pool_chosen(torch.randn_like(x), x, line)
    native.pool_scattered(pooled, x, line)
    native.channel_sums(x, torch.randn(c))


for number in range(int(sys.argv[2])):
    torch.set_num_threads(chance.choice([1, 1, 2]))
    chance.choice([convolution, convolution, convolution, pooling])()
print("clean")
"""


@in_c
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers' libraries are loaded first")
def test_the_c_code_runs_clean(tmp_path):
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(CALLS)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    clean = (result.returncode, result.stdout) == (0, "clean\n")
    record("calls of the C code under ASan and UBSan", tried=CALLS, errors=int(not clean))
    assert clean, result.stderr[-4000:]
