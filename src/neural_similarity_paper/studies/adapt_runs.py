"""Running the map of adaptation: one process, one file a cell, everything kept that is done."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from neural_similarity.files import read_json, write_text
from neural_similarity.lab.data import Dataset, ImageSet, load_dataset
from neural_similarity.lab.data.images import split_off
from neural_similarity.lab.errors import CONTENT_ERRORS, reason_of
from neural_similarity.lab.session import initial_state
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe, AdaptationTask
from neural_similarity.lab.train import Run, Runtime, choose_runtime, evaluate_model, pack_correct
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.environment import checkout_commit, describe_environment
from neural_similarity.lab.train.files import check_fields, hold_lock, record_layout
from neural_similarity.lab.train.graph import plain_update
from neural_similarity.lab.train.loop import Job, step_rate, update_once
from neural_similarity.lab.train.runtime import SCORE_PRECISION, cpu_threads
from neural_similarity_paper.studies.adapt_map import (
    CHANGES,
    DRAWS,
    FIXED_RATES,
    LABELS,
    MAP_FOLDER,
    MAP_SEARCH,
    MAP_WAYS,
    RATE_CHANGES,
    MapRun,
    RateSearch,
    Statistics,
    cell_trials,
    chosen_rate,
    missing_trials,
    rate_trials,
    trial_recipe,
)
from neural_similarity_paper.tables.recording import code_of, machine_of

ReportLine = Callable[[str], None]
RunTrial = Callable[..., dict[str, Any]]
"""Trains and scores a `MapRun`."""
SCORED = {"accuracy": float | int, "score_precision": str | None}
TRAINED = SCORED | {"trained": int}
"""Types of what tables show of runs, see `check_fields`."""
HELD_OUT = 200
"""Training images of each class that rates are chosen on."""
MEMORY = Path("in-memory")
"""The folder of runs that write nothing."""


@dataclass
class Sheet:
    """A file of runs, written anew whenever one is added."""

    path: Path
    facts: dict[str, Any]
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def accuracies(self) -> dict[str, float]:
        """Accuracies by trial."""
        return {key: run["accuracy"] for key, run in self.runs.items()}

    @property
    def chosen_rates(self) -> dict[str, float]:
        """The rate of every way that these runs chose."""
        return {
            way: chosen_rate(way, self.accuracies, MAP_SEARCH)
            for way in MAP_WAYS
            if way not in FIXED_RATES and not missing_trials(way, self.accuracies, MAP_SEARCH)
        }

    @property
    def statistics(self) -> Statistics:
        """By which statistics the networks of a cell normalise."""
        return self.facts["statistics"]

    def add(self, trial: MapRun | str, run: dict[str, Any]) -> None:
        """Add a run and write the file."""
        self.runs[str(trial)] = run
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_text(self.path, record_layout(self.facts | {"runs": self.runs}))


def read_sheet(path: Path, fields: Mapping[str, Any] = TRAINED) -> Sheet:
    """The runs in a file of a study, each with these fields.

    Raises:
        ValueError: it holds none.
    """
    try:
        content = read_json(path)
        sheet = Sheet(path, content, content.pop("runs"))
        if sheet.facts.get("statistics", "new") not in get_args(Statistics):
            raise ValueError(f"`statistics` is {sheet.statistics!r:.80}")
        for run in sheet.runs.values():
            check_fields(run, fields)
        return sheet
    except CONTENT_ERRORS as error:
        raise ValueError(f"{path} cannot be read as a sheet of runs: {reason_of(error)}") from error


def rates_path(results: Path, labels: int, statistics: Statistics = "new") -> Path:
    """The file of the runs that chose the rates for a number of labels."""
    kept = "-backbone" if statistics == "backbone" else ""
    return results / MAP_FOLDER / f"rates-{labels}{kept}.json"


def cell_path(results: Path, change: str, labels: int) -> Path:
    """The file of a cell."""
    return results / MAP_FOLDER / f"{change}-{labels}.json"


def open_sheet(path: Path, fields: Mapping[str, Any] = TRAINED, **facts: Any) -> Sheet:
    """The file's runs, or an empty sheet of these facts, the code and the machine."""
    if path.exists():
        return read_sheet(path, fields)
    environment = describe_environment(cpu_runtime())
    facts |= {"code": code_of(environment), "environment": machine_of(environment)}
    return Sheet(path, facts)


@contextmanager
def filling_alone(folder: Path) -> Iterator[None]:
    """One thread and one process that fills a folder of sheets.

    A process that is stopped goes on where it was. Another one must not run beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder / "lock", f"another process fills {folder}"), cpu_threads(1):
        yield


def fill_sheet(
    sheet: Sheet, trials: Iterable[MapRun], run_trial: RunTrial, report: ReportLine
) -> None:
    """Run the trials that a sheet lacks, each of which it keeps at once."""
    for trial in trials:
        if str(trial) not in sheet.runs:
            run = run_trial(trial)
            sheet.add(trial, run)
            report(f"{sheet.path.stem}: {trial}: {100 * run['accuracy']:.2f} %")


def fill_search(
    sheet: Sheet,
    ways: Iterable[str],
    run_trial: RunTrial,
    report: ReportLine,
    search: RateSearch,
) -> None:
    """Run what the choice of the ways' rates lacks; accuracies are enough to choose by."""

    def run_accuracy(trial: MapRun) -> dict[str, Any]:
        run = run_trial(trial)
        return {key: value for key, value in run.items() if key != "correct"}

    for way in ways:
        while trials := missing_trials(way, sheet.accuracies, search):
            fill_sheet(sheet, trials, run_accuracy, report)


def run_map(data: Path, results: Path, report: ReportLine) -> None:
    """Run everything that is missing: M at its rates in all cells, then the other ways."""
    with filling_alone(results / MAP_FOLDER):
        for labels, fill in product(LABELS, (_fill_rates, _fill_ways)):
            for change in CHANGES:
                cell = open_sheet(cell_path(results, change, labels), labels=labels)
                statistics = choose_statistics(cell, change, labels, data)
                rates = open_sheet(rates_path(results, labels, statistics), labels=labels)
                fill(change, cell, rates, partial(_run_trial, labels, statistics, data), report)


def _fill_rates(
    change: str, cell: Sheet, _: Sheet, run_trial: RunTrial, report: ReportLine
) -> None:
    fill_sheet(cell, rate_trials(change), partial(run_trial, held_out=False), report)


def _fill_ways(
    change: str, cell: Sheet, rates: Sheet, run_trial: RunTrial, report: ReportLine
) -> None:
    searched = (way for way in MAP_WAYS if way not in FIXED_RATES)
    fill_search(rates, searched, partial(run_trial, held_out=True), report, MAP_SEARCH)
    trials = cell_trials(change, rates.chosen_rates)
    fill_sheet(cell, trials, partial(run_trial, held_out=False), report)


def choose_statistics(cell: Sheet, change: str, labels: int, data: Path) -> Statistics:
    """Those by which the untrained network classifies more labelled images of all draws."""
    if "statistics" not in cell.facts:
        recipes = {
            kind: [trial_recipe(MapRun(way, 1.0, change, draw), labels) for draw in DRAWS]
            for kind, way in (("new", "statistics"), ("backbone", "nothing"))
        }
        correct = {
            kind: sum(_labelled_correct(recipe, data) for recipe in own)
            for kind, own in recipes.items()
        }
        cell.facts |= {
            "labelled_correct": correct,
            "statistics": max(correct, key=lambda kind: correct[kind]),
        }
        cell.write()
    return cell.statistics


def _labelled_correct(recipe: AdaptationRecipe, data: Path) -> int:
    """How many of its labelled images a run classifies rightly."""
    task, run, state = train_in_memory(recipe, load_images(recipe.dataset, data, False), data)
    return int(score_in_memory(state.model, run, task.dataset.train).sum())


def _run_trial(
    labels: int, statistics: Statistics, data: Path, trial: MapRun, held_out: bool
) -> dict[str, Any]:
    recipe = trial_recipe(trial, labels, statistics)
    return run_in_memory(recipe, load_images(recipe.dataset, data, held_out), data)


def cpu_runtime() -> Runtime:
    """The CPU, training in bfloat16: a run takes two thirds of its time in float32."""
    return choose_runtime("cpu", "bf16", True)


@lru_cache(maxsize=2 * len(RATE_CHANGES))
def load_images(name: str, data: Path, held_out: bool) -> Dataset:
    """A changed data set; or its training images alone, some held out in place of test images."""
    whole = load_dataset(name, root=data)
    if not held_out:
        return whole
    train, test = split_off(whole.train, [HELD_OUT] * len(whole.train.classes), seed=0)
    return replace(whole, train=train, test=test)


def start_in_memory(
    recipe: AdaptationRecipe, whole: Dataset, data: Path
) -> tuple[AdaptationTask, Run, TrainingState]:
    """A run in no folder, its task, and the state before its first step."""
    if not Path(recipe.backbone).exists():
        raise FileNotFoundError(f"{recipe.backbone} is missing, the network that is adapted")
    task = AdaptationTask.of_dataset(recipe, whole)
    task = task if recipe.lr else task.with_own_rate()
    run = task.new_run(MEMORY, "adapt", 1.0, data)
    return task, run, initial_state(run, cpu_runtime())


def train_in_memory(
    recipe: AdaptationRecipe, whole: Dataset, data: Path
) -> tuple[AdaptationTask, Run, TrainingState]:
    """A run that has trained as `nsim train adapt` does, and its task."""
    (task, run, state), runtime = start_in_memory(recipe, whole, data), cpu_runtime()
    job = Job(run.recipe, runtime, task.objective(run, runtime))
    advance = plain_update(partial(update_once, job, state, state.model.train()), state.optimizer)
    for step in range(run.recipe.steps):
        job.objective.prepare(step)
        advance(step_rate(run.recipe, step))
    return task, run, state


def run_in_memory(recipe: AdaptationRecipe, whole: Dataset, data: Path) -> dict[str, Any]:
    """Train and score as `nsim train adapt` does, and return what a sheet keeps of it.

    A run that diverges is scored as it is.
    """
    _, run, state = train_in_memory(recipe, whole, data)
    correct = score_in_memory(state.model, run, whole.test)
    return run_facts(state.model, run, correct) | {"finite": bool(state.totals[0].isfinite())}


def score_in_memory(network: nn.Module, run: Run, images: ImageSet) -> Tensor:
    """Whether the network classifies each of the images correctly, as other runs are scored."""
    return evaluate_model(network, images, run.preprocess, cpu_runtime().for_scores()).correct


def run_facts(network: nn.Module, run: Run, correct: Tensor) -> dict[str, Any]:
    """What a sheet keeps of a run."""
    return {
        "lr": run.recipe.lr,
        "accuracy": correct.sum().item() / len(correct),
        "score_precision": SCORE_PRECISION,
        "trained": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "commit": checkout_commit(),
        "data": run.digest,
        "correct": pack_correct(correct),
    }
