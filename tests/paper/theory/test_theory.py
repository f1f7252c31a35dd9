"""What the experiments on section 5 compute, against closed forms and torch's own routines."""

import json
from functools import reduce
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from moved import moved
from numpy.testing import assert_allclose
from torch import nn

import neural_similarity as ns
from neural_similarity.lab import cli
from neural_similarity_paper.learned import learned
from neural_similarity_paper.theory import bias, euler, flow, order, spectra
from neural_similarity_paper.theory.measures import effective_rank, nuclear_norm, seed_generators


def published(experiment):
    """Numbers of five seeds: those of the first seeds come out again."""
    file = Path(__file__).parents[3] / f"results/theory/{experiment}.json"
    return json.loads(file.read_text())["result"]


@pytest.mark.parametrize(
    ("values", "rank"), [([1, 1, 1], 3), ([5, 0, 0], 1), ([2, 2, 0], 2), ([2, 1, 1], 8**0.5)]
)
def test_norm_and_rank_of_matrices_with_known_singular_values(values, rank):
    values = torch.tensor(values, dtype=torch.float64)
    left, right = (torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0] for _ in range(2))
    matrix = left * values @ right
    assert nuclear_norm(matrix).item() == pytest.approx(values.sum().item())
    assert effective_rank(matrix).item() == pytest.approx(rank)
    assert effective_rank(7 * matrix).item() == pytest.approx(rank)


@pytest.mark.long
def test_gradient_descent_of_a_layer_follows_equation_6():
    found = flow.compute(seeds=3)
    assert (
        max(found["derivative_errors"][-1]) < 1e-3
    )  # At a step of 1e-4, and of first order in it:
    assert found["derivative_errors"][-1][0] < 0.05 * found["derivative_errors"][0][0]
    assert found["trajectory_order"] == pytest.approx([1] * 3, abs=0.1)
    assert max(found["plain_errors"]) < 1e-9
    assert max(found["invariant_drift"]) < 1e-9
    assert min(curve[-1] for curve in found["distance_to_plain"]) > 0.01
    told = published("flow")
    assert_allclose(found["distance_to_plain"], told["distance_to_plain"][:3], rtol=1e-6)
    assert_allclose(
        found["trajectory_errors"], [row[:3] for row in told["trajectory_errors"]], 1e-6
    )
    assert (list(found["steps"]), found["times"]) == (told["steps"], told["times"])


def test_equation_6_is_the_derivative_of_the_product():
    data = flow.make_regression(torch.Generator().manual_seed(3))
    weight, m = data.weight.clone().requires_grad_(), torch.randn(6, 6).double().requires_grad_()
    loss = 0.5 * (data.y - weight @ m @ data.x).square().sum()
    towards_w, towards_m = torch.autograd.grad(-loss, [weight, m])
    derivative = flow.kernel_derivative(data, weight, m)
    torch.testing.assert_close(derivative, towards_w @ m + weight @ towards_m)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["regression", "sensing", "completion"])
def test_plain_descent_from_little_finds_the_solution_of_least_norm(kind):
    random = seed_generators(2)
    data = bias.make_problem(kind, random)
    start = bias.initial_factors([bias.Start("little", 1, 1e-6)], random)
    products, losses, _ = bias.descend_factors(data, start, 0.05, [0, 3000])
    expected = data.least_norm()
    assert (products[-1, :, 0] - expected).norm() < 2e-2 * expected.norm()
    assert losses[-1].max() < 1e-3 * losses[0].max()
    measured = data.operator @ expected.flatten(1)[..., None]
    torch.testing.assert_close(measured, data.measured_targets)


def test_a_product_from_the_identity_is_the_plain_kernel_at_first():
    starts = [bias.Start("I", depth, 1.0) for depth in (1, 2, 3)]
    begun = [bias.initial_factors([start], seed_generators(2)) for start in starts]
    whole = [reduce(torch.matmul, each) for each in begun]
    assert torch.equal(whole[0], whole[1])
    assert torch.equal(whole[0], whole[2])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_snapshots_are_of_their_steps(depth):
    random = seed_generators(2)
    data = bias.make_problem("sensing", random)
    start = bias.initial_factors([bias.Start("I", depth, 1.0)], random)
    products, losses, last = bias.descend_factors(data, start, 0.05, [0, 3])
    assert torch.equal(products[0], reduce(torch.matmul, start))
    misses = data.measured_targets - data.operator @ products[..., 0, :, :].flatten(2)[..., None]
    torch.testing.assert_close(losses[..., 0], 0.5 * misses.square().sum((2, 3)))
    moved = bias.descend_factors(data, start, 0.05, [2])[2]  # after 3 steps, as the snapshot
    torch.testing.assert_close(products[1], reduce(torch.matmul, moved))
    assert not torch.equal(products[1], reduce(torch.matmul, last))


def test_what_is_measured_of_a_start(monkeypatch):
    """Differences are to the plain kernel of the same start, seed by seed."""
    monkeypatch.setattr(bias, "SNAPSHOTS", bias.SNAPSHOTS[:2])
    whole, told = bias.compute(seeds=5), published("bias")
    found = whole["problems"]["sensing"]
    outcomes = {
        (one["start"]["depth"], one["start"]["weight"]): one for one in reversed(found["outcomes"])
    }
    plain, product = outcomes[1, 1], outcomes[2, 1]
    apart = (
        sum(a - b for a, b in zip(product["nuclear_norm"], plain["nuclear_norm"], strict=True)) / 5
    )
    assert product["nuclear_norm_to_plain"]["mean"] == pytest.approx(apart)
    assert plain["nuclear_norm_to_plain"]["mean"] == 0
    assert min(product["moved"]) > 0
    assert max(plain["moved"]) == 0
    for kind, panel in whole["problems"].items():
        for name in ("truth_nuclear_norm", "least_norm_nuclear_norm"):
            assert_allclose(panel[name], told["problems"][kind][name])
        for ours, theirs in zip(panel["outcomes"], told["problems"][kind]["outcomes"], strict=True):
            for name, curve in ours["curves"].items():
                assert_allclose(curve, theirs["curves"][name][:2], rtol=1e-3, atol=1e-30)
    assert_the_picture_has_every_mean(whole)


def assert_the_picture_has_every_mean(found):
    figure = Figure()
    bias.draw_result(found, figure)
    for place, panel in enumerate(found["problems"].values()):
        for axes, name in zip(figure.axes[3 * place :], ("nuclear_norm", "error"), strict=False):
            drawn = [bar.lines[0].get_xdata()[0] for bar in axes.containers]
            means = [sum(outcome[name]) / 5 for outcome in panel["outcomes"]]
            assert drawn == pytest.approx(means)


def test_residual_layers_are_steps_of_euler():
    found = euler.compute(seeds=3)
    assert max(found["step_errors"]) < 1e-12
    assert found["order"] == pytest.approx([1] * 3, abs=0.1)
    assert max(found["full_misfit"]) < 1e-12
    assert min(found["shared_misfit"]) > 0.1
    told = published("euler")
    assert_allclose(found["flow_errors"], [row[:3] for row in told["flow_errors"]], rtol=1e-6)
    assert found["shared_misfit"] == pytest.approx(told["shared_misfit"][:3])


def test_the_solution_of_the_equation_is_that_of_small_steps():
    x, kernel = torch.randn(1, 2, 4, 4).double(), torch.randn(2, 2, 3, 3).double() / 5
    y = x
    for _ in range(20_000):
        y = y + nn.functional.conv2d(y, kernel, padding=1) / 20_000
    torch.testing.assert_close(euler.exact_solution(x, kernel), y, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_one_dynamic_layer_is_a_quadratic_function(monkeypatch):
    monkeypatch.setattr(order, "SAMPLES", 128)
    monkeypatch.setattr(order, "STEPS", 800)
    found = order.compute(seeds=3)
    assert max(found["test"]["diagonal"] + found["test"]["full"]) < 0.01
    assert found["train"]["plain"] == pytest.approx(found["floor"], rel=1e-6)
    assert min(found["test"]["plain"]) > 0.8


def test_layers_start_as_the_published_ones(monkeypatch):
    monkeypatch.setattr(order, "STEPS", 1)
    found, told = order.compute(seeds=3), published("order")
    assert found["floor"] == pytest.approx(told["floor"][:3])
    for name, curves in found["curves"].items():
        starts = [curve[0] for curve in told["curves"][name][:3]]
        assert [curve[0] for curve in curves] == pytest.approx(starts)


def test_the_variance_of_a_quadratic_form():
    matrix, x = torch.randn(4, 4).double(), torch.randn(400_000, 4).double()
    drawn = torch.einsum("np,pq,nq->n", x, matrix, x).var().item()
    assert order.quadratic_variance(matrix) == pytest.approx(drawn, rel=0.03)


def test_spectra_are_those_of_the_folded_kernels():
    network = ns.models.cnn9(10, width=0.1, similarity="static-full")
    for part in network.modules():
        if isinstance(part, ns.Conv2d):
            nn.init.normal_(part.similarity.raw, std=0.1)
    kernels = [m for m in ns.fold(network).modules() if isinstance(m, nn.Conv2d)]
    layers = spectra.measure_network(network)
    assert len(layers) == len(kernels) == 9
    for layer, kernel in zip(layers, kernels, strict=True):
        values = torch.linalg.svdvals(kernel.weight.detach().double().flatten(1))
        assert layer["filters_spectrum"] == pytest.approx((values / values[0]).tolist(), rel=1e-3)
        assert layer["filters_rank"] == pytest.approx(
            effective_rank(values.diag()).item(), rel=1e-6
        )
        assert layer["filters_rank"] != pytest.approx(layer["own_filters_rank"], rel=1e-4)
        assert layer["m_distance"] == pytest.approx(0.3, rel=0.5)
    assert spectra.measure_network(ns.unconvert(network))[0]["m_distance"] is None


def test_spectra_of_runs_are_averaged_over_seeds(tmp_path, monkeypatch):
    places = [tmp_path / f"a-seed{seed}" for seed in range(2)]
    networks = {p: ns.models.cnn9(10, width=0.1, similarity="static-full") for p in places}
    monkeypatch.setattr(ns, "load", networks.get)
    found = spectra.compute(list(networks))
    ranks = [network["layers"][0]["taps_rank"] for network in found["networks"]]
    assert found["groups"]["a"]["runs"] == 2
    assert found["groups"]["a"]["taps_rank"]["mean"][0] == pytest.approx(sum(ranks) / 2)
    with pytest.raises(ValueError, match="must name at least one run folder"):
        spectra.compute([])


def test_a_layer_that_folds_into_others_has_the_spectrum_of_w_m():
    shift = ns.Static(ns.Unshared(ns.Shift(), channels="each"))
    network = moved(nn.Sequential(ns.Conv2d(4, 6, 3, similarity=shift)), std=1)
    m = network[0].similarity.full_matrix()  # one a channel
    kernel = torch.einsum("ocp,cpq->ocq", network[0].weight.flatten(2), m)
    values = torch.linalg.svdvals(kernel.flatten(1).double())
    (found,) = spectra.measure_network(network)
    wanted = (values / values[0]).tolist()
    assert found["filters_spectrum"] == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    assert learned(network)["0"]["spectrum"] == pytest.approx(values.tolist(), rel=1e-3, abs=1e-6)


def test_the_command_writes_numbers_and_a_picture(tmp_path, capsys):
    assert cli.main(["theory", "euler", "--seeds", "3", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "euler.json").read_text())
    assert len(record["result"]["step_errors"]) == 3
    assert (tmp_path / "euler.png").stat().st_size > 5_000
    assert str(tmp_path / "euler.png") in capsys.readouterr().out


def test_how_far_m_moved_is_over_the_length_where_it_started(monkeypatch):
    monkeypatch.setattr(bias, "SNAPSHOTS", (0, 1))
    descend = bias.descend_factors

    def stretched(data, starts, rate, snapshots):
        """The factors of start i end (i + 1) times as long as they were."""
        products, losses, _ = descend(data, starts, rate, snapshots)
        times = 1.0 + torch.arange(starts[0].shape[1])
        return products, losses, [factor * times[:, None, None] for factor in starts]

    monkeypatch.setattr(bias, "descend_factors", stretched)
    outcomes = iter(bias.compute(seeds=3)["problems"]["sensing"]["outcomes"])
    for starts in bias.FACTOR_STARTS:
        for index, start in enumerate(starts):
            wanted = [0.0 if start.depth == 1 else float(index)] * 3
            assert next(outcomes)["moved"] == pytest.approx(wanted)
