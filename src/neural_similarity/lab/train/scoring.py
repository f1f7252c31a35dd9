"""Scores of a network on a set of images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.data import Images, ImageSet, Preprocess
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.nn import evaluation_mode

BATCH_SIZE = 100
"""Activations of larger batches exceed what malloc reuses: every layer would touch new pages."""

FEW_CLASSES = 10
"""With more classes than this, the top-5 error is scored, too."""
NEARLY_ALL = 0.95
"""Share of the images of other classes that a class takes if the network knows no other."""


@dataclass(frozen=True)
class Scores:
    """Loss and answers of a network."""

    loss: float
    """Mean cross-entropy, without label smoothing."""
    answers: Tensor
    """The class of each image's largest logit; int64, on the CPU."""
    labels: Tensor
    """The class of each image."""
    correct5: Tensor | None = None
    """Whether the label is among the top five; None where there are no more than ten classes."""

    @property
    def correct(self) -> Tensor:
        """Whether each image's answer is its label; boolean."""
        return self.answers == self.labels

    @property
    def accuracy(self) -> float:
        """Share of correct images."""
        return self.correct.sum().item() / len(self.correct)

    @property
    def error_percent(self) -> float:
        """Share of wrong images in percent, as in the paper's tables."""
        return _error_percent(~self.correct)

    @property
    def top5_error_percent(self) -> float | None:
        """Share of images whose label is not among the top five, in percent."""
        return None if self.correct5 is None else _error_percent(~self.correct5)

    def class_accuracies(self, classes: Sequence[str]) -> dict[str, float]:
        """Share of correct images of every class that has images."""
        of_class = {name: self.correct[self.labels == c] for c, name in enumerate(classes)}
        return {
            name: correct.double().mean().item()
            for name, correct in of_class.items()
            if len(correct)
        }

    @property
    def only_answer(self) -> int | None:
        """The class that nearly all images of other classes are taken for, if there is one."""
        answer = int(self.answers.mode().values)
        taken = self.answers[self.labels != answer] == answer
        return answer if len(taken) and taken.double().mean() >= NEARLY_ALL else None


@torch.no_grad()
def predict_logits(
    model: nn.Module, images: ImageSet | Tensor, preprocess: Preprocess, runtime: Runtime
) -> Tensor:
    """Float32 logits on the CPU, in evaluation mode; modes are restored afterwards.

    Several processes share the images, and each returns all logits.
    """
    # Whole batches, so that no image's logits depend on the number of processes.
    share = distributed.own_share(-(-len(images) // BATCH_SIZE))
    start, stop = share.start * BATCH_SIZE, min(share.stop * BATCH_SIZE, len(images))
    pixels = images.pixels if isinstance(images, Images) else images
    if isinstance(pixels, Tensor):
        chunks = pixels[start:stop].split(BATCH_SIZE)
    else:
        chunks = pixels.subset(range(start, stop)).chunks(BATCH_SIZE)
    logits = []
    with evaluation_mode(model):
        for batch in chunks if start < stop else ():
            with runtime.autocast():
                logits.append(model(runtime.place_images(preprocess(batch))).float().cpu())
    return distributed.gather_rows(torch.cat(logits) if logits else None)


def score_logits(logits: Tensor, labels: Tensor) -> Scores:
    """Scores of `logits` against `labels`."""
    labels = labels.cpu()
    correct5 = None
    if logits.shape[1] > FEW_CLASSES:
        correct5 = (logits.topk(5).indices == labels[:, None]).any(1)
    return Scores(F.cross_entropy(logits, labels).item(), logits.argmax(1), labels, correct5)


def evaluate_model(
    model: nn.Module, images: ImageSet, preprocess: Preprocess, runtime: Runtime
) -> Scores:
    """Scores of `model` on `images`, in evaluation mode."""
    return score_logits(predict_logits(model, images, preprocess, runtime), images.labels)


def _error_percent(chosen: Tensor) -> float:
    return 100 * chosen.sum().item() / len(chosen)
