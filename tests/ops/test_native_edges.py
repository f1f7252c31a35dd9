"""The C code where memory ends, where numbers lie at odd addresses, and where they are none."""

import ctypes
import subprocess
import sys
from itertools import product

import pytest
import torch
from against_float64 import error
from compiler import in_c

from neural_similarity.functional import similarity_conv2d
from neural_similarity.ops import native
from neural_similarity.ops.native import compiling

FAILING = """
#include <stdlib.h>
int allocations_left = 1 << 30;
static void *scarce(size_t alignment, size_t size) {
    return __sync_fetch_and_sub(&allocations_left, 1) > 0 ? aligned_alloc(alignment, size) : 0;
}
#define aligned_alloc scarce
"""


def convolved(kind):
    """y and its gradients in C."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 33, 4, 5), torch.randn(3, 33, 2, 2)
    m = 1 + 0.1 * torch.randn(3, *([4] if kind == "diagonal" else [4, 4]), 3, 4)
    leaves = [t.requires_grad_() for t in (x, weight, m)]
    y = similarity_conv2d(*leaves, backend="compiled")
    yield y
    yield from torch.autograd.grad(y.square().sum(), leaves)


@pytest.mark.long
@in_c
def test_without_memory_it_raises_whichever_piece_is_missing(monkeypatch, tmp_path):
    compiling.load_library()  # The usual one, for this process, before it would be a scarce one.
    (tmp_path / "scarce.h").write_text(FAILING)
    scarce = "-O0", "-include", str(tmp_path / "scarce.h")
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, *scarce))
    library = compiling.load_library.__wrapped__()
    left = ctypes.c_int.in_dll(library, "allocations_left")
    for kind, threads in product(("diagonal", "full"), (1, 2)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        right = list(convolved(kind))
        with monkeypatch.context() as patch:
            patch.setattr(native, "load_library", lambda: library)
            there = left.value = 0
            while (found := convolved_or_none(kind)) is None:
                there = left.value = there + 1
        assert there == 2 + 2 * threads + 4 + 8 * threads
        for ours, theirs in zip(found, right, strict=True):
            assert error(ours, theirs.double()) < 1e-6


def convolved_or_none(kind):
    try:
        return list(convolved(kind))
    except MemoryError:
        return None


CALL = """
import torch
from neural_similarity.ops.native import compiling
trap = "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"
compiling._FLAGS = (*compiling._FLAGS, "-O0", *trap)
compiling._cache_folder = lambda: compiling.Path({folder!r})
from neural_similarity.functional import similarity_conv2d
x, weight = (torch.ones(2, 33, 4, 5, dtype=torch.bfloat16) for _ in range(2))
for taps in ((20,), (20, 20)):
    leaves = [t.requires_grad_() for t in (x, weight, torch.ones(2, *taps, 1, 1))]
    y = similarity_conv2d(*leaves, backend="compiled")
    y.float().sum().backward()
print(y.sum().item())
"""


@pytest.mark.long
@in_c
@pytest.mark.skipif(sys.platform != "linux", reason="the trap is a signal")
def test_numbers_of_two_bytes_may_lie_at_odd_addresses(tmp_path):
    """Odd channels put every other position of bfloat16 maps between words."""
    command = [sys.executable, "-c", CALL.format(folder=str(tmp_path))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("compiling the C operators")
    assert float(result.stdout) > 0


@in_c
@pytest.mark.parametrize("bits", [-1, 0x7FFFFFFF, 0x7F800001, 0x7FC00000])
@pytest.mark.parametrize("channels", [32, 33])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_no_pattern_of_not_a_number_is_rounded_to_one(kind, channels, bits):
    x, weight = torch.ones(1, channels, 3, 3), torch.ones(1, channels, 1, 1)
    m = torch.full((1, 1, 3, 3), bits, dtype=torch.int32).view(torch.float32)
    m = m if kind == "diagonal" else m.unsqueeze(1)
    for given in ((x, m), (x * torch.nan, torch.ones_like(m))):
        y = similarity_conv2d(given[0].bfloat16(), weight.bfloat16(), given[1], backend="compiled")
        assert y.isnan().all()
