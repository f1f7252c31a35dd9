"""Run folders of few-shot learning, and the methods that they hold."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from neural_similarity.choices import require_known
from neural_similarity.lab.tasks.few_shot.embedding import split_classifier
from neural_similarity.lab.tasks.few_shot.heads import CosineLinear
from neural_similarity.lab.tasks.few_shot.interface import Method
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train import Run, RunError, read_run
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.run import Checkpoint, load_network, usual_checkpoint


@dataclass(frozen=True, kw_only=True)
class FewShotRun(Run):
    """A run folder of few-shot learning; `classes` are the base classes."""

    RECIPE: ClassVar[type[TrainingRecipe]] = FewShotRecipe
    COMMAND: ClassVar[str] = "nsim fewshot train"

    recipe: FewShotRecipe

    def build(self, **overrides: Any) -> nn.Module:
        """The module to train: the method if it is trained by tasks, else the network."""
        return self._as_trained(self._build_network(**overrides))

    def begin_network(self) -> nn.Module:
        """`build`, with the network trained by the run at the recipe's `start`, if any."""
        network = self._build_network()
        if self.recipe.start is not None:
            take_weights(network, self.recipe.start)
        return self._as_trained(network)

    def _build_network(self, **overrides: Any) -> nn.Sequential:
        network = as_network(super().build(**overrides))
        if METHODS[self.recipe.method].head == "cosine":
            network[-1] = CosineLinear(split_classifier(network)[1], len(self.classes))
        return network

    def _as_trained(self, network: nn.Sequential) -> nn.Module:
        kind = METHODS[self.recipe.method]
        return kind.build(network, self.recipe.task_sizes) if kind.episodic else network


def take_weights(network: nn.Sequential, start: str) -> None:
    """Load the embedding that the run in the folder `start` trained into `network`.

    The classifier is loaded as well if it has as many classes. Similarities that only `network` has
    stay as they are.
    """
    run = read_run(start, FewShotRun)
    source = load_network(run, usual_checkpoint(run))
    state, given = network.state_dict(), source.state_dict()
    fitting = {n: v for n, v in given.items() if n in state and state[n].shape == v.shape}
    *_, last = dict(network.named_children())
    lacking = [n for n in state if n not in fitting and ".similarity." not in n]
    for name in (*lacking, *(n for n in given if n not in fitting)):
        if not name.startswith(f"{last}."):
            raise RunError(f"the network in {start} does not fit: {name} is in one of the two only")
    network.load_state_dict(fitting, strict=False)


def load_method(run: FewShotRun, checkpoint: Checkpoint, name: str | None = None) -> Method:
    """The method that a run trained, or another one on the network that it trained.

    Raises:
        RunError: the run trained another method by tasks, or its network for another method.
        ValueError: there is no method of that name.
    """
    name = name or run.recipe.method
    require_known("method", name, METHODS)
    trained, wanted = METHODS[run.recipe.method], METHODS[name]
    model = load_network(run, checkpoint)
    if isinstance(model, Method) and name == run.recipe.method:
        return model.eval()
    if trained.episodic or wanted.episodic or trained.head != wanted.head:
        raise RunError(f"{run.path} was trained for {run.recipe.method}, which is not {name}")
    return wanted.build(as_network(model), run.recipe.task_sizes).eval()


def as_network(model: nn.Module) -> nn.Sequential:
    """`model`, which must be a network that ends in its classifier."""
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"`model` must be a torch.nn.Sequential, got {type(model).__name__}")
    return model
