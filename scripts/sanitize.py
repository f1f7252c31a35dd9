"""Run the C operators on random problems under ASan and UBSan, and compare them with float64.

    uv run python scripts/sanitize.py --calls 2000 --seed 1
    uv run python scripts/sanitize.py --flags="-mno-avx512bf16 -mno-avx512f"    # shorter vectors

Shapes, layouts, storage offsets, empty batches, threads, types and geometry are random. Forward,
backward and double backward are compared with torch's operations in float64: an error may be some
roundings of the same sum over absolute values. Needs GCC and its sanitizers' libraries.
"""

import argparse
import os
import random
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path

import torch

import neural_similarity as ns
from neural_similarity.functional import fold_kernel
from neural_similarity.ops.native import compiling
from neural_similarity.ops.similarity import similarity_conv
from neural_similarity.ops.window import Window

BUILD = Path(__file__).parents[1] / "build" / "sanitize"
CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g"
ROUNDINGS = 16
"""An error is at most this many roundings of the sum over absolute values."""
chance = random.Random()


def set_up_sanitizers(flags):
    """Begin this script again with the sanitizers' libraries and a compiler that uses them."""
    libraries = [
        subprocess.check_output(["gcc", f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in ("asan", "ubsan")
    ]
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = BUILD / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec gcc "$@" {CHECKS}\n')
    compiler.chmod(0o700)
    environment = os.environ | {
        "CC": f"{compiler} {flags}",
        "XDG_CACHE_HOME": str(BUILD),
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def arrange_memory(tensor):
    """The same numbers in a random layout, at a random place of their storage."""
    layout = chance.randrange(6) if tensor.dim() > 1 else -1
    if layout == 0:
        return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == 1:
        return tensor.repeat_interleave(2, -1)[..., ::2]
    if layout == 2:
        return torch.cat([tensor, tensor], 1)[:, tensor.shape[1] :]
    if layout == 3 and len(tensor):
        return tensor[:1].expand_as(tensor)
    if layout == 4:
        offset = chance.randint(1, 7)
        return torch.cat([tensor.new_zeros(offset), tensor.flatten()])[offset:].view(tensor.shape)
    return tensor


def draw_tensor(*shape, dtype=torch.float32):
    """A tensor to differentiate by."""
    return arrange_memory(torch.randn(*shape).to(dtype)).requires_grad_()


def derivatives_of(function, tensors, outgoing, tangents):
    """y, its gradients, and the gradients of their product with `tangents`, if there are any."""
    y = function(*tensors)
    grads = torch.autograd.grad(y, tensors, outgoing.to(y.dtype), create_graph=bool(tangents))
    if not tangents:
        return [y, *grads]
    total = sum((g * t.to(g.dtype)).sum() for g, t in zip(grads, tangents, strict=True))
    return [y, *grads, *torch.autograd.grad(total, tensors, materialize_grads=True)]


def compare_results(function, tensors, reference=None, *, twice=True):
    """Compare a function of C with a reference in float64.

    The reference is multilinear where second derivatives are compared as well, `twice`.
    """
    reference = reference or function
    exact = [t.detach().double().requires_grad_() for t in tensors]
    y = function(*tensors).detach()
    outgoing = arrange_memory(torch.randn(y.shape).to(y.dtype))
    tangents = [arrange_memory(torch.randn_like(t)) for t in tensors]
    tangents = tangents if twice and chance.random() < 0.3 else []
    results = derivatives_of(function, tensors, outgoing, tangents)
    rights = derivatives_of(reference, exact, outgoing, tangents)
    sizes = [t.detach().abs().requires_grad_() for t in exact]
    limits = derivatives_of(reference, sizes, outgoing.abs(), [t.abs() for t in tangents])
    rounding = ROUNDINGS * max(torch.finfo(t.dtype).eps for t in (y, *tensors))
    for place, (result, right, limit) in enumerate(zip(results, rights, limits, strict=True)):
        errors = (result.detach().double() - right.detach()).abs()
        worst = (
            float((errors / (rounding * limit.detach().abs() + 1e-30)).max())
            if errors.numel()
            else 0
        )
        if not worst <= 1:
            described = [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]
            raise AssertionError(f"result {place} is off by {worst:.3g} limits: {described}")


def random_geometry(dims):
    """Kernel size, stride, padding, dilation and an input size that the window fits into."""
    kernel = [chance.randint(1, 3 if dims > 1 else 9) for _ in range(dims)]
    if dims == 2 and chance.random() < 0.2:
        kernel = [chance.randint(1, 8) for _ in range(2)]
    stride, dilation = ([chance.choice([1, 1, 2, 3]) for _ in range(dims)] for _ in range(2))
    padding = [chance.randint(0, 3) for _ in range(dims)]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [
        max(1, span - 2 * p) + chance.randint(0, 9) for span, p in zip(spans, padding, strict=True)
    ]
    return tuple(kernel), (tuple(stride), tuple(padding), tuple(dilation)), size


def call_convolution():
    """A dynamic similarity, of groups and blocks."""
    dims, groups = chance.choice([1, 2, 2, 2, 3]), chance.choice([1, 1, 2, 7])
    kernel, geometry, size = random_geometry(dims)
    each = chance.choice([1, 2, 3, 4, 8, 16, 32, 33, 64])
    filters = groups * chance.choice([each, 1, 5, 16, 33])
    dtype = chance.choice([torch.float32, torch.bfloat16])
    images, square = chance.choice([0, 1, 1, 2, 3]), chance.choice([1, 2])
    window = Window(kernel, *geometry)
    count = chance.choice([None, None, groups, groups * each])
    blocks, several = (None, []) if count is None else (("channels", count), [count])
    x = draw_tensor(images, groups * each, *size, dtype=dtype)
    weight = draw_tensor(filters, each, *kernel, dtype=dtype)
    m = draw_tensor(images, *several, *[window.taps] * square, *window.output_size(size))

    def function(*tensors, backend="compiled"):
        return similarity_conv(
            dims, *tensors, None, *geometry, groups, blocks=blocks, backend=backend
        )

    compare_results(function, [x, weight, m], lambda *exact: function(*exact, backend="reference"))


def call_fold():
    """W M."""
    dims = chance.choice([1, 2, 2, 3])
    kernel = [chance.randint(1, {1: 19, 2: 8, 3: 4}[dims]) for _ in range(dims)]
    taps = torch.Size(kernel).numel()
    weight = draw_tensor(chance.choice([1, 2, 5, 33]), chance.choice([1, 3, 16, 40]), *kernel)
    dtype = chance.choice([torch.float32, torch.bfloat16])
    m = arrange_memory(torch.randn(1, *[taps] * chance.choice([1, 2])))[0]
    compare_results(
        lambda *tensors: fold_kernel(*tensors, dtype=dtype),
        [weight, m.requires_grad_()],
        fold_kernel,
    )


def call_layer():
    """A whole layer, forward and backward in one call each, of which some parts are frozen."""
    dims, groups = chance.choice([1, 2, 2, 2, 3]), chance.choice([1, 1, 1, 2, 8])
    kernel, (stride, padding, dilation), size = random_geometry(dims)
    structure = ns.Full() if chance.random() < 0.4 and torch.Size(kernel).numel() < 28 else None
    hidden = chance.choice([1, 3, 16, 40])
    sphere, pooled = ns.SphereNet(hidden=hidden), ns.Pooled(hidden=hidden)
    predictor = chance.choice([sphere, ns.Light(reduction=hidden), pooled, pooled])
    each, dtype = chance.choice([1, 3, 4, 8, 33]), chance.choice([torch.float32, torch.bfloat16])
    channels, filters = groups * each, groups * chance.choice([each, 1, 5, 33])
    similar = getattr(ns, f"Conv{dims}d")(
        channels, filters, kernel, stride, padding, dilation, groups,
        similarity=ns.Dynamic(structure or ns.Diagonal(), predictor),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in similar.similarity.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    similar.to(dtype)
    for parameter in similar.parameters():
        parameter.requires_grad_(chance.random() < 0.8)
    x = draw_tensor(chance.choice([0, 1, 3]), channels, *size, dtype=dtype)
    found = []
    for copy, given in ((similar, x), (deepcopy(similar).double(), x.detach().double())):
        inputs = [t for t in (given.requires_grad_(), *copy.parameters()) if t.requires_grad]
        y = copy(given)
        found.append([y, *torch.autograd.grad(y.sum(), inputs)])
    for result, right in zip(*found, strict=True):
        limit = (1e-4 if dtype == torch.float32 else 0.1) * (1 + right.norm())
        if not (result.double() - right).norm() <= limit:
            raise AssertionError(
                f"off by {(result - right).norm():.3g}, limit {limit:.3g}: {similar}"
            )


KINDS = {call_convolution: 8, call_fold: 2, call_layer: 4}
"""What is called, and how often."""


def main(calls, seed):
    """Call and compare."""
    chance.seed(seed)
    torch.manual_seed(seed)
    counts = Counter()
    for number in range(calls):
        torch.set_num_threads(chance.choice([1, 1, 2]))
        (kind,) = chance.choices(list(KINDS), KINDS.values())
        try:
            kind()
        except Exception as error:
            error.add_note(f"call {number} of seed {seed}: {kind.__name__}")
            raise
        counts[kind.__name__] += 1
    sys.stdout.write(f"clean: {calls} calls, seed {seed}, {dict(counts)}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=600)
    parser.add_argument("--seed", type=int, default=2019)
    parser.add_argument("--flags", default="", help="further flags of the compiler")
    options = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        set_up_sanitizers(options.flags)
    library = compiling.load_library()
    if not hasattr(library, "__asan_init"):  # Another compiler may have succeeded.
        sys.exit(f"no compiler made the C code with its checks: {library}")
    main(options.calls, options.seed)
