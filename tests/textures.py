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


def classified(model: nn.Sequential, steps: int = 150) -> nn.Sequential:
    """A network trained to tell base classes apart."""
    generator = torch.Generator().manual_seed(1)
    classes = torch.randn(model[-1].out_features, SIGNALS, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        labels = torch.randint(len(classes), (64,), generator=generator)
        scores = model.train()(images(classes[labels], generator))
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def trained(method, steps: int, rate: float = 3e-3, clip: float = torch.inf) -> list[float]:
    """Train a method on tasks, in place; the losses."""
    torch.manual_seed(0)
    generator, losses = torch.Generator().manual_seed(2), []
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], rate)
    for _ in range(steps):
        loss = method.train().loss(episode(generator))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(method.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(method, tasks: int = 40) -> float:
    """Share of the queries of held-out tasks that are recognised."""
    method.eval()
    generator, right = torch.Generator().manual_seed(3), []
    for _ in range(tasks):
        support, labels, query, targets = episode(generator)
        if method.fixed_embedding:
            support, query = method.embed(support), method.embed(query)
        right.append((method.adapt(support, labels, 5)(query).argmax(1) == targets).float().mean())
    return torch.stack(right).mean().item()
