"""The loss of episodic training."""

import torch
from torch import Tensor, nn

from neural_similarity.lab.data import Augment, Images, Preprocess
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.data.transforms import Windows
from neural_similarity.lab.tasks.few_shot.interface import Episode, Method
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.tasks import Sampler
from neural_similarity.lab.train import Runtime, distributed
from neural_similarity.lab.train.objective import tally


class Episodes:
    """The mean loss of a method on tasks of training images, new tasks in every step.

    Step `s` uses tasks from number `s * meta_batch` on, with crops and flips that depend on this
    number alone, so that a resumed run sees the same tasks as an uninterrupted one.
    """

    on_device = False

    def __init__(
        self, recipe: FewShotRecipe, images: Images, preprocess: Preprocess, runtime: Runtime
    ) -> None:
        self._recipe, self._runtime, self._preprocess = recipe, runtime, preprocess
        self._sampler = Sampler(images, recipe.task_sizes)
        augment = Augment(crop=recipe.crop, flip=recipe.flip, padding=recipe.padding)
        self._windows = Windows(images.pixels, augment, runtime.device)
        self._step = 0

    def network(self, model: nn.Module) -> nn.Module:
        """The method itself: `differentiate` adds up the gradients of all processes."""
        return model

    def prepare(self, step: int) -> None:
        self._step = step

    def training_task(self, number: int) -> Episode:
        """Training task `number`, a function of the number alone."""
        recipe, device = self._recipe, self._runtime.device
        draw = self._sampler.draw_numbered("episode", recipe.seed, number, 1)
        both = torch.cat([draw.support[0], draw.query[0]])
        corners = self._windows.draw_corners(both, seeded_generator("crops", recipe.seed, number))
        pixels = self._windows.take_windows(corners.to(device))
        images = self._runtime.place_images(self._preprocess(pixels))
        shown = draw.support.shape[1]
        labels = (
            recipe.task_sizes.support_labels.to(device),
            recipe.task_sizes.query_labels.to(device),
        )
        return Episode(images[:shown], labels[0], images[shown:], labels[1])

    def differentiate(self, network: nn.Module) -> Tensor:
        """Add gradients of the prepared tasks' mean loss, task by task: only one graph is kept.

        Several processes share the tasks.
        """
        if not isinstance(network, Method):
            raise ValueError(f"`network` must be a Method, got {type(network).__name__}")
        count = self._recipe.meta_batch
        numbers = range(self._step * count, (self._step + 1) * count)[distributed.own_share(count)]
        tallies = [torch.zeros(3, dtype=self._runtime.sum_dtype, device=self._runtime.device)]
        tallies += [self._task_tally(network, number) for number in numbers]
        distributed.sum_gradients(network)
        return torch.stack(tallies).sum(0)

    def _task_tally(self, method: Method, number: int) -> Tensor:
        task = self.training_task(number)
        with self._runtime.autocast():
            loss = method.loss(task).float()
        (loss / self._recipe.meta_batch).backward()
        unknown = torch.full_like(loss, torch.nan).detach()
        return tally(loss, unknown, len(task.support) + len(task.query))
