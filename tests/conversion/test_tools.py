"""Converted networks under PEFT and quantisation, which read a layer's kernel without M."""

import warnings
from copy import deepcopy

import pytest
import torch
from torch import nn

import neural_similarity as ns

with warnings.catch_warnings():  # torch.ao's notice that torchao follows it
    warnings.simplefilter("ignore")
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx


@pytest.fixture
def network():
    """Static similarities away from the identity, in two of three layers."""
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    network = ns.convert(nn.Sequential(*convolutions, *head), "static-full").eval()
    for index in (0, 2):
        nn.init.normal_(network[index].similarity.raw, std=0.3)
    return network


@pytest.fixture
def x():
    return torch.randn(4, 3, 9, 10)


class LowRank(nn.Module):
    """As PEFT's LoRA for convolutions: y = W x + B A x, merged into W."""

    __module__ = "peft.tuners.lora.layer"

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.Conv2d(layer.in_channels, 2, 3, padding=1, bias=False)
        self.lora_B = nn.Conv2d(2, layer.out_channels, 1, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))

    def merge(self):
        change = torch.einsum("orij,rckl->ockl", self.lora_B.weight, self.lora_A.weight)
        self.base_layer.weight.data += change
        return self.base_layer


def test_a_layer_with_a_similarity_is_not_wrapped_but_its_fold_is(network, x):
    with pytest.raises(ValueError, match=r"can only be wrapped after ns\.fold"):
        LowRank(network[2])
    expected = network(x)
    folded = ns.fold(network)
    folded[2] = LowRank(folded[2])
    wrapped = folded(x)
    assert (wrapped - expected).abs().max() > 1e-3
    folded[2] = folded[2].merge()
    assert (folded(x) - wrapped).abs().max() < 1e-6


def test_wrapped_layers_and_what_wraps_them_are_not_converted(network):
    plain = ns.fold(network)
    plain[2] = LowRank(plain[2])
    reasons = ns.plan(plain, "static-full")
    assert reasons.pop("0") is None
    assert reasons.keys() == {"2.base_layer", "2.lora_A", "2.lora_B"}
    assert all("merge_and_unload() before" in reason for reason in reasons.values())
    converted = ns.convert(plain, "static-full")
    assert [type(m) for m in converted[2].children()] == [nn.Conv2d] * 3
    with pytest.raises(ValueError, match="cannot be converted"):
        ns.convert(plain, "static-full", "2.lora_A")


def test_a_child_called_base_layer_is_none_of_pefts():
    class Network(nn.Module):  # As timm's DLA.
        def __init__(self):
            super().__init__()
            self.base_layer = ns.Conv2d(3, 4, 3, similarity="static-full")
            self.level = nn.Conv2d(4, 4, 3)

    reasons = ns.plan(Network(), "static-full")
    assert reasons == {"base_layer": "has a similarity already", "level": None}


@pytest.mark.parametrize("targets", [["0", "2"], ["5"]])
def test_peft(network, x, targets):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=targets)
    if "0" in targets:
        with pytest.raises(ValueError, match=r"can only be wrapped after ns\.fold"):
            peft.get_peft_model(deepcopy(network), config)
    base = ns.fold(network) if "0" in targets else network
    wrapped = peft.get_peft_model(base, config).eval()
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.1)
    y = wrapped(x)
    assert (y - network(x)).abs().max() > 1e-3 or base is network
    assert (wrapped.merge_and_unload()(x) - y).abs().max() < 1e-6


def quantised_by_fx(network, x):
    prepared = prepare_fx(deepcopy(network), get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    return convert_fx(prepared)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_fx_quantises_folded_networks_and_warns_of_others(network, x):
    torch.use_deterministic_algorithms(False)  # of which quantised pooling knows nothing
    expected = network(x)
    quantised = quantised_by_fx(ns.fold(network), x)
    assert all("quantized" in type(quantised.get_submodule(i)).__module__ for i in ("0", "2", "5"))
    assert (quantised(x) - expected).abs().max() < 0.1 * expected.abs().max()
    with pytest.warns(UserWarning, match=r"'[02]' has a similarity and can only be quantised"):
        partly = quantised_by_fx(network, x)
    assert type(partly.get_submodule("2")) is ns.Conv2d


def test_pt2e_quantises_folded_networks(network, x):
    pytest.importorskip("torchao")
    from torch.export import export
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(export(ns.fold(network), (x,)).module(), quantizer)
    prepared(x)
    quantised = convert_pt2e(prepared)
    assert sum("dequantize" in str(node.target) for node in quantised.graph.nodes) >= 6
    expected = network(x)
    assert (quantised(x) - expected).abs().max() < 0.1 * expected.abs().max()
