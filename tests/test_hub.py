"""The hub's methods, by folders alone: no network."""

import json
import re

import pytest
import torch
from moved import moved
from safetensors.torch import load_file, save_file
from torch import nn

import neural_similarity as ns

pytest.importorskip("huggingface_hub")


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize(
    "similarity", [None, "static-full", ns.Dynamic(ns.Full(), ns.Shared(channels=4, hidden=5))]
)
def test_a_network_is_read_back_from_its_folder(similarity, x, tmp_path):
    network = moved(ns.hub.Network("resnet20", 7, similarity, width=0.5), std=0.2).eval()
    network.save_pretrained(tmp_path)
    again = ns.hub.Network.from_pretrained(tmp_path, local_files_only=True)
    assert ns.max_difference(again, network, x) == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["width"] == 0.5
    wanted = ns.nn.text.resolve_similarity(similarity)
    assert ns.nn.parse_similarity(config["similarity"]) == wanted
    card = (tmp_path / "README.md").read_text()
    assert "library_name: neural-similarity" in card
    assert "1910.13003" in card
    assert 'ns.hub.Network.from_pretrained("OWNER/NAME")' in card
    assert (f"19 × `{wanted!r}`" in card) == (wanted is not None)
    assert "base_model" not in card
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("network.linear.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match=r"network\.linear\.bias"):
        ns.hub.Network.from_pretrained(tmp_path, local_files_only=True)


def test_a_converted_network_is_read_back_by_its_adapter(x, tmp_path, monkeypatch):
    backbone = ns.models.resnet20(width=0.5).eval()
    network = moved(ns.convert(backbone, "static-full"), std=0.2).eval()
    nn.init.normal_(network.linear.weight)
    base = "timm/resnet20"
    ns.hub.Adapted(network, extra="linear", base_model=base).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "base_model: timm/resnet20" in card
    assert "library_name: neural-similarity" in card
    assert "19 × `Static(structure=Full()" in card
    assert "; 1,539 numbers" in card
    assert (tmp_path / "adapter.safetensors").stat().st_size < 20_000
    again = ns.hub.Adapted.from_pretrained(tmp_path, backbone=backbone)
    assert (again.extra, again.base_model) == ("linear", base)
    assert ns.max_difference(again, network, x) == 0
    assert ns.max_difference(again, backbone, x) > 1e-3
    timm = pytest.importorskip("timm")
    made = {("hf-hub:timm/resnet20", True): backbone}
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: made[name, pretrained])
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names = {}
    exec(code.replace("OWNER/NAME", str(tmp_path)), names)
    assert ns.max_difference(names["model"], network, x) == 0
    unknown = ns.hub.Adapted(network, extra="linear").generate_model_card().content
    assert "backbone = ...  # the network, as it was before the conversion\nmodel = " in unknown
    other = ns.models.resnet20(width=0.5)
    with pytest.raises(ValueError, match="another backbone"):
        ns.hub.Adapted.from_pretrained(tmp_path, backbone=other)
