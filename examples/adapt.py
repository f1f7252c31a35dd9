"""Adapt a trained network to other images by its similarities alone: about a minute on a CPU."""

import math

import torch
from torch.nn import functional as F

import neural_similarity as ns
from neural_similarity.lab.data import load_dataset

torch.manual_seed(0)
data = load_dataset("embedded")  # 8,000 + 2,000 of Fashion-MNIST, which come with the package
train, test = data.train, data.test.subset(range(1000))


def images_of(part):
    return part.pixels.float() / 255 - 0.3


def turn(images, degrees=30):
    angle = torch.tensor(math.radians(degrees))
    rows = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    grid = F.affine_grid(F.pad(rows, (0, 1))[None], [1, *images.shape[1:]], align_corners=False)
    grid = grid.expand(len(images), -1, -1, -1)
    return F.grid_sample(images + 0.3, grid, align_corners=False) - 0.3  # black outside


def fit(network, images, labels, steps, lr):
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr)
    network.train()
    for _ in range(steps):
        batch = torch.randint(len(images), (32,))
        optimizer.zero_grad()
        F.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
    return network.eval()


@torch.no_grad()
def accuracy(network, images, labels):
    return f"{100 * (network(images).argmax(1) == labels).float().mean():.0f} %"


# A network that knows upright images.
backbone = ns.models.cnn9(10, in_channels=1, image_size=28, width=0.1)
fit(backbone, images_of(train), train.labels, steps=150, lr=3e-3)

# A task with few labels: 500 images of a camera that hangs askew.
few, labels = turn(images_of(train)[:500]), train.labels[:500]
unseen = turn(images_of(test))
print("backbone, upright:", accuracy(backbone, images_of(test), test.labels))
print("backbone, turned: ", accuracy(backbone, unseen, test.labels))

# Only M trains; the running statistics of batch normalisation follow the new images.
print(ns.plan(backbone, "static-full"))
model = ns.convert(backbone, "static-full")
ns.freeze_backbone(model, norm="train")
numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
print("trained:          ", numbers, "of", ns.models.parameters(model), "numbers")
fit(model, few, labels, steps=60, lr=1e-2)
print("adapted, turned:  ", accuracy(model, unseen, test.labels))

ns.visualize.draw(model, few[:2], "pictures")  # M - I of every layer, similarities.png

# What it learned is one small file; what it computes is a plain network.
file = ns.save_adapter(model, "turned.safetensors")
print("adapter:          ", f"{file.stat().st_size / 1000:.1f} kB")
again = ns.load_adapter(backbone, file)
plain = ns.fold(again)
print("folded, turned:   ", accuracy(plain, unseen, test.labels))
assert not any(isinstance(layer, ns.Conv2d) for layer in plain.modules())
assert ns.max_difference(plain, model, unseen[:100]) < 1e-3
