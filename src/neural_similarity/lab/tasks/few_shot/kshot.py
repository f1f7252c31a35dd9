"""Discriminative k-shot learning: the base classes' weights give a prior for new classes."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.tasks.few_shot.embedding import split_classifier
from neural_similarity.lab.tasks.few_shot.interface import Method, Predict

_MOST_STEPS = 50
_HALVINGS = 12
_TOLERANCE = 1e-9
"""Tolerance of the gradient, whose entries are differences of probabilities."""


class DiscriminativeKShot(Method):
    r"""MAP classifier under a Gaussian prior, fitted to the base classifier's weights.

    $$\max_W \sum_i \log \mathrm{softmax}(W x_i + b)_{y_i}
    - \frac{\lVert W - \mu \rVert^2}{2\sigma^2} - \frac{\lVert b - \mu_b \rVert^2}{2\sigma_b^2}$$

    Mean and variance are those of the weights that a network learned for its base classes, one
    variance for all weights (the isotropic Gaussian) and one for the biases. Bauer et al. 2017,
    https://arxiv.org/abs/1706.00326. Among new classes alone the mean cancels in the softmax.

    The maximum is unique, and of the form W = μ + σ² Σ (onehot(y) - p) xᵀ. Newton's method finds
    these ways · n coefficients, far fewer than the weights for few images, in float64 until the
    gradient is below 1e-9.

    Raises:
        ValueError: the network does not end in a linear layer, or has fewer than two classes.
    """

    at_once = 50

    def __init__(self, network: nn.Sequential):
        super().__init__()
        self.backbone, _ = split_classifier(network)
        self.base = cast(nn.Linear, network[-1])
        if self.base.out_features < 2:
            raise ValueError(
                "`network` must have at least two base classes for a variance, got "
                f"{self.base.out_features}"
            )

    def prior_variances(self) -> tuple[Tensor, Tensor]:
        """σ² of the weights and of the biases (0 without biases), around their means."""
        weight = self.base.weight.detach().double()
        bias = weight.new_zeros(1) if self.base.bias is None else self.base.bias.detach().double()
        return weight.var(0, correction=0).mean(), bias.var(correction=0)

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        kernel = self._logit_covariance(support, support)
        dual = maximise_posterior(kernel, F.one_hot(labels, ways).to(kernel))

        def predict(query: Tensor) -> Tensor:
            return (self._logit_covariance(query, support) @ dual).to(query.dtype)

        return predict

    def _logit_covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """The prior covariance (..., n, m) of the logits of x (..., n, d) and y (..., m, d)."""
        weight, bias = self.prior_variances()
        return weight * (x.double() @ y.double().mT) + bias


def maximise_posterior(kernel: Tensor, targets: Tensor) -> Tensor:
    """The A that minimises Σ cross-entropy(K A) + tr(Aᵀ K A) / 2; there A = targets - softmax(K A).

    Newton's method; the best of a full step and its halves is taken. K (..., n, n) is positive
    semi-definite, targets (n, ways) are one-hot.
    """
    dual = torch.zeros(*kernel.shape[:-1], targets.shape[-1]).to(kernel)
    shares = 0.5 ** torch.arange(_HALVINGS).to(kernel)
    for _ in range(_MOST_STEPS):
        residual = targets - (kernel @ dual).softmax(-1) - dual
        if residual.abs().max() < _TOLERANCE:
            break
        steps = shares.view(-1, *[1] * dual.dim()) * _newton_step(kernel, dual, residual)
        best = _negative_posterior(kernel, dual + steps, targets).argmin(0)
        dual = dual + steps.gather(0, best[None, ..., None, None].expand(1, *dual.shape))[0]
    return dual


def _newton_step(kernel: Tensor, dual: Tensor, residual: Tensor) -> Tensor:
    """Solution of (I + H K) step = residual, H the Hessian of the cross-entropy by the logits."""
    p = (kernel @ dual).softmax(-1)
    *lead, n, ways = p.shape
    hessian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    system = torch.einsum("...icd,...ij->...icjd", hessian, kernel).reshape(*lead, n * ways, -1)
    system = system + torch.eye(n * ways).to(p)
    return torch.linalg.solve(system, residual.flatten(-2)).unflatten(-1, (n, ways))


def _negative_posterior(kernel: Tensor, dual: Tensor, targets: Tensor) -> Tensor:
    logits = kernel @ dual
    entropy = -(targets * logits.log_softmax(-1)).sum((-2, -1))
    return entropy + (dual * logits).sum((-2, -1)) / 2
