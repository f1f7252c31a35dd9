"""LEO: gradient descent on a latent code per class, from which the classifier is decoded."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.tasks.few_shot.embedding import split_classifier
from neural_similarity.lab.tasks.few_shot.gradient import (
    Gradient,
    constant_gradient,
    differentiable_gradient,
)
from neural_similarity.lab.tasks.few_shot.interface import Episode, Method, Predict
from neural_similarity.lab.tasks.few_shot.metric import class_means
from neural_similarity.ops import unit_vectors, without_autocast

_LEAST = 1e-10
"""The smallest standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Sizes, steps and penalties; the defaults are for 5-shot Mini-ImageNet, see `ONE_SHOT`.

    Penalties and dropout are the values that the authors "found working best", from the table in
    https://github.com/google-deepmind/leo; sizes, steps and rates, which the table lacks, come from
    its `config.py`, whose own penalties are far smaller.
    """

    size: int = 64
    """Length of the latent code of a class."""
    steps: int = 5
    """Steps of gradient descent on the latent codes."""
    tuning_steps: int = 5
    """Steps of gradient descent on the decoded classifier."""
    rate: float = 5.0
    """Initial step size on each latent entry, which is learned; for the mean cross-entropy, whereas
    the released 1.0 is for its sum over the five classes."""
    tuning_rate: float = 5e-3
    """Initial step size on each of a class's weights, which is learned; released 1e-3."""
    dropout: float = 0.300299
    """Share of the features that is dropped in training."""
    kl: float = 0.466387
    """Weight of the divergence of the latent codes from a standard normal distribution."""
    encoder: float = 2.661608e-7
    """Weight of the squared distance between the latent codes before and after the steps."""
    l2: float = 8.540338e-9
    """Weight of half the squared weights of encoder, relation network and decoder."""
    orthogonality: float = 1.523998e-3
    """Weight of the decoder's squared correlations."""


ONE_SHOT_SETTINGS = Latent(
    dropout=0.307651,
    kl=0.756143,
    encoder=5.756821e-6,
    l2=3.623413e-10,
    orthogonality=0.188103,
)
"""The table's values for 1-shot Mini-ImageNet."""


class _Normal(NamedTuple):
    mean: Tensor
    std: Tensor

    def draw_sample(self, training: bool) -> Tensor:
        return self.mean + self.std * torch.randn_like(self.std) if training else self.mean

    def standard_divergence(self) -> Tensor:
        """Kullback-Leibler divergence from the standard normal distribution, mean of all."""
        return (self.mean.square() + self.std.square() - 1 - 2 * self.std.log()).mean() / 2


class Leo(Method):
    r"""Latent embedding optimisation (Rusu et al. 2019, https://arxiv.org/abs/1807.05960).

    On features x of unit norm: an encoder h and a relation network g of all pairs give each class
    a normal distribution of latent codes, $z_n \sim N(\mu_n, \sigma_n)$ from the mean of
    $g(h(x), h(x'))$ over its images x and all images x'; a decoder gives the weights of the class,
    $w_n \sim N(\mu(z_n), \sigma(z_n))$. Some steps of gradient descent on z, then some on w,
    lower the support set's cross-entropy; logits are $w_n^\top x$. Training differentiates the
    queries' loss through all of it, step sizes included; at test, means replace draws.

    The embedding stays as it is: the original's is a WRN-28-10, see `ns.models.wrn28_10`, trained
    to classify. Sizes, initial values and penalties are its authors' (see `Latent`). Their code
    clips the gradient at 0.1, our recipes do not; it draws a code per support image, this class one
    per class, as in the paper.
    """

    def __init__(self, network: nn.Sequential, latent: Latent | None = None):
        super().__init__()
        self.latent = latent = latent or Latent()
        self.backbone, features = split_classifier(network)
        self.backbone.requires_grad_(False)
        self.encoder = nn.Linear(features, latent.size, bias=False)
        self.relation = nn.Sequential(
            nn.Linear(2 * latent.size, 2 * latent.size, bias=False),
            nn.ReLU(),
            nn.Linear(2 * latent.size, 2 * latent.size, bias=False),
            nn.ReLU(),
            nn.Linear(2 * latent.size, 2 * latent.size, bias=False),
        )
        self.decoder = nn.Linear(latent.size, 2 * features, bias=False)
        self.rate = nn.Parameter(torch.full((latent.size,), latent.rate))
        self.tuning_rate = nn.Parameter(torch.full((features,), latent.tuning_rate))
        for weight in self._decayed_weights():
            nn.init.xavier_uniform_(weight)

    def train(self, mode: bool = True) -> "Leo":
        """As torch's `train`, except that the fixed embedding stays in evaluation mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def embed(self, images: Tensor) -> Tensor:
        """Features (n, d) of unit norm."""
        return unit_vectors(super().embed(images), -1)

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        with torch.enable_grad(), without_autocast(support):
            codes = self.latent_codes(support, labels, ways).mean.detach()
            weight = self._inner_steps(codes, support, labels, constant_gradient)[1].detach()

        def predict(query: Tensor) -> Tensor:
            with without_autocast(query):
                return query @ weight.mT

        return predict

    def loss(self, episode: Episode) -> Tensor:
        """Cross-entropy of the queries plus the penalties, for a task of images."""
        with torch.no_grad():
            task = self.embed_episode(episode)
        support, labels, query, targets = task
        with without_autocast(query):
            codes = self.latent_codes(support, labels, task.ways)
            start = codes.draw_sample(self.training)
            end, weight = self._inner_steps(start, support, labels, differentiable_gradient)
            loss = F.cross_entropy(self._class_logits(query, weight), targets)
            loss = loss + self.latent.kl * codes.standard_divergence() + self.weight_penalty()
            return loss + self.latent.encoder * F.mse_loss(start, end.detach())

    def latent_codes(self, support: Tensor, labels: Tensor, ways: int) -> _Normal:
        encoded = self.encoder(self._drop_features(support))
        pairs = torch.cat(torch.broadcast_tensors(encoded[:, None], encoded[None]), -1)
        related = self.relation(pairs).mean(1)
        return _split_normal(class_means(related, labels, ways))

    def weight_penalty(self) -> Tensor:
        squares = torch.stack([weight.square().sum() for weight in self._decayed_weights()]).sum()
        directions = unit_vectors(self.decoder.weight, 0)
        correlations = directions.mT @ directions
        unit = torch.eye(len(correlations)).to(correlations)
        return (
            self.latent.l2 * squares / 2
            + self.latent.orthogonality * (correlations - unit).square().mean()
        )

    def _inner_steps(
        self, codes: Tensor, support: Tensor, labels: Tensor, gradient: Gradient
    ) -> tuple[Tensor, Tensor]:
        """Latent codes and classifier after the steps on both."""

        def loss(weight: Tensor) -> Tensor:
            return F.cross_entropy(self._class_logits(support, weight), labels)

        for _ in range(self.latent.steps):
            change = gradient(lambda at: loss(self._decode_classifier(at["z"])), {"z": codes})["z"]
            codes = codes - self.rate * change
        weight = self._decode_classifier(codes)
        for _ in range(self.latent.tuning_steps):
            change = gradient(lambda at: loss(at["w"]), {"w": weight})["w"]
            weight = weight - self.tuning_rate * change
        return codes, weight

    def _decode_classifier(self, codes: Tensor) -> Tensor:
        """A classifier (ways, d): a random draw in training, else the mean."""
        fan = codes.shape[0] + self.tuning_rate.shape[0]
        return _split_normal(self.decoder(codes), (2 / fan) ** 0.5).draw_sample(self.training)

    def _class_logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._drop_features(x) @ weight.mT

    def _drop_features(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.latent.dropout, self.training)

    def _decayed_weights(self) -> list[Tensor]:
        layers = [self.encoder, self.decoder, *self.relation]
        return [layer.weight for layer in layers if isinstance(layer, nn.Linear)]


def _split_normal(values: Tensor, start: float = 0.0) -> _Normal:
    """Means and standard deviations from the two halves; zeros give the deviation `start`."""
    mean, spread = values.chunk(2, -1)
    return _Normal(mean, (spread.expm1() + start).clamp(min=_LEAST))
