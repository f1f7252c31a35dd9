"""Adapt a trained network to other images by its similarities, beside four other methods."""

from copy import deepcopy

import torch
from torch.nn import functional as F
from torchvision.transforms.functional import InterpolationMode, rotate

import neural_similarity as ns
from neural_similarity.lab.data import load_dataset

torch.manual_seed(0)
data = load_dataset("embedded")  # 8,000 + 2,000 of Fashion-MNIST, which come with the package
upright, labels = data.train.pixels / 255, data.train.labels
unseen, truth = data.test.pixels[:1000] / 255, data.test.labels[:1000]


def rotate_images(images, degrees=30):
    return rotate(images, degrees, InterpolationMode.BILINEAR)


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
    return 100 * (network(images).argmax(1) == labels).float().mean().item()


# A network trained on upright images, and test images that are rotated by 30°.
backbone = ns.models.resnet20(10, in_channels=1, width=0.5)
fit(backbone, upright, labels, steps=300, lr=3e-3)
rotated = rotate_images(unseen)
print(f"upright: {accuracy(backbone, unseen, truth):.1f} %")
print(f"rotated: {accuracy(backbone, rotated, truth):.1f} %")

# Ten labelled images of each class to train on, ten to choose a learning rate.
of_class = [torch.nonzero(labels == c)[:20, 0] for c in range(10)]
few, held = (torch.cat([found[part] for found in of_class]) for part in (slice(10), slice(10, 20)))
images, held_images = rotate_images(upright[few]), rotate_images(upright[held])

# Only M trains; the running statistics of batch normalisation follow the new images.
print(str(ns.plan(backbone, "static-full")).splitlines()[-1])
model = ns.convert(backbone, "static-full")
ns.freeze_backbone(model, norm="train", train=())
fit(model, images, labels[few], steps=60, lr=3e-3)
print(f"M, rotated: {accuracy(model, rotated, truth):.1f} %")

# Save what was learned in a small file; fold M into plain layers.
file = ns.save_adapter(model, "rotated.safetensors")
print(f"adapter: {file.stat().st_size / 1000:.1f} kB")
plain = ns.fold(ns.load_adapter(backbone, file))
assert not any(isinstance(layer, ns.Conv2d) for layer in plain.modules())
assert ns.max_difference(plain, model, rotated[:100]) < 1e-3

# Five methods, each at the best of three learning rates on the held-out images.
METHODS = {
    "linear probe": ("linear",),
    "batch normalisation": ("bn",),
    "M": ("similarity",),
    "M and batch normalisation": ("similarity", "bn"),
    "full fine-tuning": ("",),
}


def adapted(parts, lr):
    similarity = "static-full" if "similarity" in parts else None
    network = ns.convert(backbone, similarity) if similarity else deepcopy(backbone)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(part in name for part in parts))
    return fit(network, images, labels[few], steps=60, lr=lr)


print("| method | parameters trained | accuracy, % |")
print("|---|---|---|")
for method, parts in METHODS.items():
    tried = [adapted(parts, lr) for lr in (1e-3, 3e-3, 1e-2)]
    best = max(tried, key=lambda network: accuracy(network, held_images, labels[held]))
    trained = sum(p.numel() for p in best.parameters() if p.requires_grad)
    print(f"| {method} | {trained:,} | {accuracy(best, rotated, truth):.1f} |")
