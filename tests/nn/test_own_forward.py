"""Layers that compute their kernel or padding: M acts on the kernel that the convolution gets."""

import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from moved import learned, train_steps
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode

import neural_similarity as ns
from neural_similarity.nn.own_forward import computes_kernel


class Standardised(nn.Conv2d):
    """As timm's, with a gain and padding by torch."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1))

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, correction=0)
        kernel = self.gain * (self.weight - mean) / (variance + 1e-6).sqrt()
        return self._conv_forward(x, kernel, self.bias)


class DoubledBias(nn.Conv2d):
    """Computes both."""

    def forward(self, x):
        return self._conv_forward(x, self.weight.tanh(), 2 * self.bias)


class Causal(nn.Conv1d):
    """Pads on one side."""

    def forward(self, x):
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


def first_taps(w):
    return w * (torch.arange(w[0, 0].numel()) < 5).view(w.shape[2:])


RULES = {
    "mask": first_taps,  # as PixelCNN's
    "clamp": partial(torch.clamp, min=0.01, max=0.1),
    "sign": torch.sign,
    "max-norm": partial(torch.renorm, p=2, dim=0, maxnorm=0.3),
    "small to zero": partial(F.hardshrink, lambd=1e-4),
}
WHEN = {
    "always": lambda *_: True,
    "in training": lambda layer, _: layer.training,
    "with gradients": lambda *_: torch.is_grad_enabled(),
    "with a batch": lambda _, x: len(x) > 1,
}


class Written(nn.Conv2d):
    """Writes its weight in `forward`, in place or by a new tensor."""

    def __init__(self, rule, *args, in_place=False, when="always"):
        super().__init__(*args)
        self.rule, self.in_place, self.when = RULES[rule], in_place, when
        self.register_buffer("of_no_use", torch.ones(2))

    def forward(self, x):
        kernel = self.rule(self.weight.data)
        if self.in_place:
            self.weight.data.copy_(kernel)
        elif WHEN[self.when](self, x):
            self.weight.data = kernel
        return super().forward(x)


def of_timm(name, *args, **options):
    return getattr(pytest.importorskip("timm.layers"), name)(*args, **options)


def old_weight_norm(layer):
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(layer)


LAYERS = {
    "gain": lambda: Standardised(4, 6, 3, 2, 1, groups=2),
    "bias": lambda: DoubledBias(4, 6, 3, 2),
    "causal": lambda: Causal(4, 6, 3, dilation=2),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Conv2d(4, 6, (3, 2))),
    "weight_norm, 3-d": lambda: parametrizations.weight_norm(nn.Conv3d(4, 6, (2, 3, 1)), dim=1),
    "weight_norm, hook": lambda: old_weight_norm(nn.Conv2d(4, 6, 3, padding=1)),
    "both": lambda: parametrizations.weight_norm(Standardised(4, 6, 3)),
    "Conv2dSame": lambda: of_timm("Conv2dSame", 4, 6, 3, stride=2),
    "StdConv2d": lambda: of_timm("StdConv2d", 4, 6, 3, stride=2),
    "StdConv2dSame": lambda: of_timm("StdConv2dSame", 4, 6, 3, stride=2, bias=True),
    "ScaledStdConv2d": lambda: of_timm("ScaledStdConv2d", 4, 6, 3, groups=2, gamma=1.7),
    "written, mask": lambda: Written("mask", 4, 6, 3, 2, 1, in_place=True),
    "written, clamp": lambda: Written("clamp", 4, 6, 3, in_place=True),
    "written, sign": lambda: Written("sign", 4, 6, (3, 2)),
    "written, max-norm": lambda: Written("max-norm", 4, 6, 3),
    "ScaledStdConv2dSame": lambda: of_timm("ScaledStdConv2dSame", 4, 6, (3, 2), stride=2),
}
EVERY = pytest.mark.parametrize("name", LAYERS)
BOTH = pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])


def make(name):
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    sizes = {nn.Conv1d: (9,), nn.Conv3d: (4, 5, 3)}
    size = next((s for kind, s in sizes.items() if isinstance(layer, kind)), (9, 8))
    return nn.Sequential(layer), torch.randn(2, 4, *size, dtype=torch.float64)


class Inserting(TorchFunctionMode):
    """Puts M between the kernel and the patches of every convolution of torch's that is called."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (F.conv1d, F.conv2d, F.conv3d):
            x, kernel, *rest = args
            args = x, (kernel.flatten(2) @ self.m).view_as(kernel), *rest
        return func(*args, **(kwargs or {}))


@EVERY
def test_a_static_m_acts_on_the_kernel_that_the_convolution_gets_and_folds_into_it(name):
    """Into a layer without the library."""
    model, x = make(name)
    converted = learned(ns.convert(model, "static-full"))
    with Inserting(converted[0].similarity.matrix().double()):
        expected = model(x)
    torch.testing.assert_close(converted(x), expected, atol=1e-12, rtol=1e-12)
    folded = ns.fold(converted)
    assert not isinstance(folded[0], ns.nn.SimilarityLayer)
    assert set(folded.state_dict()) <= {"0.weight", "0.bias"}
    for network in (folded, converted):
        torch.testing.assert_close(network(x), expected, atol=1e-12, rtol=1e-12)


@EVERY
@BOTH
def test_it_starts_as_the_layer_and_trains(name, similarity):
    model, x = make(name)
    converted = ns.freeze_backbone(ns.convert(model, similarity), train=())
    torch.testing.assert_close(converted(x), model(x), atol=1e-12, rtol=1e-12)
    before = converted(x).detach()
    train_steps(converted, x, lr=0.01)
    assert (converted(x) - before).abs().max() > 1e-4
    assert torch.equal(ns.unconvert(converted)(x), model(x))
    assert type(ns.unconvert(converted)[0]).__name__ == type(model[0]).__name__


@EVERY
@BOTH
def test_it_is_saved_and_copied(name, similarity, tmp_path):
    model, x = make(name)
    converted = learned(ns.convert(model, similarity)).eval()
    expected = converted(x)
    file = ns.save_adapter(converted, tmp_path / "a")
    assert torch.equal(ns.load_adapter(model, file).eval()(x), expected)
    switch = ns.adapters(model, a=file)
    assert torch.equal(switch.use("a").backbone(x), expected)
    assert type(switch.use(None).backbone[0]) is type(model[0])
    if "hook" not in name:  # torch copies none of these
        assert torch.equal(deepcopy(converted)(x), expected)
    if not (parametrize.is_parametrized(model[0]) or "hook" in name):
        assert torch.equal(pickle.loads(pickle.dumps(converted))(x), expected)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in LAYERS if "hook" not in n and "written" not in n])
@BOTH
def test_it_is_exported_and_compiled(name, similarity):
    model, x = make(name)
    converted = learned(ns.convert(model, similarity)).eval()
    torch.compiler.reset()
    sizes = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(converted, (x,), dynamic_shapes=(sizes,)).module()
    compiled = torch.compile(converted, backend="eager", fullgraph=True)
    batch = torch.cat([x, x + 1])
    for run in (program, compiled):
        torch.testing.assert_close(run(batch), converted(batch), atol=1e-12, rtol=1e-12)


class WithParts(nn.Conv2d):
    def __init__(self, *args):
        super().__init__(*args)
        self.inner = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return super().forward(self.inner(x))


class Mixed(nn.Conv2d):
    def forward(self, x, weights):
        return weights * super().forward(x)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WithParts, "is a WithParts, with parts of its own"),
        (
            ns.SphereConv2d,
            "is a SphereConv2d, whose `forward` calls 2 convolutions of torch's, not",
        ),
        (Mixed, "is a Mixed, whose `forward` fails on one image alone: "),
    ],
)
def test_what_m_has_no_place_in_says_why(kind, reason):
    plan = ns.plan(nn.Sequential(kind(4, 4, 3), nn.Conv2d(4, 4, 3)), "static-full")
    assert plan["0"].startswith(reason)
    assert plan["1"] is None


class Odd(Standardised):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 0, 0, 0)))


class Scaled(Standardised):
    def forward(self, x):
        return 2 * super().forward(x)


class Noisy(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight + 0.1 * torch.randn(()), self.bias)


class Decaying(nn.Conv2d):
    def forward(self, x):
        self.weight.data *= 0.9
        return super().forward(x)


def converted(kind, similarity="static-full"):
    return ns.convert(nn.Sequential(kind(4, 4, 3)), similarity)


def called_with_another_window():
    model = converted(Standardised, "dynamic-diagonal")
    model[0].stride = 2, 2
    model(torch.randn(1, 4, 8, 8))


test_errors = refusals(
    *(
        (
            lambda kind=kind: ns.fold(converted(kind)),
            f"'0': a {kind.__name__}, .*{words}.* to be folded",
        )
        for kind, words in [
            (Odd, "must leave padding to torch's convolution"),
            (Scaled, "return the convolution's"),
            (Noisy, "must compute the same one at every call"),
            (Decaying, "must compute the same one at every call"),
        ]
    ),
    (called_with_another_window, "the layer's convolution must stay Geometry"),
)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("when", WHEN)
def test_a_weight_that_is_written_at_times_is_seen(rule, when):
    assert computes_kernel(Written(rule, 4, 6, 3, when=when))


def test_a_weight_that_is_read_alone_is_merged():
    assert not computes_kernel(Causal(4, 6, 3))
