"""Conversion of real architectures: the same outputs, what is skipped, training, folding."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from zoo import SMALL, ZOO, answer, build, difference, images, perturbed

import neural_similarity as ns

STATIC = ["static-diagonal", "static-full"]
NAMES = [*STATIC, "dynamic-diagonal", "dynamic-full"]
named = pytest.mark.parametrize("similarity", NAMES)
slow = pytest.mark.slow
ONE_SIZE = {
    "timm/mobilevit_xxs": "the plain network's own export fails at other sizes",
    "timm/tf_efficientnet_b0": "the plain network's own export for any size takes over ten minutes",
}
"""Networks that are exported for any batch of one size."""
SIZES = [(2, 64, 64), (3, 64, 64), (1, 96, 80), (3, 67, 45)]


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


@slow
@pytest.mark.parametrize("similarity", STATIC)
@torch.no_grad()
def test_timm_folds_converted_networks(network, similarity):
    """Blocks that merge kernels themselves read `weight` alone, so they are folded first."""
    timm = pytest.importorskip("timm.utils.model")
    model = perturbed(ns.convert(network, similarity)).float()
    x = images().float()
    expected = answer(model, x)
    merging = [m for m in network.modules() if hasattr(m, "fuse") or hasattr(m, "reparameterize")]
    folded = timm.reparameterize_model(ns.fold(model) if merging else model)
    assert not [m for m in folded.modules() if isinstance(m, ns.Conv2d)]
    assert difference(answer(folded, x), expected) <= 1e-4


class Answer(nn.Module):
    """A network whose output is one tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        return y["out"] if isinstance(y, dict) else y


def onnx_session(model, any_size):
    """Runs the model's ONNX export, made for any batch, and for any size or one."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    import onnxruntime

    dynamic = dict.fromkeys((0, 2, 3) if any_size else (0,), torch.export.Dim.DYNAMIC)
    example = images(*SIZES[0]).float()
    options = {"dynamo": True, "dynamic_shapes": (dynamic,), "verbose": False}
    program = torch.onnx.export(model, (example,), **options)
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


def check_onnx(model, any_size=True):
    """The export is as near to the model in float64 as the model in float32 is, or nearly so."""
    model = Answer(model).eval()
    session = onnx_session(model, any_size)
    precise = deepcopy(model).double()
    for size in SIZES if any_size else SIZES[:2]:
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
    check_onnx(perturbed(ns.convert(build(name).float(), similarity)), name not in ONE_SIZE)


DENSE = {
    "segmentation.deeplabv3_resnet50": {"weights_backbone": None, "num_classes": 3},
    "segmentation.fcn_resnet50": {"weights_backbone": None, "num_classes": 3},
    "detection.retinanet_resnet50_fpn": {"weights_backbone": None, "num_classes": 3},
    "detection.ssdlite320_mobilenet_v3_large": {"weights_backbone": None, "num_classes": 3},
}


@pytest.mark.long
@pytest.mark.parametrize("name", DENSE)
@torch.no_grad()
def test_segmentation_and_detection_convert_and_fold(name):
    """What the pages on both say of torchvision's networks: equal outputs, before and after."""
    models = pytest.importorskip("torchvision").models
    group, _, architecture = name.partition(".")
    torch.manual_seed(0)
    network = getattr(getattr(models, group), architecture)(weights=None, **DENSE[name]).eval()
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
