"""Every gradient-based and deep method learns: on classes it has not seen, in seconds."""

import copy
from dataclasses import replace

import pytest
import textures
import torch

import neural_similarity as ns
from neural_similarity.lab.data import load_split
from neural_similarity.lab.session import train
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluator
from neural_similarity.lab.tasks.few_shot.gradient import anil, maml, meta_learned
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.train.journal import read_lines

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def classifier():
    """A network trained on base classes; tests copy it."""
    torch.set_num_threads(1)
    return textures.classified(textures.network())


def improvement(method, **options):
    """Accuracy before and after training, the first and the last losses."""
    before = textures.accuracy(method)
    losses = torch.tensor(textures.trained(method, **options))
    assert losses[-20:].mean() < losses[:10].mean()
    return before, textures.accuracy(method)


FEW = {"steps": 2, "test_steps": 2, "rate": 0.1}


@pytest.mark.long
@pytest.mark.parametrize(("make", "steps"), [(maml, 120), pytest.param(anil, 300, marks=SLOW)])
def test_a_start_for_gradient_descent_is_learned(make, steps):
    before, after = improvement(make(textures.network(), 5, **FEW), steps=steps)
    assert before < 0.3
    assert after > 0.45


@pytest.mark.long
@pytest.mark.parametrize(
    ("similarity", "steps"),
    [("static-diagonal", 100), pytest.param("dynamic-diagonal", 40, marks=SLOW)],
)
def test_meta_learning_the_similarity_alone_repairs_a_disturbed_one(classifier, similarity, steps):
    network = copy.deepcopy(classifier)
    if similarity == "static-diagonal":
        network = ns.convert(network, similarity)
    else:
        network = textures.classified(textures.network(similarity=similarity))
    torch.manual_seed(5)
    kernels = network[0].weight.clone()
    for name, parameter in network.named_parameters():
        if name.endswith((".raw", ".gain")):
            parameter.data += torch.randn_like(parameter)
    method = meta_learned(network, 5, steps=2, head_steps=3)
    before, after = improvement(method, steps=steps, rate=1e-2)
    assert after > max(0.5, before + 0.15)
    assert torch.equal(kernels, method.backbone[0].weight)


SMALL = FewShotRecipe(
    dataset="embedded",
    width=0.1,
    steps=60,
    drops=(),
    lr=3e-3,
    batch_size=32,
    ways=3,
    queries=5,
    crop=1,
    flip=False,
    precision="fp32",
    threads=1,
    log_every=10,
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "model", "steps"),
    [("k-shot", "resnet34", 0), ("tadam", "resnet12", 40), ("leo", "wrn28_10", 30)],
)
def test_deep_methods_learn_on_the_backbones_of_their_papers(tmp_path, method, model, steps):
    """On real images of 28 pixels: the backbone names base classes, then come tasks of them."""
    run = train(replace(SMALL, model=model), out=tmp_path / model, device="cpu")
    if steps:
        recipe = replace(SMALL, model=model, method=method, steps=steps, start=str(run.path))
        run = train(recipe, out=tmp_path / method, device="cpu")
        losses = [line["loss"] for line in read_lines(run.metrics) if "loss" in line]
        assert losses[-1] < losses[0]
    split = load_split("embedded", tmp_path)
    facts = {"seed": 0, "data": split.digest, "part": "test"}
    tasks = draw_tasks(split.test, TaskSizes(ways=3), 40, **facts)
    evaluation, _ = Evaluator(method=method, device="cpu")(run, split, tasks)
    assert evaluation.summary["accuracy"] > 1 / 3 + 0.3
