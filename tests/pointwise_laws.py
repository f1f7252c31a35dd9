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


def check_factors(maps, dtype, device):
    x = maps.random(maps.channels, dtype, device)
    truth = x.detach().double().cpu().requires_grad_()
    expected = norms(truth, maps.window, 0.1, 3.0)
    found = pointwise.patch_factors(x, maps.window, 0.1, 3.0)
    assert found.dtype == torch.float32
    close(found, expected, torch.float32)
    grad = torch.randn(found.shape)
    (gradient,) = torch.autograd.grad(found, x, grad.to(device))
    (wanted,) = torch.autograd.grad(expected, truth, grad.double().reshape(expected.shape))
    assert gradient.dtype == dtype
    close(gradient, wanted, dtype)


def check_scaled(maps, dtype, device, rectified):
    y = maps.random(maps.channels, dtype, device)
    factors = (maps.random(1, torch.float32, device).abs() + 0.5).detach().requires_grad_()
    found = pointwise.scale_maps(y, factors, rectified=rectified)
    truth = [t.detach().double().cpu().requires_grad_() for t in (y, factors)]
    expected = truth[0] * truth[1]
    expected = expected.relu() if rectified else expected
    assert found.dtype == dtype
    close(found, expected, dtype)
    grad = torch.randn(found.shape).to(dtype)
    gradients = torch.autograd.grad(found, (y, factors), grad.to(device))
    right = torch.autograd.grad(expected, truth, grad.double())
    for one, other in zip(gradients, right, strict=True):
        close(one, other, dtype)


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
    raw = maps.random(maps.channels, dtype, device)
    gain = torch.randn(maps.channels, device=device, requires_grad=True)
    found = pointwise.apply_gain(raw, gain, every)
    truth = [t.detach().double().cpu().requires_grad_() for t in (raw, gain)]
    start = torch.zeros(maps.channels, dtype=torch.float64)
    if every:
        start[::every] = 1
    shape = (-1, *[1] * (raw.dim() - 2))
    expected = truth[0] * truth[1].view(shape) + start.view(shape)
    assert found.dtype == torch.float32
    close(found, expected, torch.float32)
    grad = torch.randn(found.shape)
    gradients = torch.autograd.grad(found, (raw, gain), grad.to(device))
    wanted = torch.autograd.grad(expected, truth, grad.double())
    close(gradients[0], wanted[0], dtype)
    close(gradients[1], wanted[1], torch.float32)


def check_second_derivatives(device):
    """Those of the kernels' functions equal those of torch's operations in float64."""
    maps = MAPS[0]
    x = maps.random(maps.channels, torch.float32, device)
    gain = torch.randn(maps.channels, device=device, requires_grad=True)
    truth = [t.detach().double().cpu().requires_grad_() for t in (x, gain)]

    def result(x, gain, factors, scaled, gained):
        return gained(scaled(x, factors(x)), gain).pow(3).sum()

    ours = (
        lambda x: pointwise.patch_factors(x, maps.window, 0.1, 3.0),
        lambda y, f: pointwise.scale_maps(y, f, rectified=True),
        lambda raw, gain: pointwise.apply_gain(raw, gain, 1),
    )
    plain = (
        lambda x: norms(x, maps.window, 0.1, 3.0).reshape(len(x), 1, *x.shape[2:]),
        lambda y, f: (y * f).relu(),
        lambda raw, gain: raw * gain.view(-1, 1, 1) + 1,
    )
    found = []
    for functions, operands in ((ours, (x, gain)), (plain, truth)):
        loss = result(*operands, *functions)
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
