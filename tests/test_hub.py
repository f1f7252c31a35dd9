"""The hub's methods, by folders alone, and by folders forged in every field: no network."""

import json
import re

import pytest
import torch
from forgeries import cut_contents, forged_headers, forged_tensors
from moved import moved
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

import neural_similarity as ns

pytest.importorskip("huggingface_hub")
VALUES = [
    None, True, 0, -1, 0.5, 2**70, float("nan"), "", "x", "\x1b[2J\x07\0", [], [1], {}, {"x": 1},
    "Static({[]:1})", "__import__('os').system('touch owned')", "(" * 300,
]  # fmt: skip
TEXTS = ["", "[" * 100_000, "{", '{"name": "cnn9"', "9" * 5000]
"""What is JSON, but no object, fails inside of huggingface_hub."""


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize(
    "similarity", [None, "static-full", ns.Dynamic(ns.Full(), ns.Shared(channels=4, hidden=5))]
)
def test_a_network_is_read_back_from_its_folder(similarity, x, tmp_path):
    network = moved(ns.hub.Network("resnet20", 7, similarity, width=0.5), std=0.2).eval()
    network.save_pretrained(tmp_path)
    again = load_network(tmp_path)
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
        load_network(tmp_path)


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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ns.hub.Network("cnn9", 3, "static-full", width=0.05).save_pretrained(tmp_path / "hub")
    return tmp_path / "hub"


def load_network(folder):
    return ns.hub.Network.from_pretrained(folder, local_files_only=True)


def refused(folder):
    """Whether it is refused, by an error of callers, the reader of files or torch."""
    try:
        load_network(folder)
    except (ValueError, TypeError, RuntimeError, OSError, SafetensorError):
        return True
    return False


def test_every_setting(folder):
    file = folder / "config.json"
    whole = json.loads(file.read_text())
    for name in whole:
        for value in VALUES:
            file.write_text(json.dumps(whole | {name: value}))
            assert refused(folder), (name, value)
    assert not (folder.parent / "owned").exists()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:10])
def test_every_text_in_place_of_the_settings(folder, text):
    (folder / "config.json").write_text(text)
    assert refused(folder)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_every_field_of_the_weights(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    whole = load_network(folder).state_dict()
    for forged in [*forged_headers(content), *cut_contents(content)]:
        file.write_bytes(forged)
        if not refused(folder):  # In metadata, or in the number of batches, it changes nothing.
            for name, tensor in load_network(folder).state_dict().items():
                assert torch.equal(tensor, whole[name]), name
    for what, forged in [*forged_tensors(content)][::3]:
        file.write_bytes(forged)
        cast = "complex" in what or "of type" in what  # by torch
        assert cast or refused(folder) or "num_batches_tracked" in what, what
