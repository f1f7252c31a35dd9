"""A structure of M of your own, under the library's laws, trained in a recipe of your own."""

from dataclasses import dataclass

import torch

import neural_similarity as ns
from neural_similarity.nn import Geometry, Structure, StructureModule


class MirroredModule(StructureModule):
    def __init__(self, taps):
        super().__init__(scalars=(taps + 1) // 2)
        self.pairs = taps // 2

    def forward(self, raw):  # (n, scalars, *positions) to (n, K, *positions): a diagonal M
        return 1 + torch.cat([raw, raw[:, : self.pairs].flip(1)], 1)


@dataclass(frozen=True)
class Mirrored(Structure):
    def build(self, geometry: Geometry) -> StructureModule:
        return MirroredModule(geometry.taps)


torch.manual_seed(0)
layer = ns.Conv2d(8, 8, 3, padding=1, similarity=ns.Static(Mirrored()))
print(layer)

torch.nn.init.normal_(layer.similarity.raw, std=0.5)
print(layer.similarity.matrix().view(3, 3).detach().numpy().round(2))
ns.visualize.draw(torch.nn.Sequential(layer), torch.randn(1, 8, 9, 9), "pictures")

plain = layer.fuse()
x = torch.randn(2, 8, 9, 9)
assert isinstance(plain, torch.nn.Conv2d)
assert not isinstance(plain, ns.Conv2d)
assert (layer(x) - plain(x)).abs().max() < 1e-5

kept = 0
for case in ns.testing.cases(Mirrored()):  # static and dynamic, in every layer
    for law in ("identity", "folds", "learns", "layouts"):
        kept += ns.testing.check(law, case) is None
print(kept, "laws hold where they apply")


def linear_predictor(geometry, scalars):  # a predictor: the layer's input to `scalars` numbers
    return torch.nn.Conv2d(
        geometry.in_channels,
        scalars,
        geometry.kernel_size,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
    )


dynamic = ns.Dynamic(Mirrored(), predictor=linear_predictor)
print(ns.Conv2d(8, 8, 3, stride=2, similarity=dynamic)(x).shape)
