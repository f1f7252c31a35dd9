"""Conversion of real architectures: the same outputs, what is skipped, training, folding."""

from copy import deepcopy

import onnxruntime
import pytest
import torch
import torchvision
from moved import moved
from torch import nn

import neural_similarity as ns

STATIC = ["static-diagonal", "static-full"]
NAMES = [*STATIC, "dynamic-diagonal", "dynamic-full"]
named = pytest.mark.parametrize("similarity", NAMES)
slow = pytest.mark.slow
SIZES = [(2, 64, 64), (3, 64, 64), (1, 96, 80), (3, 67, 45)]
SIZE = 64
SMALL = "shufflenet_v2_x0_5"
ZOO = (
    "convnext_tiny densenet121 efficientnet_b0 googlenet lraspp_mobilenet_v3_large "
    f"mobilenet_v3_small regnet_y_400mf resnet18 {SMALL} vgg11_bn"
).split()
OPTIONS = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}


def build(name):
    """With random weights, in evaluation mode and float64; every layer shows in the output."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, **OPTIONS.get(name, {}))
    if name == "vgg11_bn":  # 124 of its 133 million numbers
        model.classifier = nn.Linear(512 * 7 * 7, 10)
    return awaken(model).double().eval()


@torch.no_grad()
def awaken(model):
    """Random gains, shifts and statistics; without them, most networks answer alike to any image.

    Running statistics start at those of random images, so that no signal dies on its way.
    """
    for parameter in model.parameters():
        if parameter.numel() > 1 and parameter.unique().numel() == 1:  # gains, shifts, layer scales
            parameter.copy_(parameter.round() + 0.3 * torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
    norms = [m for m in model.modules() if getattr(m, "running_var", None) is not None]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(torch.randn(8, 3, SIZE, SIZE))
    for norm in norms:
        norm.momentum = 0.1
        norm.running_var.clamp_(min=1e-3)
        norm.running_var *= 0.9 + 0.2 * torch.rand_like(norm.running_var)
    return model


def images(batch=2, height=SIZE, width=SIZE):
    return torch.randn(batch, 3, height, width, dtype=torch.float64)


def answer(model, x):
    """The network's output; dropout drops the same in every call."""
    torch.manual_seed(1)
    y = model(x)
    return y["out"] if isinstance(y, dict) else y


def difference(y, expected):
    """Largest difference, as a part of the largest output."""
    return ((y - expected).abs().max() / expected.abs().max()).item()


def perturbed(model, std=0.1):
    """A copy whose similarities are away from the identity."""
    return moved(deepcopy(model), std)


@pytest.fixture(
    scope="module",
    params=[name if name == SMALL else pytest.param(name, marks=slow) for name in ZOO],
)
def network(request):
    """In float64 and evaluation mode; tests leave it as it is."""
    return build(request.param)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["eval", "train"])
@named
def test_conversion_keeps_the_outputs(network, similarity, mode):
    plain = deepcopy(network).train(mode == "train")
    converted = ns.convert(network, similarity).train(mode == "train")
    x = images(batch=3)
    with torch.no_grad():
        expected, y = answer(plain, x), answer(converted, x)
    if similarity in STATIC:
        assert torch.equal(y, expected)
    else:
        assert difference(y, expected) <= 1e-10


@named
def test_the_plan_is_what_is_converted_and_a_second_conversion_changes_nothing(network, similarity):
    plan = ns.plan(network, similarity)
    converted = ns.convert(network, similarity)
    before, after = dict(network.named_modules()), dict(converted.named_modules())
    for name, module in before.items():
        if isinstance(module, nn.modules.conv._ConvNd):
            one = isinstance(module, nn.Conv1d | nn.Conv2d) and max(module.kernel_size) > 1
            large = similarity == "dynamic-full" and module.weight[0, 0].numel() > 25
            assert (plan[name] is None) == (one and not large), plan[name]
            assert isinstance(after[name], ns.Conv2d) == (plan[name] is None)
    again = ns.convert(converted, similarity)
    assert [type(m) for m in again.modules()] == [type(m) for m in converted.modules()]
    states = converted.state_dict(), again.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    "similarity",
    [name if name == "static-full" else pytest.param(name, marks=slow) for name in NAMES],
)
def test_similarities_train_on_a_frozen_backbone_and_static_ones_fold(network, similarity):
    plain = deepcopy(network).float()
    model = ns.freeze_backbone(ns.convert(plain, similarity)).train()
    x = images(2, 32, 32).float()
    losses = trained(model, x)
    assert losses[-1] < losses[0]
    backbone = ns.unconvert(model).state_dict()
    assert all(torch.equal(backbone[key], value) for key, value in plain.state_dict().items())
    if similarity in STATIC:
        check_folding(model.eval(), x)


def trained(model, x):
    """Losses of 20 steps towards random outputs."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with torch.no_grad():
        target = answer(model, x)
        target += target.std() * torch.randn_like(target)
    losses = []
    for _ in range(20):
        loss = (answer(model, x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def check_folding(model, x):
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        model, x = model.to(dtype), x.to(dtype)
        expected, folded = answer(model, x), ns.fold(model)
        assert not [m for m in folded.modules() if isinstance(m, ns.Conv2d)]
        assert not [key for key in folded.state_dict() if "similarity" in key]
        assert difference(answer(folded, x), expected) <= tolerance
        assert difference(answer(ns.unconvert(model), x), expected) > 10 * tolerance


class Answer(nn.Module):
    """A network whose output is one tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        return y["out"] if isinstance(y, dict) else y


def onnx_session(model):
    """Runs the model's ONNX export, made for any batch and any size."""
    dynamic = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    example = images(*SIZES[0]).float()
    options = {"dynamo": True, "dynamic_shapes": (dynamic,), "verbose": False}
    program = torch.onnx.export(model, (example,), **options)
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


def check_onnx(model):
    """The export is as near to the model in float64 as the model in float32 is, or nearly so."""
    model = Answer(model).eval()
    session = onnx_session(model)
    precise = deepcopy(model).double()
    for size in SIZES:
        x = images(*size).float()
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            truth = precise(x.double())
            rounding = difference(model(x), truth)
        assert difference(torch.from_numpy(y), truth) <= 4 * max(rounding, 1e-6)


@pytest.mark.long
def test_layers_run_in_onnx():
    """Groups, strides, and padding that the layer does itself."""
    convolutions = [
        ns.Conv2d(3, 8, 3, 2, 1, similarity="static-full"),
        ns.Conv2d(8, 8, 3, padding="same", groups=8, similarity="dynamic-diagonal"),
        ns.Conv2d(8, 6, (2, 3), padding=1, padding_mode="reflect", similarity="dynamic-full"),
    ]
    check_onnx(perturbed(nn.Sequential(*convolutions), std=0.3))


@slow
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-full"])
@pytest.mark.parametrize("name", ZOO)
def test_converted_networks_run_in_onnx(name, similarity):
    check_onnx(perturbed(ns.convert(build(name).float(), similarity)))


DENSE = (
    "segmentation.deeplabv3_resnet50 segmentation.fcn_resnet50 detection.retinanet_resnet50_fpn "
    "detection.ssdlite320_mobilenet_v3_large"
).split()


@pytest.mark.long
@pytest.mark.parametrize("name", DENSE)
@torch.no_grad()
def test_segmentation_and_detection_convert_and_fold(name):
    """What the pages on both say of torchvision's networks: equal outputs, before and after."""
    group, _, architecture = name.partition(".")
    torch.manual_seed(0)
    make = getattr(getattr(torchvision.models, group), architecture)
    network = make(weights=None, weights_backbone=None, num_classes=3).eval()
    x = torch.rand(1, 3, 64, 64)
    x = list(x) if group == "detection" else x

    def outputs(model):
        found = model(x)
        found = found[0] if isinstance(found, list) else found
        return {key: value.double() for key, value in found.items()}

    similar = ns.convert(network, "static-full")
    for key, value in outputs(network).items():
        assert torch.equal(outputs(similar)[key], value), key
    for parameter in (p for n, p in similar.named_parameters() if ".similarity." in n):
        parameter.add_(0.02 * torch.randn_like(parameter))
    for key, value in outputs(ns.fold(similar)).items():
        torch.testing.assert_close(value, outputs(similar)[key], rtol=1e-3, atol=1e-4, msg=key)
