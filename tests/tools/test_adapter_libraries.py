"""PEFT, LyCORIS and quantisation read a layer's kernel without M, which has to be folded before."""

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
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)]
    network = ns.convert(nn.Sequential(*convolutions, *head), "static-full").eval()
    for index in (0, 2):
        nn.init.normal_(network[index].similarity.raw, std=0.3)
    return network


@pytest.fixture
def x():
    return torch.randn(4, 3, 9, 10)


def trained(parameters, network, x):
    optimizer = torch.optim.SGD(list(parameters), lr=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()


def test_peft_trains_saves_loads_and_merges_a_folded_network(network, x, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["0", "2"], init_lora_weights=False)
    with pytest.raises(ValueError, match=r"a Conv2d has a similarity .* after ns\.fold"):
        peft.get_peft_model(deepcopy(network), config)
    peft.get_peft_model(deepcopy(network), peft.LoraConfig(target_modules=["5"]))
    plain = ns.fold(network)
    wrapped = peft.get_peft_model(deepcopy(plain), config)
    trained((p for p in wrapped.parameters() if p.requires_grad), wrapped, x)
    y = wrapped.eval()(x)
    assert (y - network(x)).abs().max() > 1e-3
    wrapped.save_pretrained(str(tmp_path))
    loaded = peft.PeftModel.from_pretrained(deepcopy(plain), str(tmp_path)).eval()
    assert torch.equal(loaded(x), y)
    with pytest.raises(ValueError, match=r"merge_and_unload\(\) before"):
        ns.convert(loaded, "static-full")
    merged = loaded.merge_and_unload()
    assert (merged(x) - y).abs().max() < 1e-5
    assert (ns.convert(merged, "static-full")(x) - y).abs().max() < 1e-5


def test_peft_leaves_what_it_wraps_unconverted(network):
    peft = pytest.importorskip("peft")
    plain = ns.fold(network)
    peft.get_peft_model(plain, peft.LoraConfig(target_modules=["2"]))
    reasons = ns.plan(plain, "static-full")
    assert reasons.pop("0") is None
    assert set(reasons) == {"2.base_layer", "2.lora_A.default", "2.lora_B.default"}
    assert all("merge_and_unload() before" in reason for reason in reasons.values())
    assert type(ns.convert(plain, "static-full")[2].base_layer) is nn.Conv2d
    with pytest.raises(ValueError, match="cannot be converted"):
        ns.convert(plain, "static-full", "2.lora_A.default")


def test_a_child_called_base_layer_is_none_of_pefts():
    class Network(nn.Module):  # As timm's DLA.
        def __init__(self):
            super().__init__()
            self.base_layer = ns.Conv2d(3, 4, 3, similarity="static-full")
            self.level = nn.Conv2d(4, 4, 3)

    reasons = ns.plan(Network(), "static-full")
    assert reasons == {"base_layer": "has a similarity already", "level": None}


def lycoris_of(network, algorithm):
    lycoris = pytest.importorskip("lycoris")
    lycoris.LycorisNetwork.apply_preset({"target_module": ["Sequential"]})
    return lycoris.create_lycoris(network, 1.0, linear_dim=4, linear_alpha=1.0, algo=algorithm)


ALGORITHMS = ["lora", "lokr", "diag-oft", "full"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lycoris_is_refused_on_layers_with_a_similarity(network, x, algorithm):
    y, before = network(x), [dict(vars(layer)) for layer in network]
    for similarity in ("static-full", "dynamic-diagonal"):
        model = network if similarity == "static-full" else ns.convert(ns.fold(network), similarity)
        adapter = lycoris_of(model, algorithm)
        with pytest.raises(ValueError, match=r"can only be given to LyCORIS after ns\.fold"):
            adapter.apply_to()
    assert [dict(vars(layer)) for layer in network] == before
    assert torch.equal(network(x), y)


def test_what_lycoris_has_is_not_converted_and_gets_no_adapter(network, tmp_path):
    plain = ns.fold(network)
    file = ns.save_adapter(ns.convert(plain, "static-full"), tmp_path / "a")
    adapter = lycoris_of(plain, "lora")
    adapter.apply_to()
    with pytest.raises(ValueError, match=r"is given to LyCORIS, .* restore\(\) before"):
        ns.convert(plain, "static-full")
    with pytest.raises(ValueError, match=r"must have its class's own `forward`"):
        ns.load_adapter(plain, file, inplace=True)
    adapter.restore()
    x = torch.randn(2, 3, 9, 9)
    y = plain(x)
    similar = ns.convert(plain, "static-full")
    assert (similar(x) - y).abs().max() < 1e-5
    nn.init.normal_(similar[0].similarity.raw)
    assert (similar(x) - y).abs().max() > 1e-3  # M takes part.
    assert (ns.fold(similar)(x) - similar(x)).abs().max() < 1e-5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lycoris_trains_and_merges_a_folded_network(network, x, algorithm):
    plain = ns.fold(network)
    adapter = lycoris_of(plain, algorithm)
    adapter.apply_to()
    trained(adapter.parameters(), plain, x)
    y = plain(x)
    assert (y - network(x)).abs().max() > 1e-4
    adapter.restore()
    adapter.merge_to()
    assert (plain(x) - y).abs().max() < 1e-4
    assert (ns.convert(plain, "static-full")(x) - y).abs().max() < 1e-4


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
