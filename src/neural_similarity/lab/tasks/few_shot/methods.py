"""The methods of few-shot learning by name."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from neural_similarity.lab.tasks.few_shot.embedding import split_classifier
from neural_similarity.lab.tasks.few_shot.gradient import anil, maml, meta_learned
from neural_similarity.lab.tasks.few_shot.heads import CosineFineTuning, FineTuning
from neural_similarity.lab.tasks.few_shot.interface import Method, NormStatistics
from neural_similarity.lab.tasks.few_shot.kshot import DiscriminativeKShot
from neural_similarity.lab.tasks.few_shot.metric import (
    FullContext,
    MatchingNet,
    NearestNeighbour,
    ProtoNet,
)
from neural_similarity.lab.tasks.few_shot.relation import RelationNet
from neural_similarity.lab.tasks.few_shot.static import StaticTuning
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.models import ConvBlock, has_pool, without_pool

POOLS = 2
"""How many 2×2 pools RelationNet keeps of CNN-4 or CNN-9."""
FIRST_SCALE = 0.1
"""Factor on ProtoNet's last normalisation at the start."""


@dataclass(frozen=True)
class Kind:
    """How a method is made and trained."""

    build: Callable[[nn.Sequential, TaskSizes], Method]
    """Builds it from a network that ends in its classifier, for tasks of these sizes."""
    episodic: bool
    """Whether it is trained by tasks; if not, its network is pretrained on the base classes."""
    head: str = "linear"
    """The classifier that its network is pretrained with, if it is not episodic."""
    statistics: NormStatistics = "running"
    """The statistics that normalise queries unless `set_statistics` changes them."""
    frozen: bool = False
    """Whether training freezes the kernels, so that it must start from a run."""
    fixed_ways: bool = False
    """Whether the initial classifier is learned, so that all tasks must have as many classes as in
    training."""


def matching_net(network: nn.Sequential, _sizes: TaskSizes, *, context: bool) -> MatchingNet:
    """`MatchingNet`, with `FullContext` or without."""
    backbone, features = split_classifier(network)
    return MatchingNet(backbone, FullContext(features) if context else None)


def proto_net(network: nn.Sequential, _sizes: TaskSizes) -> ProtoNet:
    """`ProtoNet` whose last normalisation starts at a tenth of the usual size.

    Squared distances of hundreds of normalised features are in the hundreds; training would spend
    its first updates on shrinking them. The nearest class is the same. Features that are not the
    output of one normalisation, such as those of residual blocks, are not scaled.
    """
    backbone, _ = split_classifier(network)
    last = _last_norm(backbone)
    for scale in last.parameters() if last else ():
        scale.data.mul_(FIRST_SCALE)
    return ProtoNet(backbone)


def _last_norm(network: nn.Module) -> nn.Module | None:
    """The normalisation whose output is the network's, up to ReLU and pools."""
    if not isinstance(network, nn.Sequential):
        return network if isinstance(network, nn.BatchNorm1d | nn.BatchNorm2d) else None
    learning = [module for module in network if any(True for _ in module.parameters())]
    return _last_norm(learning[-1]) if learning else None


def relation_net(network: nn.Sequential, _sizes: TaskSizes) -> RelationNet:
    """`RelationNet` on the maps of all convolutions of CNN-4 or CNN-9, after two of their pools."""
    layers = OrderedDict[str, nn.Module]()
    for name, layer in network.named_children():
        if isinstance(layer, ConvBlock):
            spared = sum(map(has_pool, layers.values())) < POOLS
            layers[name] = layer if spared else without_pool(layer)
        elif isinstance(layer, nn.ZeroPad2d):
            layers[name] = layer
    if sum(map(has_pool, layers.values())) < POOLS:
        names = ", ".join(name for name, _ in network.named_children())
        raise ValueError(
            f"`network` must be convnet4 or cnn9, whose maps are compared, got layers {names}"
        )
    backbone = nn.Sequential(layers)
    *_, last = (layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d))
    return RelationNet(backbone, last.num_features)


def static_tuning(network: nn.Sequential, _sizes: TaskSizes, *, rate: float = 1.0) -> StaticTuning:
    """`StaticTuning` of a network without its classifier."""
    return StaticTuning(*split_classifier(network), rate=rate)


def gradient_based(build: Callable[[nn.Sequential, int], Method], *, frozen: bool = False) -> Kind:
    """The kind of methods that learn the start of gradient descent, the classifier's included."""
    return Kind(
        lambda network, sizes: build(network, sizes.ways),
        episodic=True,
        statistics="support",
        frozen=frozen,
        fixed_ways=True,
    )


METHODS: dict[str, Kind] = {
    "fine-tuning": Kind(lambda network, _: FineTuning(network[:-1]), episodic=False),
    "baseline++": Kind(
        lambda network, _: CosineFineTuning(network[:-1]), episodic=False, head="cosine"
    ),
    "nearest-neighbour": Kind(lambda network, _: NearestNeighbour(network[:-1]), episodic=False),
    "static-nsn": Kind(static_tuning, episodic=False),
    "static-nsn-rate0.1": Kind(partial(static_tuning, rate=0.1), episodic=False),
    "static-nsn-rate0.01": Kind(partial(static_tuning, rate=0.01), episodic=False),
    "k-shot": Kind(lambda network, _: DiscriminativeKShot(network), episodic=False),
    "matching": Kind(partial(matching_net, context=False), episodic=True),
    "matching-fce": Kind(partial(matching_net, context=True), episodic=True),
    "proto": Kind(proto_net, episodic=True),
    "relation": Kind(relation_net, episodic=True),
    "maml": gradient_based(maml),
    "maml-first-order": gradient_based(partial(maml, first_order=True)),
    "anil": gradient_based(anil),
    "meta-nsn": gradient_based(meta_learned, frozen=True),
}
"""Other packages add theirs by the entry point `neural_similarity.methods`, a module.

Fine-tuning of a network with dynamic similarity is the paper's dynamic NSN; "meta-nsn" is its
meta-learned static NSN where the similarity is static. At "rate0.1" M takes steps a tenth as large
as the classifier's; the validation classes decide which rate is best."""
