"""A family of few-shot tasks that reward learning: weak textures of the class under strong others.

An image is a sum of fixed textures; six of their strengths are those of its class, six others
differ from image to image. Seen as they are, images of a class are hardly alike.
"""

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.lab.tasks.few_shot import Episode

SIGNALS, NUISANCES, SIZE = 6, 6, 8


def _textures() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randn(SIGNALS + NUISANCES, 3, 4, 4, generator=generator)
    return tiles.repeat(1, 1, SIZE // 4, SIZE // 4)


def images(codes: Tensor, generator: torch.Generator) -> Tensor:
    """One image (3, 8, 8) of each row of codes (n, 6)."""
    others = 1.5 * torch.randn(len(codes), NUISANCES, generator=generator)
    codes = codes + 0.2 * torch.randn(codes.shape, generator=generator)
    return torch.einsum("nk,kchw->nchw", torch.cat([codes, others], 1), _textures()) / 2


def episode(generator: torch.Generator, ways: int = 5, shots: int = 5, queries: int = 10):
    """A task of new classes."""
    classes = torch.randn(ways, SIGNALS, generator=generator)
    labels, targets = (torch.arange(ways * k) % ways for k in (shots, queries))
    parts = [images(classes[which], generator) for which in (labels, targets)]
    return Episode(parts[0], labels, parts[1], targets)


def network(outputs: int = 30, similarity: str | None = None, channels: int = 16) -> nn.Sequential:
    """Two convolutions and a linear classifier."""
    torch.manual_seed(0)
    return nn.Sequential(
        ns.Conv2d(3, channels, 3, padding=1, bias=False, similarity=similarity),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        ns.Conv2d(channels, 2 * channels, 3, padding=1, bias=False, similarity=similarity),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * channels, outputs),
    )
