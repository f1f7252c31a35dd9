r"""§5.1: does gradient descent on a product $W M$ prefer solutions of low nuclear norm?

Gradient descent finds one of many matrices that fit the measurements. For a plain W that starts at
0 it is the solution of least Frobenius norm. In regression, the example of §5.1, this solution also
has the least nuclear norm, and the least of every other norm of the singular values: a product has
nothing to gain. In sensing and completion it does not.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity_paper.learned import four_digits
from neural_similarity_paper.theory.measures import (
    effective_rank,
    gaussian_numbers,
    nuclear_norm,
    seed_generators,
    seed_summary,
)

SIZE, RANK, MEASUREMENTS = 20, 2, 120
"""Size and rank of the unknown matrix; 400 measurements would determine it."""

ProblemKind = Literal["regression", "sensing", "completion"]


@dataclass(frozen=True)
class Problem:
    r"""Measurements $b_k = \langle A_k, W_*\rangle$ of matrices W*, one per seed, all float64."""

    operator: Tensor
    """(seeds, measurements, size²): the A_k, in rows."""
    truth: Tensor
    """(seeds, size, size), of length 1 in the Frobenius norm."""

    @property
    def measured_targets(self) -> Tensor:
        return self.operator @ self.truth.flatten(1)[..., None]

    def least_norm(self) -> Tensor:
        """The solution of least Frobenius norm, to which gradient descent on W leads from 0."""
        return (torch.linalg.pinv(self.operator) @ self.measured_targets).view_as(self.truth)


@dataclass(frozen=True)
class Start:
    r"""Where the factors of $W M_1 M_2 \cdots$ start; G is a Gaussian matrix of length 1."""

    label: str
    depth: int
    """Number of factors: 1 is a plain W, 2 is W and M."""
    weight: float
    """W starts at this times G."""
    similarity: float = 1.0
    """Each M starts at this times I, or, if random, times √size G."""
    random: bool = False


def make_problem(kind: ProblemKind, generators: Sequence[torch.Generator]) -> Problem:
    """A problem for every seed.

    Args:
        kind: "regression", on SIZE outputs of few inputs, as in §5.1; "sensing" by Gaussian
            matrices; "completion" from few entries.
        generators: one per seed.
    """
    operators, truths = zip(*(_draw_problem(kind, each) for each in generators), strict=True)
    return Problem(torch.stack(operators), torch.stack(truths))


def _draw_problem(kind: ProblemKind, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    truth = gaussian_numbers(generator, SIZE, RANK) @ gaussian_numbers(generator, RANK, SIZE)
    truth /= truth.norm()
    # Scaled so that the squares of all entries of all A_k add up to about size² in every problem.
    if kind == "regression":
        samples = MEASUREMENTS // SIZE
        inputs = gaussian_numbers(generator, samples, SIZE) / samples**0.5
        return torch.kron(torch.eye(SIZE, dtype=inputs.dtype), inputs), truth
    if kind == "sensing":
        return gaussian_numbers(generator, MEASUREMENTS, SIZE**2) / MEASUREMENTS**0.5, truth
    entries = torch.randperm(SIZE**2, generator=generator)[:MEASUREMENTS]
    return SIZE / MEASUREMENTS**0.5 * torch.eye(SIZE**2, dtype=truth.dtype)[entries], truth


def initial_factors(starts: Sequence[Start], generators: Sequence[torch.Generator]) -> list[Tensor]:
    """The factors (seeds, starts, size, size), W first; every seed's starts share its G.

    `starts` have one depth.
    """
    factors = []
    for factor in range(starts[0].depth):
        drawn = torch.stack([gaussian_numbers(each, SIZE, SIZE) / SIZE for each in generators])
        factors.append(torch.stack([_scale_start(drawn, start, factor) for start in starts], 1))
    return factors


def _scale_start(drawn: Tensor, start: Start, factor: int) -> Tensor:
    if factor == 0:
        return start.weight * drawn
    if start.random:
        return start.similarity * SIZE**0.5 * drawn
    return start.similarity * torch.eye(SIZE, dtype=drawn.dtype).expand_as(drawn)


def descend_factors(
    problem: Problem, factors: Sequence[Tensor], rate: float, snapshots: Sequence[int]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    r"""Minimise $\tfrac12 \sum_k (b_k - \langle A_k, W M \cdots\rangle)^2$ over all factors.

    Args:
        problem: measurements.
        factors: where they start, (seeds, starts, size, size) each.
        rate: step size.
        snapshots: increasing numbers of steps, after which products and losses are kept.

    Returns:
        Products (snapshots, seeds, starts, size, size), losses (snapshots, seeds, starts) and the
        last factors.
    """
    factors = [factor.clone().requires_grad_() for factor in factors]
    targets, products, losses = problem.measured_targets, [], []
    for step in range(snapshots[-1] + 1):
        whole = reduce(torch.matmul, factors)
        # Starts in columns: the operator is read once for all of them.
        residual = problem.operator @ whole.flatten(2).mT - targets
        if step in snapshots:
            products.append(whole.detach().clone())  # one factor alone is `whole`, changed below
            losses.append(0.5 * residual.detach().square().sum(1))
        direction = (problem.operator.mT @ residual.detach()).mT.view_as(whole)
        gradients = torch.autograd.grad(whole, factors, direction)
        with torch.no_grad():
            for factor, gradient in zip(factors, gradients, strict=True):
                factor -= rate * gradient
    return torch.stack(products), torch.stack(losses), [factor.detach() for factor in factors]


RATE = 0.05
SNAPSHOTS = (0, *(round(10 * 500 ** (i / 22)) for i in range(23)))
"""Numbers of steps, from 10 to 5,000."""
FACTOR_SCALES = (0.3, 0.1, 0.03)
PLAIN_START = (Start("W of length 1", 1, 1.0), Start("W of length 0.01", 1, 0.01))


def product_starts(depth: int) -> tuple[Start, ...]:
    """Starts of a product of `depth` factors: M = I as in the paper, smaller, and random."""
    return (
        Start("I, W of length 1", depth, 1.0),
        Start("I, W of length 0.01", depth, 0.01),
        *(Start(f"{scale} I, W of length {scale}/100", depth, scale / 100, scale)
          for scale in FACTOR_SCALES),
        *(Start(f"{scale} G, both random", depth, scale * SIZE**0.5, scale, random=True)
          for scale in FACTOR_SCALES),
    )  # fmt: skip


FACTOR_STARTS = (PLAIN_START, product_starts(2), product_starts(3))
STARTS = tuple(start for starts in FACTOR_STARTS for start in starts)


def compute(seeds: int = 5) -> dict[str, Any]:
    """Descend from every start in every problem, all seeds at once; lists are over seeds."""
    problems = {kind: _problem_outcomes(kind, seeds) for kind in get_args(ProblemKind)}
    return {"rate": RATE, "steps": SNAPSHOTS, "problems": problems}


def _problem_outcomes(kind: ProblemKind, seeds: int) -> dict[str, Any]:
    random = seed_generators(seeds)
    data = make_problem(kind, random)
    begun = [initial_factors(starts, random) for starts in FACTOR_STARTS]
    by_depth, losses, ended = zip(
        *(descend_factors(data, factors, RATE, SNAPSHOTS) for factors in begun), strict=True
    )
    # (snapshots, seeds, starts, ...): the starts of all depths side by side.
    kernels = torch.cat(by_depth, 2)
    moved = torch.cat(list(map(_distance_moved, begun, ended)), 1)
    curves = {
        "loss": torch.cat(losses, 2),
        "nuclear_norm": nuclear_norm(kernels),
        "effective_rank": effective_rank(kernels),
        "error": (kernels - data.truth[:, None]).norm(dim=(-2, -1)),
    }
    return {
        "truth_nuclear_norm": nuclear_norm(data.truth).tolist(),
        "truth_effective_rank": effective_rank(data.truth).tolist(),
        # Of the solution of least Frobenius norm.
        "least_norm_nuclear_norm": nuclear_norm(data.least_norm()).tolist(),
        "outcomes": [_start_outcome(at, curves, moved[:, at]) for at in range(len(STARTS))],
    }


def _distance_moved(begun: Sequence[Tensor], ended: Sequence[Tensor]) -> Tensor:
    """How far each M moved, over its length at the start: the mean over all M, (seeds, starts)."""
    distances = [
        (end - begin).norm(dim=(-2, -1)) / begin.norm(dim=(-2, -1))
        for begin, end in zip(begun[1:], ended[1:], strict=True)
    ]
    return torch.stack(distances).mean(0) if distances else torch.zeros(begun[0].shape[:2])


def _start_outcome(index: int, curves: dict[str, Tensor], moved: Tensor) -> dict[str, Any]:
    """The result of descent from a start."""
    start = STARTS[index]
    # The plain starts come first; a product is compared with that of its length, or the smaller.
    lengths = [plain.weight for plain in PLAIN_START]
    plain = lengths.index(start.weight) if start.weight in lengths else -1
    last = {name: values[-1, :, index].tolist() for name, values in curves.items()}

    def to_plain(name: str) -> dict[str, float]:
        """The difference from that plain start: mean and 95 % interval."""
        ends = curves[name][-1]
        return seed_summary(ends[:, index] - ends[:, : len(lengths)][:, plain])

    return {
        "start": asdict(start),
        "loss": max(last["loss"]),  # The largest final loss of all seeds.
        "nuclear_norm": last["nuclear_norm"],
        "nuclear_norm_to_plain": to_plain("nuclear_norm"),
        "effective_rank": last["effective_rank"],
        # Distance to the truth, which has length 1: for Gaussian test measurements the root of the
        # mean squared error over that of predicting 0.
        "error": last["error"],
        "error_to_plain": to_plain("error"),
        # Distance of M from its start, over the length of the start; mean over all M.
        "moved": moved.tolist(),
        # Means over seeds at `steps`.
        "curves": {
            name: four_digits(values[:, :, index].mean(1)) for name, values in curves.items()
        },
    }


def draw_result(bias: dict[str, Any], figure: Any) -> None:
    """Draw nuclear norm and error by start, and effective rank against steps; a row per problem."""
    figure.set_size_inches(11, 9)
    grid = figure.subplots(3, 3)
    for axes, (kind, panel) in zip(grid, bias["problems"].items(), strict=True):
        outcomes, truth = panel["outcomes"], panel["truth_nuclear_norm"]
        _draw_ends(axes[0], outcomes, "nuclear_norm")
        axes[0].axvline(sum(truth) / len(truth), c="k", ls=":")
        axes[0].set_title(f"{kind}: nuclear norm (dotted: truth)", fontsize=9)
        _draw_ends(axes[1], outcomes, "error")
        axes[1].set_title("distance to the truth", fontsize=9)
        axes[1].set_yticklabels([])
        curves = [
            Curve(
                [*zip(bias["steps"], each["curves"]["effective_rank"], strict=True)][1:],
                _start_label(each) if axes[2] is grid[0, 2] else "",
            )
            for each in outcomes
            if each["start"]["depth"] < 3 and each["start"]["weight"] < 1
        ]
        draw_curves(axes[2], curves, xscale="log")
        axes[2].set_title("effective rank against steps", fontsize=9)


def _draw_ends(axes: Any, outcomes: Sequence[dict[str, Any]], name: str) -> None:
    colours = {1: "tab:gray", 2: "tab:blue", 3: "tab:orange"}
    for y, outcome in enumerate(outcomes):
        mean, low, high = seed_summary(torch.tensor(outcome[name])).values()
        colour = colours[outcome["start"]["depth"]]
        half = [[mean - low], [high - mean]]
        axes.errorbar(mean, y, xerr=half, fmt="o", ms=3, c=colour, capsize=2)
    axes.set_yticks(range(len(outcomes)), map(_start_label, outcomes), fontsize=6)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)


def _start_label(outcome: dict[str, Any]) -> str:
    return f"{outcome['start']['depth']}: {outcome['start']['label']}"
