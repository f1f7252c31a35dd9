"""The values that the fields of a recipe may have."""

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from neural_similarity.choices import require_known
from neural_similarity.lab.train.runtime import MOST_THREADS
from neural_similarity.models import MOST_WIDTH, WITHOUT_SIMILARITY, options

POSITIVE = ("width", "steps", "lr", "drop_factor", "batch_size", "log_every", "evaluate_every")
POSITIVE += ("norm_eps",)
NOT_NEGATIVE = ("momentum", "weight_decay", "similarity_decay", "label_smoothing", "crop", "seed")
NOT_NEGATIVE += ("validation", "threads", "workers", "checkpoint_every", "penalty")
NOT_NEGATIVE += ("orthogonality", "probability_floor", "norm_momentum", "square_momentum")
BELOW_1 = ("momentum", "square_momentum", "label_smoothing")
AT_MOST = {"drop_factor": 1, "norm_momentum": 1, "width": MOST_WIDTH, "threads": MOST_THREADS}
FIELD_KINDS = {
    int: (int, "be an integer"),
    float: (int | float, "be a number"),
    bool: (bool, "be True or False"),
}
LONGEST_GAP = 300.0


def require_field(recipe: Any, holds: bool, name: str, wanted: str) -> None:
    """Raise a ValueError that the field `name` must be as `wanted`, unless that `holds`."""
    if not holds:
        raise ValueError(f"`{name}` must {wanted}, got {getattr(recipe, name)!r}")


def check_fields_of(recipe: Any) -> None:
    """Check the types and ranges of all fields, and those that must fit each other.

    Raises:
        ValueError: it names the field, what is required and what came.
    """
    _check_kinds(recipe)
    _check_ranges(recipe)
    _check_drops(recipe.drops, recipe.steps)
    _check_optimizer(recipe)
    _check_model(recipe)
    if recipe.dataset == "imagenet":
        wanted = "be 0 for imagenet, whose windows are resized"
        require_field(recipe, not recipe.crop, "crop", wanted)
        wanted = "be random for imagenet, which is mirrored while it is decoded"
        require_field(recipe, recipe.flips == "random", "flips", wanted)


@cache
def _field_types(recipe: type) -> dict[str, Any]:
    return get_type_hints(recipe)


def _check_kinds(recipe: Any) -> None:
    for name, kind in _field_types(type(recipe)).items():
        if get_origin(kind) is Literal:
            require_known(name, getattr(recipe, name), get_args(kind))
        elif kind in FIELD_KINDS:
            types, wanted = FIELD_KINDS[kind]
            require_field(recipe, isinstance(getattr(recipe, name), types), name, wanted)


def _check_ranges(recipe: Any) -> None:
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if isinstance(value, float):
            require_field(recipe, math.isfinite(value), field.name, "be finite")
        elif isinstance(value, int):
            require_field(recipe, value < 2**63, field.name, "be below 2**63")
    fields = vars(recipe)
    for name in recipe.POSITIVE:
        require_field(recipe, fields[name] > 0, name, "be above 0")
    for name in filter(fields.__contains__, NOT_NEGATIVE):
        require_field(recipe, fields[name] >= 0, name, "not be negative")
    for name in filter(fields.__contains__, BELOW_1):
        require_field(recipe, fields[name] < 1, name, "be below 1")
    for name, most in AT_MOST.items():
        require_field(recipe, fields[name] <= most, name, f"be at most {most}")
    gap, size = recipe.checkpoint_seconds, recipe.image_size
    wanted = f"be above 0 and at most {LONGEST_GAP:g}"
    require_field(recipe, 0 < gap <= LONGEST_GAP, "checkpoint_seconds", wanted)
    known = size is None or (isinstance(size, int) and size >= 1)
    require_field(recipe, known, "image_size", "be an integer of at least 1")


def _check_drops(drops: Sequence[int], steps: int) -> None:
    if not (isinstance(drops, tuple) and all(isinstance(drop, int) for drop in drops)):
        raise ValueError(f"`drops` must be a tuple of integers, got {drops!r}")
    if not all(before < after for before, after in pairwise((0, *drops, steps))):
        raise ValueError(
            f"`drops` must increase, from 1 on, and stay below `steps` = {steps}, got {drops}; "
            "a budget scales steps and drops together"
        )


def _check_optimizer(recipe: Any) -> None:
    cycle = recipe.schedule == "one-cycle"
    require_field(recipe, not (cycle and recipe.drops), "drops", "be () for one-cycle")
    if recipe.nesterov:
        require_field(recipe, recipe.optimizer == "sgd", "optimizer", "be sgd for `nesterov`")
        require_field(recipe, recipe.momentum > 0, "momentum", "be above 0 for `nesterov`")


def _check_model(recipe: Any) -> None:
    model = recipe.model
    if "variant" not in options(model):
        require_field(recipe, recipe.variant == "paper", "variant", f'be "paper" for {model}')
    if model in WITHOUT_SIMILARITY:
        require_field(recipe, recipe.similarity is None, "similarity", f"be none for {model}")
