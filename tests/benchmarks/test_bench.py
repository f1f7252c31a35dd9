"""What the benchmarks compare computes what it says, and what does not is not timed."""

import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from problems import by_hand
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from benchmarks import networks, oracle
from benchmarks import subjects as catalogue
from benchmarks.case import Case, Operator
from benchmarks.compare import Entrant, compare, problem, without_tf32
from benchmarks.options import Options
from benchmarks.oracle import Checker
from neural_similarity import models
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import choose_runtime
from neural_similarity.ops import backend, native

CPU = choose_runtime("cpu", "fp32")
SHORT = Case(runtime=CPU, width=0.1, rounds=3, attempts=1)
SMALL = replace(SHORT, batch=3, channels=4, size=5)
ONE = {"batch": (2,), "size": (4,), "similarity": ("diagonal",)}
OPTIONS = Options(dtype="fp32", rounds=3, device="cpu", quick=True, **ONE)
BOTH = pytest.mark.parametrize("kind", ["diagonal", "full"])
DTYPES = pytest.mark.parametrize("dtype", ["fp32", "bf16"])


@BOTH
def test_oracles_are_the_definition(kind):
    case = replace(SMALL, kind=kind)
    x, weight, m = (t.detach().double() for t in case.operands[:3])
    static = case.operands.static.detach().double()
    module, everywhere = Operator(None, nn.Parameter(weight)), static.flatten()[:, None, None]
    for given, maps in ((m, m), (static, everywhere.expand(3, -1, 5, 5))):
        expected = by_hand(x, weight, maps.unflatten(1, case.taps), (1, 1), (1, 1), (1, 1), 1)
        assert_close(oracle.operator(module, x, given).flatten(2), expected)


def biased_layer(_case, similarity):
    return ns.Conv2d(3, 6, 3, padding=1, similarity=similarity)


@pytest.mark.parametrize("make", [networks.cnn9, biased_layer])
@pytest.mark.parametrize("similarity", ["plain", "static-full", "dynamic-diagonal"])
def test_the_networks_oracle_is_the_network_in_float64(make, similarity):
    model = make(SHORT, None if (make, similarity) == (biased_layer, "plain") else similarity)
    model, x = model.double().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = model(x)
    for _ in range(2):
        assert_close(oracle.network(model, x), expected)


@BOTH
@DTYPES
@pytest.mark.parametrize(("batch", "channels", "size"), [(1, 4, 5), (5, 3, 9)])
def test_every_subject_is_right(kind, dtype, batch, channels, size, monkeypatch):
    monkeypatch.setattr(oracle, "CHUNK", 200)  # Oracles take two images of 9×9 at a time.
    sizes = {"batch": batch, "channels": channels, "size": size}
    case = Case(kind=kind, runtime=choose_runtime("cpu", dtype), **sizes)
    found = list(catalogue.subjects(case))
    assert found[0].name == catalogue.BASELINE
    names = {subject.name for subject in found}
    assert len(names) == len(found) == (8 if kind == "diagonal" else 7)
    checker = Checker(case.operands.grad, case.dtype)
    for subject in found:
        if (subject.name, dtype) == ("deform_conv2d", "bf16"):
            with pytest.raises(RuntimeError, match="not implemented for 'BFloat16'"):
                checker.errors(subject)
        else:
            assert problem(checker.errors(subject)) is None, subject.name


@pytest.fixture
def few(monkeypatch):
    """Networks are checked on two images."""
    monkeypatch.setattr(networks, "CHECKED", 2)


@pytest.mark.long
@DTYPES
@pytest.mark.parametrize(
    "similarity", [networks.PLAIN, "static-full", "dynamic-diagonal", *networks.PREDICTORS]
)
@pytest.mark.usefixtures("few")
def test_networks_are_right(dtype, similarity):
    case = replace(SHORT, runtime=choose_runtime("cpu", dtype))
    subject = networks.subject_of(case, similarity, networks.cnn9(case, similarity))
    assert problem(networks.checker_of(case).errors(subject)) is None


@pytest.mark.parametrize(
    "name",
    [
        *("cifar10-cnn++", "cifar10-cnn-macs", "cifar10-cnn@released"),
        *("cifar10-dynamic-dns-shared", "cifar10-dynamic-dns-j"),
    ],
)
@pytest.mark.usefixtures("few")
def test_networks_of_recipes_are_right_and_the_recipes_own(name):
    subject = networks.subject_of(SHORT, name, networks.of_recipe(SHORT, name))
    assert problem(networks.checker_of(SHORT).errors(subject)) is None
    recipe = RECIPES[name]
    options = {"width": 0.1 * recipe.width, "similarity": recipe.similarity}
    options |= {"variant": "released"} if name.endswith("released") else {}
    own = models.build(recipe.model, 10, **options)
    layers = subject.module.named_modules()
    backbone = [layer for path, layer in layers if ".predictor." not in path]
    norms = [layer for layer in backbone if isinstance(layer, nn.BatchNorm2d)]
    assert {norm.eps for norm in norms} == {1e-3 if name.endswith("released") else 1e-5}
    assert subject.name == name
    assert [(key, value.shape) for key, value in subject.module.network.state_dict().items()] == [
        (key, value.shape) for key, value in own.state_dict().items()
    ]


def entrant(name, error=0.0, **costs):
    return Entrant(
        name=name,
        errors=lambda: {torch.float32: error},
        calls={"forward": lambda: None},
        costs={name: lambda value=value: value for name, value in costs.items()},
    )


def test_nothing_is_timed_beside_a_wrong_baseline_and_unknown_costs_are_left_out():
    rows = compare({}, [entrant("wrong", 0.5), entrant("right")], SHORT)
    assert [row.wrong for row in rows] == [True, False]
    assert not any(row.times for row in rows)
    (row,) = compare({"dtype": "fp32"}, [entrant("plain", known=1.0, unknown=None)], SHORT)
    assert row.group == {"dtype": "fp32", "threads": 1}
    assert row.costs.keys() - {"peak_bytes"} == {"known"}
    assert (row.baseline, row.times["forward"].ratio) == (True, 1)


@pytest.mark.usefixtures("few")
def test_gradients_of_networks_are_compared_in_float64():
    """A gradient that is wrong by a thousandth is found, though bf16 itself errs by more."""
    case = replace(SHORT, runtime=choose_runtime("cpu", "bf16"))
    subject = networks.subject_of(case, "", networks.cnn9(case, "dynamic-diagonal"))

    class Slightly(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            x = self.network(x)
            return x + 1e-3 * (x - x.detach())

    def of_the_network(module, x):
        return oracle.network(module.network, x)

    planted = replace(subject, module=Slightly(subject.module), oracle=of_the_network)
    assert "in float64, allowed 1.5e-08" in problem(networks.checker_of(case).errors(planted))


def test_expectations_are_computed_once_for_equal_subjects_only():
    given, calls = SMALL.operands, []

    def counted(module, *inputs):
        calls.append(module)
        return oracle.operator(module, *inputs)

    subject = replace(catalogue.our_operator("", SMALL), oracle=counted)
    checker = Checker(given.grad, torch.float32)
    checker.errors(subject)
    checker.errors(replace(subject, name="again"))
    assert len(calls) == 1
    other = Operator(subject.module.function, nn.Parameter(2 * given.weight))
    assert problem(checker.errors(replace(subject, module=other))) is None
    assert len(calls) == 2


def test_without_tf32_both_of_torchs_switches_can_be_read_and_come_back():
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul

    def switches():
        old = cudnn.allow_tf32, products.allow_tf32
        return *old, cudnn.conv.fp32_precision == "tf32", products.fp32_precision

    before = switches()
    with without_tf32():
        assert switches() == (False, False, False, "ieee")
    assert switches() == before


DECLINING = native.ENTRY._replace(declines=lambda *_: "no compiler")


@pytest.mark.parametrize(
    ("table", "key", "value", "name", "reason"),
    [
        (sys.modules, "torchvision.ops", None, "deform_conv2d", "import of torchvision.ops halted"),
        (backend.ENTRIES, "compiled", DECLINING, "ours, compiled", "no compiler"),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(table, key, value, name, reason, monkeypatch):
    monkeypatch.setitem(table, key, value)
    rows = {row.name: row for row in catalogue.operators(OPTIONS)}
    absent = rows.pop(name)
    assert absent.problem.startswith("not measured: ")
    assert reason in absent.problem
    assert not absent.wrong
    assert not absent.times
    assert all(row.times for row in rows.values())


def test_what_fails_of_ours_is_not_told_as_not_measured(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr(catalogue, "similarity_conv2d", broken)
    with pytest.raises(RuntimeError, match="broken"):
        list(catalogue.operators(OPTIONS))


def test_learning_leaves_the_identity():
    for similarity in ("static-full", "dynamic-diagonal"):
        names = (similarity, similarity, networks.PLAIN)
        moved, again, plain = (networks.cnn9(SHORT, name).eval() for name in names)
        x = SHORT.images(2)
        assert (moved(x) - plain(x)).abs().max() > 1e-3
        assert torch.equal(moved(x), again(x))


def test_scores_that_folding_changes_have_no_time(monkeypatch):
    def wrong(network):
        return networks.move_similarities(deepcopy(network))

    monkeypatch.setattr(networks, "fold", wrong)
    rows = list(networks.inference(replace(OPTIONS, similarity=("static-full",), size=())))
    assert [row.name for row in rows if row.wrong] == ["static-full, folded"]
    assert [bool(row.times) for row in rows] == [True, True, False]
