"""What looks at a network leaves no trace: every public function that takes one, in training mode.

A function without a case fails, so that what is added is tried too.
"""

import inspect

import pytest
import torch
from moved import Clamped
from torch import nn
from torch.nn.utils import parametrizations

import neural_similarity as ns
from neural_similarity import models, regularize, visualize
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.tasks import own_rate
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.train import choose_runtime, evaluate_model, predict_logits


class Restless(nn.Module):
    """Moves buffers and draws random numbers, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls = self.calls + 1
        self.last += 1
        noise = torch.rand((), generator=self.generator) + torch.rand(())
        return x * (1 + noise.item())


def network():
    """In training mode, but for one part; with gradients, a frozen parameter, settled weights."""
    layers = [parametrizations.spectral_norm(nn.Conv2d(3, 4, 3, padding=1)), nn.BatchNorm2d(4)]
    layers += [nn.Dropout(), Clamped(4, 4, 3), Restless(), nn.InstanceNorm2d(4), nn.Conv2d(4, 4, 3)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    model[2].eval()
    model[9].bias.requires_grad_(False)
    return model


def converted():
    return ns.convert(network(), "dynamic-diagonal")


def static():
    return ns.freeze_backbone(ns.convert(network(), "static-full"), train=())


def adapter(folder):
    backbone = network()
    return backbone, ns.save_adapter(ns.convert(backbone, "static-full"), folder / "a")


X, PREPROCESS = torch.randn(2, 3, 8, 8), Preprocess((0.0,) * 3, (1.0,) * 3)
PIXELS = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8)
IMAGES = Images(PIXELS, torch.arange(20) % 2, ("a", "b"))
LEARNT = IMAGES, PREPROCESS, AdaptationRecipe()
SEEN = IMAGES, PREPROCESS, choose_runtime("cpu")
LOOKS = {
    ns.plan: (network, lambda m, _: ns.plan(m, "dynamic-full")),
    ns.convert: (network, lambda m, _: ns.convert(m, "static-full")),
    ns.unconvert: (converted, lambda m, _: ns.unconvert(m)),
    ns.fold: (static, lambda m, _: ns.fold(m)),
    ns.max_difference: (network, lambda m, _: ns.max_difference(m, m, X)),
    ns.save_adapter: (static, lambda m, folder: ns.save_adapter(m, folder / "a")),
    ns.load_adapter: (adapter, lambda m, file: ns.load_adapter(m, file)),
    ns.adapters: (adapter, lambda m, file: ns.adapters(m, a=file).use("a").use(None)),
    ns.macs: (converted, lambda m, _: ns.macs(m, 3, 8, 8)),
    models.parameters: (network, lambda m, _: models.parameters(m)),
    ns.penalty: (static, lambda m, _: ns.penalty(m)),
    ns.parameter_groups: (
        network,
        lambda m, _: ns.parameter_groups(m, weight_decay=0.1, logits=lambda: m(X)),
    ),
    visualize.similarities: (converted, lambda m, _: visualize.similarities(m, X)),
    visualize.kernel_shapes: (converted, lambda m, _: visualize.kernel_shapes(m)),
    visualize.draw: (converted, lambda m, folder: visualize.draw(m, X, folder)),
    own_rate.find_rate: (network, lambda m, _: own_rate.find_rate(m, *LEARNT)),
    own_rate.new_head_fields: (network, lambda m, _: own_rate.new_head_fields(m, *LEARNT)),
    predict_logits: (network, lambda m, _: predict_logits(m, *SEEN)),
    evaluate_model: (network, lambda m, _: evaluate_model(m, *SEEN)),
}
CHANGES = {ns.freeze_backbone, ns.unfreeze_backbone, models.set_norms}


def traces(model):
    """All that a look could change."""
    bits = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        gradient = None if tensor.grad is None else (id(tensor.grad), tensor.grad.tolist())
        bits[name] = id(tensor), tensor.requires_grad, tensor.tolist(), gradient
    modules = {
        name: (type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), set(vars(m)))
        for name, m in model.named_modules()
    }
    return bits, modules, model[4].generator.get_state().tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_a_look_leaves_no_trace_and_a_copy_has_the_state(look, tmp_path):
    make, run = LOOKS[look]
    model, place = make(tmp_path) if make is adapter else (make(), tmp_path)
    before = traces(model)
    for _ in range(2):
        copied = run(model, place)
    bits, modules, generator, state = traces(model)
    assert (bits, modules) == before[:2]
    assert (generator, state) == before[2:]
    if look in (ns.convert, ns.unconvert, ns.load_adapter):
        original, copied = model.state_dict(), copied.state_dict()
        shared = original.keys() & copied.keys()
        assert {"0.parametrizations.weight.0._u", "1.running_mean", "4.calls"} <= shared
        assert all(torch.equal(copied[key], original[key]) for key in shared)


def test_every_public_function_of_a_network_has_a_case():
    takes = {"model", "backbone", "network"}
    named = [
        getattr(part, name) for part in (ns, regularize, visualize, models) for name in dir(part)
    ]
    functions = {f for f in named if inspect.isfunction(f)}
    looks = {f for f in functions if takes & {*inspect.signature(f).parameters}}
    assert looks - CHANGES <= {*LOOKS}
