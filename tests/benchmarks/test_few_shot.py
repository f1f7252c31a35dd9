import pytest

from benchmarks import few_shot
from benchmarks.case import Case
from benchmarks.few_shot import kept_features
from neural_similarity.lab.tasks.few_shot.metric import ProtoNet
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.train import choose_runtime

CPU = choose_runtime("cpu", "fp32")
CASE = Case(runtime=CPU, size=16, width=0.1, batch=50, rounds=3, attempts=1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(few_shot, "SIZES", TaskSizes(ways=3, shots=2, queries=2))


def test_the_evaluator_judges_as_the_definition():
    definition, ours = kept_features(CASE)
    assert definition.baseline
    assert ours.error == 0
    seconds = ours.times["all tasks"].seconds
    assert ours.costs["tasks_per_second"] == pytest.approx(50 / seconds)


def one_shot(adapt):
    """Prototypes of one image a class: nearly as good, and wrong."""
    return lambda self, support, labels, ways: adapt(self, support[:, ::5], labels[::5], ways)


def turned(adapt):
    return lambda self, support, *rest: adapt(self, support.flip(-2), *rest)


@pytest.mark.parametrize("mistake", [one_shot, turned])
def test_an_evaluator_that_is_wrong_has_no_time(monkeypatch, mistake):
    monkeypatch.setattr(ProtoNet, "adapt", mistake(ProtoNet.adapt))
    monkeypatch.setattr(few_shot, "SIZES", TaskSizes(ways=5, shots=5, queries=15))
    definition, ours = kept_features(CASE)
    assert definition.times
    assert ours.wrong
    assert not ours.times
