"""timm's networks and what ships them: trained, saved, reloaded, fused, exported, quantised."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from moved import train_steps
from torch import nn

import neural_similarity as ns

timm = pytest.importorskip("timm")


def resnet():
    torch.manual_seed(0)
    sizes = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}
    block = timm.models.resnet.BasicBlock
    return timm.models.resnet.ResNet(block, num_classes=3, stem_width=8, **sizes).eval()


@pytest.fixture
def x():
    return torch.randn(4, 3, 64, 64)


@pytest.fixture
def adapted(x):
    model = ns.convert(resnet(), "static-full", where="layer[34].*")
    return train_steps(ns.freeze_backbone(model, train="fc"), x, lr=0.01)


def test_timm(adapted, x, tmp_path):
    from timm.utils.model import reparameterize_model

    backbone = resnet()
    assert ns.max_difference(adapted, backbone, x) > 1e-3
    file = ns.save_adapter(adapted, tmp_path / "a")
    assert ns.max_difference(ns.load_adapter(backbone, file), adapted, x) == 0
    fused = reparameterize_model(adapted)
    assert not any(isinstance(part, ns.nn.SimilarityLayer) for part in fused.modules())
    assert ns.max_difference(fused, adapted, x) < 1e-4
    averaged = timm.utils.ModelEmaV3(adapted, decay=0.0)
    averaged.update(adapted)
    assert ns.save_adapter(averaged.module, tmp_path / "b").read_bytes() == file.read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_torchao(adapted, x):
    """Of weights alone, in a folded network's linear layers."""
    quantization = pytest.importorskip("torchao.quantization")
    folded, y = ns.fold(ns.convert(adapted, "static-full", where=nn.Linear)), adapted(x)
    quantization.quantize_(folded, quantization.Int8WeightOnlyConfig())
    assert type(folded.fc.weight) is not nn.Parameter
    assert (folded(x) - y).abs().max() < 0.05 * y.abs().max()


@pytest.mark.long
def test_a_converted_network_under_a_name_of_timm(monkeypatch):
    """The three lines of docs/how-to/timm.md."""
    page = (Path(__file__).parents[2] / "docs/how-to/timm.md").read_text("utf-8")
    (block,) = re.findall(r"```py\n(@timm.*?)```", page, re.DOTALL)
    place = types.ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", place)  # timm looks the function's module up.
    vars(place).update(timm=timm, ns=ns)
    exec(block, vars(place))
    network = timm.create_model("resnet18_static_full", num_classes=3)
    assert network.layer4[0].conv1.similarity.matrix().shape == (9, 9)
    assert network.get_classifier().out_features == 3
