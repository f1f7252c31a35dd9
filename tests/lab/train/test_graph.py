"""Updates as a CUDA graph: the function that is captured, its order of events, and fallbacks."""

import logging
from functools import partial

import pytest
import torch
from tiny_images import TINY, make_dataset, tiny_world
from torch import nn

from neural_similarity.lab.data import Augment, Batches, Place, Preprocess
from neural_similarity.lab.train import graph, loop
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.objective import Classification
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.models import cnn9
from neural_similarity.regularize import parameter_groups

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
RATES = [0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001]
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]


def make_job(device=CPU):
    """A job of the loop, its state before the first step, and its network."""
    images = make_dataset().train
    runtime = Runtime(device, "fp32", channels_last=True)
    preprocess = Preprocess.fit_to_images(images)
    options = {"augment": Augment(crop=1), "seed": 3, "place": Place(device=device)}
    batches = Batches(images, 8, preprocess=preprocess, **options)
    torch.manual_seed(5)
    model = cnn9(4, in_channels=1, image_size=8, width=0.1, similarity=TINY.similarity)
    model = runtime.place_model(model)
    optimizer = torch.optim.SGD(parameter_groups(model, weight_decay=0.01), lr=1, momentum=0.9)
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    objective = Classification(runtime, batches)
    return loop.Job(TINY, runtime, objective), TrainingState(model, optimizer, totals)


def advance_through(job, state, advance):
    for step, rate in enumerate(RATES):
        job.objective.prepare(step)
        advance(rate)
    return state


def trained(device=CPU, make=graph.repeated_update):
    job, state = make_job(device)
    update = partial(loop.update_once, job, state, state.model)
    return advance_through(job, state, make(update, state.optimizer, device))


def events_of_graphs(monkeypatch, fails=None):
    """Of stand-ins on the CPU for a GPU's graphs: a capture runs nothing, a replay runs it all."""
    events = []

    def noted(name, update):
        return lambda: (events.append(name), update())

    def capture(update, _device):
        events.append("capture")
        if fails:
            raise RuntimeError(fails)
        return noted("replay", update)

    monkeypatch.setattr(graph, "update_aside", lambda update, _: noted("aside", update)())
    monkeypatch.setattr(graph, "capture_update", capture)
    return events


@pytest.mark.long
@pytest.mark.parametrize(
    ("fails", "then"),
    [(None, ["replay"] * 4), ("operation not permitted when stream is capturing\nmore", [])],
)
def test_updates_are_true_and_a_failed_capture_goes_on_plainly(monkeypatch, caplog, fails, then):
    events = events_of_graphs(monkeypatch, fails)
    found, expected = trained(make=graph.Graphed), trained()
    assert events == ["aside"] * 3 + ["capture", *then]
    told = "not captured as a CUDA graph: operation not permitted when stream"
    assert (told in caplog.text) == bool(fails)
    assert "more" not in caplog.text
    for name, weight in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], weight, rtol=1e-4, atol=1e-5)


def test_the_learning_rate_is_one_tensor_for_good(monkeypatch):
    events_of_graphs(monkeypatch)
    weight, other = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([{"params": weight}, {"params": other, "scale": 3.0}], lr=1)
    rates = []

    def update():
        rates.append(optimizer.param_groups[0]["lr"])
        seen.append(rates[-1].item())
        weight.grad = other.grad = torch.ones(())
        optimizer.step()

    seen: list[float] = []
    advance = graph.Graphed(update, optimizer, CPU)
    for rate in RATES:
        advance(rate)
    assert seen == pytest.approx(RATES)
    assert len({rate.data_ptr() for rate in rates}) == 1
    assert weight.item() == pytest.approx(-sum(RATES))
    assert other.item() == pytest.approx(-3 * sum(RATES))


@pytest.mark.parametrize(
    ("kind", "device", "reason"),
    [
        (torch.optim.SGD, CPU, "they run on cpu"),
        (torch.optim.Adam, CUDA, "Adam reads its learning rate on the host"),
    ],
)
def test_it_says_why_updates_are_plain(kind, device, reason, caplog):
    optimizer = kind([nn.Parameter(torch.zeros(2))], lr=1)
    with caplog.at_level(logging.INFO):
        assert not isinstance(graph.repeated_update(lambda: None, optimizer, device), graph.Graphed)
    assert f"Updates are not captured as a CUDA graph: {reason}." in caplog.text


def test_a_batch_is_drawn_into_the_same_memory():
    job, _ = make_job()
    batches = job.objective.batches
    drawn = batches._drawn
    first = batches.at(0)
    kept = [part.clone() for part in first]
    batches.load(4)
    assert batches._drawn is drawn
    expected = make_job()[0].objective.batches.at(4)
    assert all(map(torch.equal, batches.loaded(), expected))
    assert all(map(torch.equal, first, kept))


@pytest.mark.parametrize("device", [pytest.param(CUDA, marks=needs_gpu)], ids=str)
def test_a_graph_trains_as_the_plain_loop(device, caplog):
    torch.use_deterministic_algorithms(False)
    with tiny_world(), caplog.at_level(logging.WARNING):
        plain = trained(device, lambda update, optimizer, _: graph.plain_update(update, optimizer))
        captured = trained(device)
    assert not caplog.text
    torch.testing.assert_close(captured.totals, plain.totals, rtol=1e-4, atol=1e-3)
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(captured.model.state_dict()[name], weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", [pytest.param(CUDA, marks=needs_gpu)], ids=str)
def test_after_a_failed_capture_a_gpu_goes_on(device, caplog):
    def descend(device):
        weight = nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([weight], lr=1)

        def update():
            weight.grad = weight.detach() * weight.sum().item()  # No capture may wait for a number.
            optimizer.step()

        advance = graph.repeated_update(update, optimizer, device)
        for rate in RATES:
            advance(rate)
        return weight.detach().cpu()

    torch.testing.assert_close(descend(device), descend(CPU))
    assert "not captured as a CUDA graph" in caplog.text
    assert "operation not permitted" in caplog.text  # What broke it, not that it was broken.
    torch.rand(3, device=device)  # Its generator is out of the capture, too.
