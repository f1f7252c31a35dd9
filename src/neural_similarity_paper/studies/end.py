"""What the networks trained to the end say, by the rules of docs/evidence/end.md; their search.

Learning rate and decay of the arms are chosen on held-out training images: each of
three peaks at the usual decay, then two more decays at the best peak, for 16 epochs with seed 0. No
test image is scored for a choice.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neural_similarity.lab import session
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import read_facts
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.recipes import FAMILIES
from neural_similarity_paper.statistics import (
    by_arm_and_image,
    equivalence_p,
    holm,
    mean_and_deviation,
)
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.trials import SCORED, ReportLine, filling_alone, open_sheet
from neural_similarity_paper.tables.markdown import (
    deviation_text,
    interval_text,
    markdown_rows,
    p_value_text,
)
from neural_similarity_paper.tables.records import read_records
from neural_similarity_paper.tables.report import records_by_seed

EPOCHS = {8: 0.25, 16: 0.5, 32: 1.0, 57: 1.78125}
"""Budgets by number of epochs, each of 195 updates."""
DECAY = 5e-4
"""The usual decay, where the search for an arm's starts."""
ARMS = {name.removeprefix("cifar10-end-"): entry for name, entry in FAMILIES["end"][1].items()}
"""Descriptions and recipes of the arms."""


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


Pair = tuple[ArmKey, ArmKey]
DATA = "cifar10", "cifar100"


def _read_pair(pair: Sequence[str]) -> Pair:
    """Two arms, each a name, epochs, and other data than CIFAR-10."""
    ours, theirs = (
        ArmKey(name, int(epochs), *data) for name, epochs, *data in map(str.split, pair)
    )
    return ours, theirs


PRIMARY = _read_pair(STUDY_ENTRIES["end"]["primary"])
SECONDARY, DESCRIBED = (
    tuple(map(_read_pair, STUDY_ENTRIES["end"][kind])) for kind in ("secondary", "described")
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
    errors = {}
    for data, epochs, name in itertools.product(DATA, EPOCHS, ARMS):
        records = read_records(results, f"{data}-end-{name}", EPOCHS[epochs])
        if records:
            correct = [record.accuracies for record in records_by_seed(records).values()]
            errors[ArmKey(name, epochs, data)] = 100 * (1 - torch.stack(correct))
    return errors


def judge_primary(errors: Errors) -> Judged:
    """The primary comparison at the last look that its seeds allow, or an earlier one's finding."""
    looks = [(look, each) for look in LOOKS if (each := _compare(errors, PRIMARY, look))]
    if not looks:
        have, verdict = _seeds(errors, PRIMARY), f"not judged before {LOOKS[0]} seeds"
        return Judged(*PRIMARY, have, _compare(errors, PRIMARY, have), verdict)
    for look, interval in looks:
        if (interval.p or 0.0) < LOOK_LEVEL:
            return Judged(*PRIMARY, look, interval, _side(interval))
    look, interval = looks[-1]
    if look < LOOKS[-1]:
        return Judged(*PRIMARY, look, interval, "no gain seen at the first look")
    p = equivalence_p(interval, MARGIN)
    verdict = f"no gain: within ±{MARGIN:g}" if p < LEVEL else "no gain seen, nor equivalence"
    return Judged(*PRIMARY, look, interval, verdict, equivalence=p)


def judge_secondary(errors: Errors) -> list[Judged]:
    """The secondary comparisons, adjusted by Holm for all that were planned."""
    seeds = SECONDARY_SEEDS
    intervals = [_compare(errors, pair, seeds) for pair in SECONDARY]
    adjusted = holm([1.0 if each is None or each.p is None else each.p for each in intervals])
    return [
        Judged(*pair, 0, None, "not run")
        if interval is None
        else Judged(*pair, seeds, interval, _side(interval) if p < LEVEL else "not seen", p)
        for pair, interval, p in zip(SECONDARY, intervals, adjusted, strict=True)
    ]


def judge_all(errors: Errors) -> list[Judged]:
    """The primary comparison, the secondary ones, and those that are described, not tested."""
    judged = [judge_primary(errors), *judge_secondary(errors)]
    for pair in DESCRIBED:
        seeds = _seeds(errors, pair)
        judged.append(Judged(*pair, seeds, _compare(errors, pair, seeds), "described"))
    return judged


def _seeds(errors: Errors, pair: Pair) -> int:
    """How many both arms have."""
    return min(len(errors.get(key, ())) for key in pair)


def _compare(errors: Errors, pair: Pair, seeds: int) -> Interval | None:
    """The difference of two arms by their first seeds, if both have so many, and two."""
    if not 1 < seeds <= _seeds(errors, pair):
        return None
    return by_arm_and_image(*(errors[key][:seeds] for key in pair))


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

    def resampled(values: Tensor) -> Tensor:
        return values[torch.randint(len(values), (len(values),), generator=generator)]

    def factor(draw: Callable[[Tensor], Tensor]) -> float:
        curve = [draw(values).mean().item() for values in means]
        return _epochs_at(draw(ours.mean(1)).mean().item(), lengths, curve) / epochs

    drawn = sorted(factor(resampled) for _ in range(BOOTSTRAP))
    low, high = drawn[int(0.025 * BOOTSTRAP)], drawn[int(0.975 * BOOTSTRAP) - 1]
    return Interval(factor(lambda values: values), low, high)


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
    parts = ["# Trained to the end", STUDY_ENTRIES["end"]["note"], _arms_table(errors)]
    parts += ["## Comparisons", _judged_table(judge_all(errors))]
    if factors := [
        f"{epochs} epochs: {factor.mean:.2f} [{factor.low:.2f}, {factor.high:.2f}]"
        for epochs in EPOCHS
        if (factor := level_factor(errors, epochs)) is not None
    ]:
        title = "The plain network's epochs over static full M's for the same error"
        parts.append(f"{title}: {'; '.join(factors)}.")
    return "\n\n".join(parts) + "\n"


def _arms_table(errors: Errors) -> str:
    rows = [
        (data, text, *map(error_text, cells))
        for data, (name, (text, _)) in itertools.product(DATA, ARMS.items())
        for cells in [[errors.get(ArmKey(name, epochs, data)) for epochs in EPOCHS]]
        if any(cell is not None for cell in cells)
    ]
    return markdown_rows(("", "network", *(f"{epochs} epochs" for epochs in EPOCHS)), *rows)


def error_text(errors: Tensor | None) -> str:
    """The mean error, its standard deviation over seeds, and their number."""
    if errors is None:
        return "not run"
    return f"{deviation_text(*mean_and_deviation(errors.mean(1).tolist()))} (n = {len(errors)})"


def _judged_table(judged: Sequence[Judged]) -> str:
    head = ("", "against", "n", "difference", "p", "p by Holm", "p of equivalence", "says")
    rows = [
        (
            f"{each.ours}" + (" of CIFAR-100" if each.ours.data == "cifar100" else ""),
            *(f"{each.theirs}", f"{each.seeds}"),
            interval_text(each.interval) if each.interval else "",
            *map(p_value_text, (own, each.adjusted, each.equivalence)),
            each.verdict,
        )
        for each in judged
        for own in [each.interval.p if each.interval else None]
    ]
    return markdown_rows(head, *rows)


END_SEARCH = "end-search"
"""Folder of the sheets below that of all results."""
PEAKS, DECAYS = (0.1, 0.2, 0.4), (2.5e-4, 1e-3)
HELD_OUT, SEED, SEARCH_EPOCHS = 5_000, 0, 16


class Settings(NamedTuple):
    """What a run trains with."""

    peak: float
    decay: float

    def __str__(self) -> str:
        return f"{self.peak:g} {self.decay:g}"


def choose_settings(score: Callable[[Settings], float]) -> Settings:
    """The settings with the highest accuracy on held-out images, the first of equal ones."""

    def best(tried: Sequence[Settings]) -> Settings:
        scores = [score(settings) for settings in tried]
        return tried[scores.index(max(scores))]

    first = best([Settings(peak, DECAY) for peak in PEAKS])
    return best([first, *(first._replace(decay=decay) for decay in DECAYS)])


def run_search(arm: str, data: Path, results: Path, report: ReportLine) -> None:
    """Run what the search of an arm lacks; every run is kept, and one that is stopped goes on."""
    with filling_alone(results / END_SEARCH):
        terms = {"epochs": SEARCH_EPOCHS, "held_out": HELD_OUT, "seed": SEED}
        sheet = open_sheet(results / END_SEARCH / f"{arm}.json", SCORED, arm=arm, **terms)
        choose_settings(lambda s: sheet.run(s, lambda _: train_arm(arm, s, data), report))


def train_arm(arm: str, settings: Settings, data: Path) -> dict[str, Any]:
    """Train an arm, from where it was stopped; its scores."""
    name = f"cifar10-end-{arm}"
    folder = Path("runs") / END_SEARCH / f"{arm}-{str(settings).replace(' ', '-')}"
    if folder.exists():
        run = session.resume(folder, data_root=data)
    else:
        fields = {"lr": settings.peak, "weight_decay": settings.decay, "validation": HELD_OUT}
        recipe = replace(ARMS[arm][1], **fields, seed=SEED, threads=1)
        place = {"out": folder, "data_root": data, "budget": EPOCHS[SEARCH_EPOCHS]}
        run = session.train(recipe, name=name, **place)
    last, summary = read_lines(run.metrics)[-1], read_facts(run.summary)
    scores = {"accuracy": last["validation_accuracy"], "loss": last["validation_loss"]}
    return scores | {"score_precision": summary["score_precision"]}
