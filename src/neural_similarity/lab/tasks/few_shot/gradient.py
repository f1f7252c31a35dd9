r"""Methods that adapt by gradient descent on the support set: MAML, ANIL, meta-learned NSN.

All are one class that differs in its phases: which parameters are fast, for how many steps, at
which rate. Training differentiates the loss of the queries through these steps,

$$\min_\theta \sum_\tau L_\tau^\text{query}(\theta_k), \quad
\theta_{i+1} = \theta_i - \eta \nabla_{\theta_i} L_\tau^\text{support}(\theta_i).$$
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.choices import require_least, require_positive
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics, support_first
from neural_similarity.lab.tasks.few_shot.embedding import embed_queries, split_classifier
from neural_similarity.lab.tasks.few_shot.interface import Episode, Method, Predict
from neural_similarity.nn import DynamicSimilarity, StaticSimilarity
from neural_similarity.ops import promote_dtype

GroupName = Literal["all", "head", "similarity", "predictor"]
"""Parameters by name: all; the classifier; static M and the gains of dynamic ones; predictors."""
Values = dict[str, Tensor]
Loss = Callable[[Values], Tensor]
Gradient = Callable[[Loss, Values], Values]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Steps of gradient descent on some of the parameters.

    Attributes:
        fast: Groups of parameters that move.
        steps: Number of steps, each on all of the support set.
        rate: Step size, on the mean cross-entropy. Code that sums it over the classes (the original
            MAML's) takes 1/ways of this.
    """

    fast: tuple[GroupName, ...]
    steps: int
    rate: float

    def __post_init__(self):
        _check_groups("fast", self.fast)
        if not self.fast:
            raise ValueError("`fast` must name at least one group, got none")
        require_least("steps", self.steps)
        require_positive("rate", self.rate)


class GradientBased(Method):
    """Gradient descent on the support set, from initial values learned by differentiating it.

    A phase that adapts the head alone embeds the support set once for all of its steps, with the
    same result. `adapt` keeps no graph. Batch normalisation uses the statistics of the support set,
    for itself and for queries, unless `set_statistics` changes them.

    Args:
        network: One of `ns.models`, or any `torch.nn.Sequential` that ends in a linear classifier:
            its embedding becomes `backbone`, and a new classifier becomes `head`.
        ways: Classes of a task, a fixed number, since the head's initial values are learned.
        phases: Run one after another.
        test_phases: Phases of `adapt`, by default the same.
        trained: Groups of parameters whose initial values are learned; the others are frozen.
        first_order: Treat the inner gradients as constants in training.

    Raises:
        ValueError: the network does not end in a linear layer or has no parameters of a group, or
            there are no phases.
    """

    fixed_embedding = False

    def __init__(
        self,
        network: nn.Sequential,
        ways: int,
        phases: Sequence[Phase],
        *,
        test_phases: Sequence[Phase] | None = None,
        trained: tuple[GroupName, ...] = ("all",),
        first_order: bool = False,
    ):
        super().__init__()
        self.backbone, features = split_classifier(network)
        self.head = nn.Linear(features, ways).to(next(self.backbone.parameters()))
        self.phases = tuple(phases)
        self.test_phases = tuple(phases if test_phases is None else test_phases)
        self.first_order = first_order
        self._check_phases()
        _check_groups("trained", trained)
        start = self.parameter_names(trained)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in start)
        set_statistics(self, "support")
        _forget_statistics(self)

    def _check_phases(self) -> None:
        for argument in ("phases", "test_phases"):
            if not getattr(self, argument):
                raise ValueError(f"`{argument}` must have at least one phase, got none")
        for phase in (*self.phases, *self.test_phases):
            self.parameter_names(phase.fast)

    def parameter_names(self, groups: Iterable[GroupName]) -> set[str]:
        names: set[str] = set()
        for group in groups:
            members = self._group_members(group)
            if not members:
                raise ValueError(f"`network` must have parameters of the group {group!r}, got none")
            names |= members
        return names

    def _group_members(self, group: GroupName) -> set[str]:
        if group in ("all", "head"):
            prefix = "head." if group == "head" else ""
            return {name for name, _ in self.named_parameters() if name.startswith(prefix)}
        members: list[nn.Parameter | None] = []
        for module in self.modules():
            if isinstance(module, DynamicSimilarity):
                learned = module.predictor.parameters() if group == "predictor" else [module.gain]
                members += learned
            elif isinstance(module, StaticSimilarity) and group == "similarity":
                members.append(module.raw)
        wanted = {id(parameter) for parameter in members}
        return {name for name, parameter in self.named_parameters() if id(parameter) in wanted}

    def forward(self, x: Tensor, embedded: bool = False) -> Tensor:
        """Logits of images, or of features if x is `embedded` already."""
        return self.head(x if embedded else self.embed(x))

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        self._check_ways(ways)
        values = {name: p.detach() for name, p in self.named_parameters()}
        with torch.enable_grad():
            values = self._descend_phases(
                values, support, labels, self.test_phases, constant_gradient
            )
        return lambda query: self._query_logits(values, support, query)

    def loss(self, episode: Episode) -> Tensor:
        """Mean cross-entropy of the queries after the phases, differentiable through them."""
        self._check_ways(episode.ways)
        gradient = constant_gradient if self.first_order else differentiable_gradient
        return self._query_loss(episode, gradient)

    def _query_loss(self, episode: Episode, gradient: Gradient) -> Tensor:
        support, labels, query, targets = episode
        values: Values = dict(self.named_parameters())
        values = self._descend_phases(values, support, labels, self.phases, gradient)
        return F.cross_entropy(self._query_logits(values, support, query), targets)

    def _query_logits(self, values: Values, support: Tensor, query: Tensor) -> Tensor:
        logits = partial(functional_call, self, values)
        return embed_queries(logits, self.statistics, support, query)

    def _descend_phases(
        self,
        values: Values,
        support: Tensor,
        labels: Tensor,
        phases: Sequence[Phase],
        gradient: Gradient,
    ) -> Values:
        """The parameters after the phases; a parameter that is fast in no phase stays the same."""
        for phase in phases:
            names = sorted(self.parameter_names(phase.fast))
            twice = gradient is differentiable_gradient
            loss = self._support_loss(values, support, labels, _head_only(names), twice)
            fast = {name: values[name] for name in names}
            for _ in range(phase.steps):
                change = gradient(loss, fast)
                fast = {name: fast[name] - phase.rate * change[name] for name in names}
            values = values | fast
        return values

    def _support_loss(
        self, values: Values, support: Tensor, labels: Tensor, on_features: bool, twice: bool
    ) -> Loss:
        """The loss of the support set as a function of the fast parameters."""
        x = self._embed_support(values, support) if on_features else support

        def loss(fast: Values) -> Tensor:
            with support_first(len(x), twice=twice):
                scores = functional_call(self, values | fast, (x, on_features))
            return F.cross_entropy(scores, labels)

        return loss

    def _embed_support(self, values: Values, support: Tensor) -> Tensor:
        names = {f"backbone.{name}": name for name, _ in self.backbone.named_parameters()}
        inside = {names[name]: value for name, value in values.items() if name in names}
        with support_first(len(support)):
            return promote_dtype(functional_call(self.backbone, inside, (support,)).flatten(1))

    def _check_ways(self, ways: int) -> None:
        if ways != self.head.out_features:
            raise ValueError(
                f"`ways` must be {self.head.out_features}, for which the head was made, got {ways}"
            )


def maml(
    network: nn.Sequential,
    ways: int = 5,
    *,
    fast: GroupName = "all",
    steps: int = 5,
    test_steps: int = 10,
    rate: float = 0.05,
    first_order: bool = False,
) -> GradientBased:
    """MAML (Finn et al. 2017, https://arxiv.org/abs/1703.03400): all parameters are fast.

    The defaults are the original's for Mini-ImageNet, whose rate 0.01 is for the sum over the five
    classes. With a network that has a similarity, static or dynamic, this is the paper's
    combination of the two (author response, table 1): M, or its predictors, adapt with the kernels.
    Parameters of the group `fast` take `steps` in training and `test_steps` in `adapt`;
    `first_order` treats the inner gradients as constants, which saves over half of the time.
    """
    train, test = (Phase(fast=(fast,), steps=count, rate=rate) for count in (steps, test_steps))
    return GradientBased(network, ways, (train,), test_phases=(test,), first_order=first_order)


anil = partial(maml, fast="head")
"""ANIL (Raghu et al. 2020, https://arxiv.org/abs/1909.09157): `maml` whose head alone is fast."""


def meta_learned(
    network: nn.Sequential,
    ways: int = 5,
    *,
    steps: int = 5,
    head_steps: int = 20,
    rate: float = 0.2,
    first_order: bool = False,
) -> GradientBased:
    r"""Meta-learned similarity: $M' = M - \eta\nabla_M L_\tau(f_M)$. Paper, Eq. 7 and App. A.

    It takes `steps` on M and the head, then `head_steps` on the head alone. The initial values of
    both are learned; the kernels stay as pretrained on the base classes with M = I.

    With a dynamic similarity, which the paper leaves for later, M(x) = I + gain · raw(x), and the
    gains are fast: nine per layer, as in a static M, which scale how strongly the task's images
    modulate each tap. The predictors' thousands of weights cannot be learned from 25 images; their
    initial values are learned together with those of the gains. The network is pretrained, with a
    static similarity or a dynamic one that has gains (`init="identity"`); `first_order` is as in
    `maml`.
    """
    phases = (
        Phase(fast=("similarity", "head"), steps=steps, rate=rate),
        Phase(fast=("head",), steps=head_steps, rate=rate),
    )
    dynamic = any(isinstance(module, DynamicSimilarity) for module in network.modules())
    trained: tuple[GroupName, ...] = (
        "similarity",
        "head",
        *(("predictor",) if dynamic else ()),
    )
    return GradientBased(network, ways, phases, trained=trained, first_order=first_order)


def differentiable_gradient(loss: Loss, fast: Values) -> Values:
    """The gradient, which can itself be differentiated by the parameters."""
    leaves = [v if v.requires_grad else v.detach().requires_grad_() for v in fast.values()]
    value = loss(dict(zip(fast, leaves, strict=True)))
    changes = torch.autograd.grad(value, leaves, create_graph=True)
    return dict(zip(fast, changes, strict=True))


def constant_gradient(loss: Loss, fast: Values) -> Values:
    """The gradient as a constant, whose graph is freed."""
    leaves = [value.detach().requires_grad_() for value in fast.values()]
    changes = torch.autograd.grad(loss(dict(zip(fast, leaves, strict=True))), leaves)
    return dict(zip(fast, changes, strict=True))


def _head_only(names: Iterable[str]) -> bool:
    return all(name.startswith("head.") for name in names)


def _forget_statistics(network: nn.Module) -> None:
    """Mark the running statistics as untracked: parameters will move away from them."""
    for module in network.modules():
        if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None:
            module.num_batches_tracked.zero_()


def _check_groups(argument: str, groups: Iterable[GroupName]) -> None:
    known = get_args(GroupName)
    for group in groups:
        if group not in known:
            raise ValueError(
                f"`{argument}` must name groups among {', '.join(known)}, got {group!r}"
            )
