"""What the networks trained to the end say, by the rules of docs/evidence/end.md."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.recipes.end import ARMS, EPOCHS
from neural_similarity_paper.statistics import (
    by_arm_and_image,
    equivalence_p,
    holm,
    mean_and_deviation,
)
from neural_similarity_paper.tables.markdown import deviation_text, interval_text, markdown_rows
from neural_similarity_paper.tables.records import read_records
from neural_similarity_paper.tables.report import records_by_seed

LOOKS, LOOK_LEVEL = (8, 16), 0.0294
"""Seeds of each arm at the two looks of the primary comparison, and Pocock's level of each."""
MARGIN, LEVEL = 0.2, 0.05
SECONDARY_SEEDS = 5
BOOTSTRAP = 2_000


class ArmKey(NamedTuple):
    """An arm at a length."""

    name: str
    epochs: int
    data: str = "cifar10"

    def __str__(self) -> str:
        return f"{self.name}, {self.epochs} epochs"


PRIMARY = ArmKey("static-full", 32), ArmKey("cnn", 32)
SECONDARY = (
    *(
        (ArmKey(name, 16), ArmKey("cnn", 16))
        for name in ("static-diagonal", "pooled", "dynamic-diagonal", "light-diagonal")
    ),
    (ArmKey("pooled", 16), ArmKey("cnn", 32)),
    (ArmKey("light-diagonal", 16), ArmKey("cnn", 32)),
    (ArmKey("dynamic-diagonal", 16), ArmKey("cnn-parameters", 16)),
    (ArmKey("dynamic-diagonal", 16), ArmKey("cnn-wide", 16)),
    (ArmKey("dynamic-diagonal", 16), ArmKey("cnn", 57)),
)
DESCRIBED = (
    *((ArmKey("static-full", epochs), ArmKey("cnn", epochs)) for epochs in (8, 16, 57)),
    *(
        (ArmKey(name, 32, "cifar100"), ArmKey("cnn", 32, "cifar100"))
        for name in ("static-full", "dynamic-diagonal")
    ),
)
NOTE = (
    "Test error in %, ± its standard deviation over seeds; differences in points with 95 % "
    "intervals over seeds, drawn for each arm, and test images. The design was written before the "
    "first run ([the design](end.md)). Peak learning rate and decay of each arm were "
    "chosen on held-out training images."
)

Errors = Mapping[ArmKey, Tensor]
"""Errors, 0 or 100, of (seeds, images), in the order of the seeds."""


@dataclass(frozen=True)
class Judged:
    """A comparison and what it says."""

    ours: ArmKey
    theirs: ArmKey
    seeds: int
    """Of each arm, as many as were compared."""
    interval: Interval | None
    verdict: str
    adjusted: float | None = None
    """The p-value after Holm, among the secondary comparisons."""
    equivalence: float | None = None
    """The p-value of equivalence, at the second look."""


def read_errors(results: Path) -> dict[ArmKey, Tensor]:
    """The errors of all records of the arms.

    Raises:
        ValueError: a record cannot be used.
    """
    found = {}
    for data in ("cifar10", "cifar100"):
        for key in (ArmKey(name, epochs, data) for epochs in EPOCHS for name in ARMS):
            records = read_records(results, f"{data}-end-{key.name}", EPOCHS[key.epochs])
            if records:
                right = [record.accuracies for record in records_by_seed(records).values()]
                found[key] = 100 * (1 - torch.stack(right))
    return found


def judge_primary(errors: Errors) -> Judged:
    """The primary comparison at the last look that its seeds allow, or an earlier one's finding."""
    ours, theirs = PRIMARY
    have = min(len(errors.get(key, ())) for key in PRIMARY)
    interval, seeds = _compare(errors, ours, theirs, have), have
    for look in (look for look in LOOKS if look <= have):
        interval, seeds = _compare(errors, ours, theirs, look), look
        if interval is not None and (interval.p or 0.0) < LOOK_LEVEL:
            return Judged(ours, theirs, look, interval, _side(interval))
    if interval is None or seeds < LOOKS[0]:
        return Judged(ours, theirs, seeds, interval, f"not judged before {LOOKS[0]} seeds")
    if seeds < LOOKS[1]:
        return Judged(ours, theirs, seeds, interval, "no gain seen at the first look")
    p = equivalence_p(interval, MARGIN)
    verdict = f"no gain: within ±{MARGIN:g}" if p < LEVEL else "no gain seen, nor equivalence"
    return Judged(ours, theirs, seeds, interval, verdict, equivalence=p)


def judge_secondary(errors: Errors) -> list[Judged]:
    """The secondary comparisons, adjusted by Holm for all that were planned."""
    intervals = [
        _compare(errors, *pair, SECONDARY_SEEDS)
        if all(len(errors.get(key, ())) >= SECONDARY_SEEDS for key in pair)
        else None
        for pair in SECONDARY
    ]
    adjusted = holm([1.0 if one is None or one.p is None else one.p for one in intervals])
    judged = []
    for (ours, theirs), interval, p in zip(SECONDARY, intervals, adjusted, strict=True):
        if interval is None:
            judged.append(Judged(ours, theirs, 0, None, "not run"))
        else:
            verdict = _side(interval) if p < LEVEL else "not seen"
            judged.append(Judged(ours, theirs, SECONDARY_SEEDS, interval, verdict, p))
    return judged


def judge_described(errors: Errors) -> list[Judged]:
    """The comparisons that are not tested."""
    seeds = (min(len(errors.get(key, ())) for key in pair) for pair in DESCRIBED)
    return [
        Judged(*pair, count, _compare(errors, *pair, count), "described")
        for pair, count in zip(DESCRIBED, seeds, strict=True)
    ]


def _compare(errors: Errors, ours: ArmKey, theirs: ArmKey, seeds: int) -> Interval | None:
    """The difference of two arms by their first seeds, if there are two of each."""
    return by_arm_and_image(errors[ours][:seeds], errors[theirs][:seeds]) if seeds > 1 else None


def _side(interval: Interval) -> str:
    return "lower error" if interval.mean < 0 else "higher error"


def level_factor(errors: Errors, epochs: int) -> Interval | None:
    """How many times the epochs the plain network needs to be level with static full M.

    By linear interpolation between the logarithms of lengths, infinite beyond the longest; the
    interval is of bootstrap samples of seeds. None where a length has no two seeds of each.
    """
    lengths = [length for length in EPOCHS if len(errors.get(ArmKey("cnn", length), ())) > 1]
    ours = errors.get(ArmKey("static-full", epochs))
    if ours is None or len(ours) < 2 or len(lengths) < 2:
        return None
    means = [errors[ArmKey("cnn", length)].mean(1) for length in lengths]
    generator = torch.Generator().manual_seed(0)

    def sample(values: Tensor) -> float:
        return values[torch.randint(len(values), (len(values),), generator=generator)].mean().item()

    def factor(curve: Sequence[float], error: float) -> float:
        return _epochs_at(error, lengths, curve) / epochs

    drawn = sorted(
        factor([sample(values) for values in means], sample(ours.mean(1))) for _ in range(BOOTSTRAP)
    )
    low, high = drawn[int(0.025 * BOOTSTRAP)], drawn[int(0.975 * BOOTSTRAP) - 1]
    return Interval(
        factor([values.mean().item() for values in means], ours.mean().item()), low, high
    )


def _epochs_at(error: float, lengths: Sequence[int], curve: Sequence[float]) -> float:
    """The first length at which a curve of errors, straight between logarithms, is that low."""
    if curve[0] <= error:
        return lengths[0]
    points = list(zip(map(log, lengths), curve, strict=True))
    for (start, before), (end, after) in itertools.pairwise(points):
        if after <= error:
            return exp(start + (end - start) * (before - error) / (before - after))
    return inf


def end_to_markdown(results: Path) -> str:
    """Arms and lengths with their seeds, and what the comparisons say."""
    errors = read_errors(results)
    primary = judge_primary(errors)
    parts = ["# Trained to the end", NOTE, _arms_table(errors), "## Comparisons"]
    parts.append(_judged_table([primary, *judge_secondary(errors), *judge_described(errors)]))
    if factors := [
        f"{epochs} epochs: {_factor_text(factor)}"
        for epochs in EPOCHS
        if (factor := level_factor(errors, epochs)) is not None
    ]:
        title = "The plain network's epochs over static full M's for the same error"
        parts.append(f"{title}: {'; '.join(factors)}.")
    return "\n\n".join(parts) + "\n"


def _arms_table(errors: Errors) -> str:
    rows = []
    for data in ("cifar10", "cifar100"):
        for name, (text, _) in ARMS.items():
            cells = [errors.get(ArmKey(name, epochs, data)) for epochs in EPOCHS]
            if any(cell is not None for cell in cells):
                rows.append((data, text, *map(_error_text, cells)))
    return markdown_rows(("", "network", *(f"{epochs} epochs" for epochs in EPOCHS)), *rows)


def _error_text(errors: Tensor | None) -> str:
    if errors is None:
        return "not run"
    return f"{deviation_text(*mean_and_deviation(errors.mean(1).tolist()))} (n = {len(errors)})"


def _judged_table(judged: Sequence[Judged]) -> str:
    head = ("", "against", "n", "difference", "p", "p by Holm", "p of equivalence", "says")
    rows = [
        (
            f"{one.ours}" + (" of CIFAR-100" if one.ours.data == "cifar100" else ""),
            f"{one.theirs}",
            f"{one.seeds}",
            "" if one.interval is None else interval_text(one.interval),
            *(
                "" if p is None else f"{p:.3f}"
                for p in (one.interval and one.interval.p, one.adjusted, one.equivalence)
            ),
            one.verdict,
        )
        for one in judged
    ]
    return markdown_rows(head, *rows)


def _factor_text(factor: Interval) -> str:
    return f"{factor.mean:.2f} [{factor.low:.2f}, {factor.high:.2f}]"
