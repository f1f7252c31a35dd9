"""Gradient-based methods against finite differences, the library `higher`, and loops by hand."""

import warnings
import weakref

import pytest
import torch
from moved import moved
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import models
from neural_similarity.lab.tasks.few_shot import Episode
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.gradient import (
    GradientBased,
    Phase,
    anil,
    maml,
    meta_learned,
)
from neural_similarity.lab.tasks.few_shot.tuning import Tuning

with warnings.catch_warnings():  # its docstrings have invalid escape sequences
    warnings.simplefilter("ignore")
    import higher

DOUBLE = {"dtype": torch.float64}
WAYS = 3


def network(similarity="static-diagonal"):
    """Small, smooth, in float64, with similarities well away from the identity.

    A step of gradient descent jumps where a ReLU or a maximum changes sides, and with it the loss
    of which finite differences are taken.
    """
    torch.manual_seed(0)
    spec = ns.Dynamic(predictor=tanh) if similarity == "dynamic" else similarity
    built = models.convnet4(7, image_size=16, width=0.1, similarity=spec).double()
    for name, module in list(built.named_modules()):
        if isinstance(module, nn.ReLU):
            built.set_submodule(name, nn.Softplus())
        elif isinstance(module, nn.MaxPool2d):
            built.set_submodule(name, nn.AvgPool2d(2))
    return moved(built, std=0.3)


def tanh(geometry, scalars):
    """A smooth predictor for 3×3 layers."""
    return nn.Sequential(nn.Conv2d(geometry.in_channels, scalars, 3, padding=1), nn.Tanh())


def episode(seed=1, shots=2, queries=5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(WAYS * shots) % WAYS
    targets = torch.arange(queries) % WAYS
    images = torch.randn(len(labels) + queries, 3, 16, 16, generator=generator, **DOUBLE)
    return Episode(images[: len(labels)], labels, images[len(labels) :], targets)


FEW = {"steps": 2, "rate": 0.05}
METHODS = {
    "maml": lambda **o: maml(network("none"), WAYS, test_steps=2, **FEW, **o),
    "anil": lambda **o: anil(network("none"), WAYS, test_steps=2, **FEW, **o),
    "meta-learned static": lambda **o: meta_learned(network(), WAYS, head_steps=3, **FEW, **o),
    "meta-learned dynamic": lambda **o: meta_learned(
        network("dynamic"), WAYS, head_steps=3, **FEW, **o
    ),
    "maml of static": lambda **o: maml(network(), WAYS, test_steps=2, **FEW, **o),
    "maml of dynamic": lambda **o: maml(network("dynamic"), WAYS, test_steps=2, **FEW, **o),
}
TRANSDUCTIVE = ["maml", "anil", "meta-learned static"]


def make(name, statistics="support", **options):
    torch.manual_seed(0)
    return set_statistics(METHODS[name](**options), statistics)


def gradients(method, loss):
    """By name; of the parameters whose start is learned."""
    learned = {name: p for name, p in method.named_parameters() if p.requires_grad}
    return dict(zip(learned, torch.autograd.grad(loss, list(learned.values())), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("statistics", ["support", "transductive", "running"])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_finite_differences(name, statistics):
    method, task = make(name, statistics), episode()
    found = gradients(method, method.loss(task))
    torch.manual_seed(2)
    direction = {key: torch.randn_like(value) for key, value in found.items()}
    step, losses = 1e-6, []
    for sign in (1, -1):
        moved = make(name, statistics)
        for key, value in direction.items():
            moved.get_parameter(key).data += sign * step * value
        losses.append(moved.loss(task).item())
    slope = sum((found[key] * direction[key]).sum().item() for key in found)
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("name", TRANSDUCTIVE)
def test_gradients_are_those_of_higher(name, first_order):
    """An optimiser by `higher`, phase after phase, on torch's own batch normalisation."""
    method, task = make(name, "transductive", first_order=first_order), episode()
    found = gradients(method, method.loss(task))
    theirs = set_statistics(make(name), None).train()
    learned = {key for key, p in theirs.named_parameters() if p.requires_grad}
    theirs.requires_grad_(True)
    groups = {key: torch.zeros((), **DOUBLE) for key, _ in theirs.named_parameters()}
    optimizer = torch.optim.SGD([{"params": [p]} for p in theirs.parameters()], lr=0.0)
    options = {"copy_initial_weights": False, "track_higher_grads": True}
    with higher.innerloop_ctx(theirs, optimizer, **options) as (copy, inner):
        for phase in theirs.phases:
            fast = theirs.parameter_names(phase.fast)
            rates = [torch.tensor(phase.rate if key in fast else 0.0, **DOUBLE) for key in groups]
            for _ in range(phase.steps):
                loss = F.cross_entropy(copy(task.support), task.support_labels)
                callback = (lambda gs: [g.detach() for g in gs]) if first_order else None
                inner.step(loss, override={"lr": rates}, grad_callback=callback)
        loss = F.cross_entropy(copy(task.query), task.query_labels)
        wanted = {k: p for k, p in theirs.named_parameters() if k in learned}
        start = dict(zip(groups, copy.parameters(time=0), strict=True))
        expected = torch.autograd.grad(loss, [start[key] for key in wanted])
    assert_close(method.loss(task), loss)
    assert_close(found, dict(zip(wanted, expected, strict=True)))


def test_what_moves_in_each_phase_and_what_is_learned():
    static = make("meta-learned static")
    assert [phase.steps for phase in meta_learned(network(), WAYS).phases] == [5, 20]
    assert [phase.rate for phase in meta_learned(network(), WAYS).phases] == [0.2, 0.2]
    raw = {f"backbone.conv{stage}_1.0.similarity.raw" for stage in range(1, 5)}
    head = {"head.weight", "head.bias"}
    assert static.parameter_names(static.phases[0].fast) == raw | head
    assert static.parameter_names(static.phases[1].fast) == head
    assert sum(static.get_parameter(name).numel() for name in raw) == 36
    assert {name for name, p in static.named_parameters() if p.requires_grad} == raw | head
    dynamic = make("meta-learned dynamic")
    gains = {f"backbone.conv{stage}_1.0.similarity.gain" for stage in range(1, 5)}
    assert dynamic.parameter_names(dynamic.phases[0].fast) == gains | head
    learned = {name for name, p in dynamic.named_parameters() if p.requires_grad}
    assert learned == gains | head | dynamic.parameter_names(["predictor"])
    assert all(p.requires_grad for name in ("maml", "anil") for p in make(name).parameters())
    assert [make("anil").parameter_names(phase.fast) for phase in make("anil").phases] == [head]


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("statistics", ["support", "running"])
def test_adapted_predictions_are_inductive_and_keep_no_graph(name, statistics):
    method, task = make(name, statistics), episode()
    before = {key: value.clone() for key, value in method.state_dict().items()}
    predict = method.adapt(task.support, task.support_labels, WAYS)
    logits = predict(task.query)
    assert not logits.requires_grad
    assert_close(predict(task.query[:1]), logits[:1])
    assert_close(predict(torch.cat([task.query[:1], 50 * task.query]))[:1], logits[:1])
    assert_close(F.cross_entropy(logits, task.query_labels), method.loss(task).detach())
    assert all(torch.equal(before[key], value) for key, value in method.state_dict().items())
    with torch.no_grad():
        assert_close(method.adapt(task.support, task.support_labels, WAYS)(task.query), logits)


def most_saved(run):
    """Largest number of tensors that wait for a backward pass at a time."""
    alive, peak = weakref.WeakSet(), [0]

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor
            alive.add(self)
            peak[0] = max(peak[0], len(alive))

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        run()
    return peak[0]


def test_adaptation_frees_the_graph_of_every_step():
    task = episode()
    methods = [maml(network("none"), WAYS, steps=s, test_steps=s) for s in (1, 6)]
    tested = [most_saved(lambda m=m: m.adapt(*task[:2], WAYS)(task.query)) for m in methods]
    assert tested[0] == tested[1] > 0
    trained = [most_saved(lambda m=m: m.loss(task)) for m in methods]
    assert trained[1] > 3 * trained[0]


def test_steps_of_the_head_embed_the_support_set_once():
    task, calls = episode(), []
    for make in (lambda: anil(network("none"), WAYS), lambda: meta_learned(network(), WAYS)):
        method = make()
        method.backbone[0].register_forward_hook(lambda *_: calls.append(1))
        method.loss(task)
    assert len(calls) == (1 + 1) + (5 + 1 + 1)


def test_more_steps_at_test():
    torch.manual_seed(0)
    method, task = maml(network("none"), WAYS, steps=1, test_steps=4, rate=0.1), episode()
    torch.manual_seed(0)
    longer = maml(network("none"), WAYS, steps=4, test_steps=1, rate=0.1)
    logits = method.adapt(task.support, task.support_labels, WAYS)(task.query)
    assert_close(F.cross_entropy(logits, task.query_labels), longer.loss(task).detach())


def step(**changes):
    return Phase(**{"fast": ("head",), "steps": 1, "rate": 0.1, **changes})


test_errors = refusals(
    (lambda: step(steps=0), "`steps` must be at least 1, got 0"),
    (lambda: step(rate=0.0), "`rate` must be positive, got 0.0"),
    (lambda: step(fast=("body",)), "`fast` must name groups among all, head, .*, got 'body'"),
    (lambda: step(fast=()), "`fast` must name at least one group, got none"),
    (lambda: Tuning(batch_size=0), "`batch_size` must be an integer of at least 1, got 0"),
    (lambda: Tuning(epochs=-1), "`epochs` must be an integer of at least 1, got -1"),
    (lambda: Tuning(lr=0), "`lr` must be positive, got 0"),
    (lambda: GradientBased(network(), 3, []), "`phases` must have at least one phase"),
    (lambda: maml(network()[:-1]), "ends in a torch.nn.Linear, got a Sequential that ends in"),
    (lambda: maml(nn.Linear(3, 3)), "must be a torch.nn.Sequential .*, got a Linear"),
    (lambda: meta_learned(network("none")), "must have parameters of the group 'similarity'"),
    (lambda: GradientBased(network(), 3, [step()], trained=("predictor",)), "'predictor'"),
    (lambda: GradientBased(network(), 3, [step()], trained=("none",)), "`trained` must name"),
    (lambda: maml(network(), 5).loss(episode()), "`ways` must be 5, .* got 3"),
    (lambda: maml(network(), 2).adapt(*episode()[:2], 3), "`ways` must be 2, .* got 3"),
)
