"""The experiments of section 5 against closed forms and other solvers."""

import json

import pytest
import torch
from scipy.integrate import solve_ivp

import neural_similarity as ns
from neural_similarity.lab.cli import main
from neural_similarity.lab.session import train
from neural_similarity.lab.theory import bias, euler, factors, flow, measures, order, spectra
from neural_similarity.lab.train import Recipe


def randoms(seeds=2):
    return measures.generators(seeds)


@pytest.mark.parametrize(
    ("matrix", "rank", "norm"),
    [
        (torch.eye(5).double(), 5, 5),
        (torch.ones(4, 6).double(), 1, 24**0.5),
        (torch.diag(torch.tensor([3.0, 3.0, 0.0])).double(), 2, 6),
    ],
)
def test_measures_of_matrices_with_known_singular_values(matrix, rank, norm):
    assert measures.effective_rank(matrix).item() == pytest.approx(rank)
    assert measures.effective_rank(7 * matrix).item() == pytest.approx(rank)
    assert measures.nuclear_norm(matrix).item() == pytest.approx(norm)


def test_eq_6_is_the_chain_rule():
    (generator, _) = randoms()
    data = flow.problem(generator)
    m = torch.randn(6, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = data.weight.clone().requires_grad_()
    loss = 0.5 * (data.y - weight @ m @ data.x).square().sum()
    weight_dot, m_dot = (-each for each in torch.autograd.grad(loss, (weight, m)))
    expected = weight_dot @ m + weight @ m_dot
    assert torch.allclose(flow.eq6(data, weight, m), expected, rtol=1e-12)


def test_gradient_descent_follows_the_flow(monkeypatch):
    monkeypatch.setattr(flow, "STEPS", (1e-2, 1e-3))
    result = flow.compute(2)
    for coarse, fine in zip(*result.derivative_errors, strict=True):
        assert fine < 0.12 * coarse
    assert max(result.plain_errors) < 1e-9
    assert max(result.invariant_drift) < 1e-9
    assert result.trajectory_order == pytest.approx([1, 1], abs=0.1)
    assert all(distances[0] == 0 and distances[-1] > 0.01 for distances in result.distance_to_plain)


@pytest.mark.parametrize("kind", ["regression", "sensing", "completion"])
def test_measurements_and_their_gradient(kind):
    data = factors.problem(kind, randoms())
    assert (data.operator @ data.least_norm().flatten(1)[..., None]).allclose(data.targets)
    if kind == "regression":  # Every sample gives each row of the truth times the sample.
        inputs = data.operator[0, : factors.MEASUREMENTS // factors.SIZE, : factors.SIZE]
        assert data.targets[0, :, 0].allclose((data.truth[0] @ inputs.T).flatten())
    start = factors.initial([factors.Start("", 2, 1.0)], randoms())
    weight, m = (factor[0, 0] for factor in start)
    _, losses, (after, m_after) = factors.descend(data, start, 0.01, [0, 1])
    operator, targets = data.operator[0].view(-1, 20, 20), data.targets[0, :, 0]
    residual = torch.einsum("kij,ij->k", operator, weight @ m) - targets
    gradient = torch.einsum("k,kij->ij", residual, operator)
    assert losses[0, 0, 0].item() == pytest.approx(0.5 * residual.square().sum().item())
    assert after[0, 0].allclose(weight - 0.01 * gradient @ m.T)
    assert m_after[0, 0].allclose(m - 0.01 * weight.T @ gradient)


@pytest.mark.parametrize(("kind", "holds"), [("regression", True), ("sensing", False)])
def test_plain_descent_finds_the_least_frobenius_norm(kind, holds):
    """In regression it is of least nuclear norm too: it projects the truth, which shrinks it."""
    data = factors.problem(kind, randoms())
    zero = [torch.zeros(2, 1, 20, 20, dtype=torch.float64)]
    products, losses, _ = factors.descend(data, zero, 0.05, [2000])
    assert losses.max() < 1e-8
    assert products[0, :, 0].allclose(data.least_norm(), atol=1e-4)
    least, truth = measures.nuclear_norm(data.least_norm()), measures.nuclear_norm(data.truth)
    assert bool((least < truth).all()) == holds


def test_only_small_starts_are_drawn_to_low_nuclear_norm(monkeypatch):
    monkeypatch.setattr(bias, "SNAPSHOTS", (0, 600))
    panel = bias._panel("sensing", 3)
    ends = {(each.start.depth, each.start.label): each for each in panel.outcomes}
    identity = ends[2, "I, W of length 0.01"].nuclear_norm_to_plain
    small = ends[2, "0.03 G, both random"]
    assert abs(identity["mean"]) < 0.05
    assert small.nuclear_norm_to_plain["high"] < -0.2
    assert small.error_to_plain["high"] < 0


def test_residual_layers_are_euler_steps():
    result = euler.compute(2)
    assert max(result.step_errors) < 1e-12
    assert max(result.full_misfit) < 1e-12 < 0.1 < min(result.shared_misfit)
    assert result.order == pytest.approx([1, 1], abs=0.1)


def test_the_exponential_solves_the_equation():
    (generator, _) = randoms()
    options = {"generator": generator, "dtype": torch.float64}
    x, kernel = torch.randn(1, 2, 3, 3, **options), torch.randn(2, 2, 3, 3, **options) / 5

    def change(_, state):
        image = torch.from_numpy(state).view_as(x)
        return torch.nn.functional.conv2d(image, kernel, padding=1).flatten().numpy()

    solved = solve_ivp(change, (0, 1), x.flatten().numpy(), rtol=1e-10, atol=1e-12).y[:, -1]
    assert euler.exact(x, kernel).flatten().allclose(torch.from_numpy(solved), atol=1e-8)


def test_a_dynamic_layer_is_quadratic_and_a_plain_one_is_not(monkeypatch):
    monkeypatch.setattr(order, "SAMPLES", 256)
    result = order.compute(2)
    for outputs in ("1", "2"):
        assert result.floor[outputs] == pytest.approx([1, 1], abs=0.4)
        assert result.train[outputs]["plain"] == pytest.approx(result.floor[outputs], rel=1e-3)
        assert max(result.test[outputs]["full"]) < 1e-6
    assert max(result.test["1"]["diagonal"]) < 1e-6
    assert min(result.train["2"]["diagonal"]) > 0.01


def test_variance_of_a_quadratic_form():
    matrix = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(400_000, 4, generator=torch.Generator().manual_seed(1)).double()
    sampled = torch.einsum("np,pq,nq->n", x, matrix, x).var().item()
    assert order.variance(matrix) == pytest.approx(sampled, rel=0.02)


def test_spectra_are_of_the_folded_kernel():
    network = torch.nn.Sequential(ns.Conv2d(2, 3, 3, similarity="static-full"))
    torch.nn.init.normal_(network[0].similarity.raw)
    (layer,) = spectra.measure(network)
    m = network[0].similarity.full_matrix().double()
    kernel = network[0].weight.double().flatten(2) @ m
    values = torch.linalg.svdvals(kernel.flatten(0, 1))
    assert layer.taps_spectrum == pytest.approx((values / values[0]).tolist(), rel=1e-3)
    assert layer.m_distance == pytest.approx(((m - torch.eye(9)).norm() / 3).item())
    assert layer.own_taps_rank != layer.taps_rank


def test_the_command_writes_numbers_and_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bias, "SNAPSHOTS", (0, 1, 2))
    monkeypatch.setattr(flow, "STEPS", (1e-1, 1e-2))
    monkeypatch.setattr(order, "ITERATIONS", 2)
    recipe = Recipe(
        dataset="embedded", steps=2, drops=(), threads=1, width=0.25, similarity="static-full"
    )
    train(recipe, out="runs/a-seed1")
    assert main(["theory", "all", "--seeds", "3", "--runs", "runs/a-seed1"]) == 0
    for name in ("flow", "bias", "spectra", "euler", "order"):
        record = json.loads((tmp_path / f"results/theory/{name}.json").read_text())
        assert record["experiment"] == name
        assert record["result"]
        assert (tmp_path / f"results/theory/{name}.png").stat().st_size > 1000
    assert main(["theory", "spectra"]) == 2
    assert "needs run folders" in capsys.readouterr().err
