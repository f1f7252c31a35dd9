"""Real architectures with random weights, such that every layer shows in the output."""

from copy import deepcopy

import pytest
import torch
from moved import moved
from torch import Tensor, nn

SIZE = 64
TORCHVISION = [
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "lraspp_mobilenet_v3_large",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "shufflenet_v2_x0_5",
    "vgg11_bn",
]
TIMM = [
    "convnext_atto",
    "fastvit_t8",
    "mobilenetv3_small_050",
    "mobilevit_xxs",
    "regnety_002",
    "repvgg_a0",
    "repvit_m0_9",
    "resnet10t",
    "tf_efficientnet_b0",
    "xcit_nano_12_p16_224",
]
OPTIONS = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}
SMALL = "torchvision/shufflenet_v2_x0_5"
ZOO = [f"torchvision/{name}" for name in TORCHVISION] + [f"timm/{name}" for name in TIMM]


def build(name: str) -> nn.Module:
    """The network, in evaluation mode and float64; skips the test where its library is missing."""
    library, _, architecture = name.partition("/")
    torch.manual_seed(0)
    module = pytest.importorskip(library)
    if library == "timm":
        model = module.create_model(architecture, pretrained=False)
    else:
        options = OPTIONS.get(architecture, {})
        model = module.models.get_model(architecture, weights=None, **options)
    if name == "torchvision/vgg11_bn":  # 124 of its 133 million numbers
        model.classifier = nn.Linear(512 * 7 * 7, 10)
    return awaken(model).double().eval()


@torch.no_grad()
def awaken(model: nn.Module) -> nn.Module:
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


def images(batch: int = 2, height: int = SIZE, width: int = SIZE) -> Tensor:
    return torch.randn(batch, 3, height, width, dtype=torch.float64)


def answer(model: nn.Module, x: Tensor) -> Tensor:
    """The network's output; dropout drops the same in every call."""
    torch.manual_seed(1)
    y = model(x)
    return y["out"] if isinstance(y, dict) else y


def difference(y: Tensor, expected: Tensor) -> float:
    """Largest difference, as a part of the largest output."""
    return ((y - expected).abs().max() / expected.abs().max()).item()


def perturbed(model: nn.Module, std: float = 0.1) -> nn.Module:
    """A copy whose similarities are away from the identity."""
    return moved(deepcopy(model), std)
