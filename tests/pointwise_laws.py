"""What the kernels of a predictor's pointwise parts must obey, on a GPU or interpreted."""

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from neural_similarity.ops import pointwise
from neural_similarity.ops.window import Window


@dataclass(frozen=True)
class Maps:
    """Maps that no tile divides, and a window over them."""

    channels: int
    size: tuple[int, ...]
    window: Window
    batch: int = 2
    channels_last: bool = True

    def __str__(self) -> str:
        return f"{self.channels}x{self.size}"

    def random(self, channels, dtype, device):
        x = torch.randn(self.batch, channels, *self.size, dtype=torch.float64).to(dtype).to(device)
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x.detach().requires_grad_()


MAPS = [
    Maps(5, (4, 3), Window((3, 3), (1, 1), (1, 1), (1, 1))),
    Maps(33, (5, 7), Window((3, 2), (2, 3), (1, 2), (1, 1)), channels_last=False),
    Maps(130, (6, 5), Window((3, 3), (1, 1), (2, 0), (2, 1)), batch=1),
    Maps(20, (13,), Window((3,), (2,), (1,), (1,))),
    Maps(9, (4, 8), Window((3, 3), (1, 1), (1, 1), (1, 1))),  # of places that are joined
]


def norms(x, window, eps, factor):
    """The factors of `pointwise.patch_factors` by unfolded patches, in float64."""
    x = x if x.dim() == 4 else x.unsqueeze(2)
    sides = [(flat, *side)[-2:] for flat, side in zip((1, 1, 0, 1), window, strict=True)]
    size, stride, padding, dilation = sides
    patches = F.unfold(x, size, dilation, padding, stride)
    return factor / (patches.square().sum(1, keepdim=True) + eps).sqrt()


def close(found, expected, dtype):
    expected = expected.reshape(found.shape)
    scale = expected.abs().max()
    limit = (16 if dtype == torch.float32 else 4) * torch.finfo(dtype).eps * scale
    assert (found.detach().double().cpu() - expected.cpu()).abs().max() <= limit


def check_function(ours, right, operands, *dtypes):
    """A function and its gradients are those in float64, in the digits of `dtypes`."""
    found, truth = ours(*operands), [t.detach().double().cpu().requires_grad_() for t in operands]
    result, expected = dtypes[0], right(*truth)
    assert found.dtype == result
    grad = torch.randn(found.shape).to(result)
    gradients = torch.autograd.grad(found, operands, grad.to(found.device))
    wanted = torch.autograd.grad(expected, truth, grad.double().reshape(expected.shape))
    for one, other, dtype in zip((found, *gradients), (expected, *wanted), dtypes, strict=True):
        close(one, other, dtype)


def check_factors(maps, dtype, device):
    given = maps.window, 0.1, 3.0
    check_function(
        lambda x: pointwise.patch_factors(x, *given),
        lambda x: norms(x, *given),
        [maps.random(maps.channels, dtype, device)],
        *(torch.float32, dtype),
    )


def check_scaled(maps, dtype, device, rectified):
    factors = maps.random(1, torch.float32, device).abs() + 0.5
    check_function(
        lambda y, factors: pointwise.scale_maps(y, factors, rectified=rectified),
        lambda y, factors: (y * factors).relu() if rectified else y * factors,
        [maps.random(maps.channels, dtype, device), factors.detach().requires_grad_()],
        *(dtype, dtype, dtype),
    )


def check_overflow(maps, dtype, device):
    """Of a norm that overflows the factor is 0, and no gradient is NaN. None does in float16."""
    if dtype == torch.float16:
        return
    x = (maps.random(maps.channels, dtype, device) * 2e19).detach().requires_grad_()
    y = maps.random(maps.channels, dtype, device)
    factors = pointwise.patch_factors(x, maps.window, 0.1, 3.0)
    assert (factors == 0).any()
    over = torch.nn.functional.interpolate(factors, y.shape[2:])
    found = pointwise.scale_maps(y, over, rectified=True)
    for gradient in torch.autograd.grad(found.sum(), (x, y)):
        assert gradient.isfinite().all()


def check_gained(maps, dtype, device, every):
    shape, start = (-1, *[1] * len(maps.size)), torch.zeros(maps.channels, dtype=torch.float64)
    if every:
        start[::every] = 1
    check_function(
        lambda raw, gain: pointwise.apply_gain(raw, gain, every),
        lambda raw, gain: raw * gain.view(shape) + start.view(shape),
        [
            maps.random(maps.channels, dtype, device),
            torch.randn(maps.channels, device=device, requires_grad=True),
        ],
        *(torch.float32, dtype, torch.float32),
    )


def check_second_derivatives(device):
    """Those of the kernels' functions equal those of torch's operations in float64."""
    maps = MAPS[0]
    x = maps.random(maps.channels, torch.float32, device)
    gain = torch.randn(maps.channels, device=device, requires_grad=True)
    truth = [t.detach().double().cpu().requires_grad_() for t in (x, gain)]

    def ours(x, gain):
        factors = pointwise.patch_factors(x, maps.window, 0.1, 3.0)
        return pointwise.apply_gain(pointwise.scale_maps(x, factors, rectified=True), gain, 1)

    def plain(x, gain):
        factors = norms(x, maps.window, 0.1, 3.0).reshape(len(x), 1, *x.shape[2:])
        return (x * factors).relu() * gain.view(-1, 1, 1) + 1

    found = []
    for function, operands in ((ours, (x, gain)), (plain, truth)):
        loss = function(*operands).pow(3).sum()
        first = torch.autograd.grad(loss, operands, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), operands))
    for one, other in zip(*found, strict=True):
        limit = 1e-4 * other.abs().max()
        assert (one.double().cpu() - other).abs().max() <= limit


LAWS = {
    "factors": check_factors,
    "scaled": partial(check_scaled, rectified=False),
    "rectified": partial(check_scaled, rectified=True),
    "overflow": check_overflow,
    **{f"gained-{every}": partial(check_gained, every=every) for every in (0, 1, 4)},
}
