"""Measures of matrices, and their means over seeds."""

import torch
from torch import Tensor

from neural_similarity_paper.statistics import by_seed


def nuclear_norm(matrix: Tensor) -> Tensor:
    """Sum of the singular values of (*batch, rows, columns)."""
    return torch.linalg.svdvals(matrix).sum(-1)


def effective_rank(matrix: Tensor) -> Tensor:
    r"""$\exp(-\sum_i p_i \log p_i)$ for $p = \sigma / \sum \sigma$ (Roy and Vetterli, 2007).

    It is between 1 and the rank, whatever the scale of the matrices (*batch, rows, columns). Arora
    et al. (2019, the paper's [5]) measure it.
    """
    values = torch.linalg.svdvals(matrix)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def relative_distance(actual: Tensor, expected: Tensor) -> float:
    """Distance in the Frobenius norm, over the norm of `expected`."""
    return float((actual - expected).norm() / expected.norm())


def gaussian_numbers(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def seed_generators(seeds: int) -> list[torch.Generator]:
    """A generator of random numbers for every seed from 0 on."""
    return [torch.Generator().manual_seed(seed) for seed in range(seeds)]


def seed_summary(values: Tensor) -> dict[str, float]:
    """Mean and 95 % interval of one value per seed, (seeds,)."""
    interval = by_seed(values.tolist())
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}
