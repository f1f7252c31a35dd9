"""Learning rate and decay of the arms of `recipes.end`, chosen on held-out training images.

Each of three peaks at the usual decay, then two more decays at the best peak: 16 epochs, seed 0,
5,000 of the training images held out. No test image is scored for a choice.
"""

from pathlib import Path

from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import read_facts
from neural_similarity.lab.train.stopping import signals_noted
from neural_similarity_paper.recipes.end import DECAY, EPOCHS
from neural_similarity_paper.studies.sheets import (
    SCORED,
    ReportLine,
    Sheet,
    filling_alone,
    open_sheet,
)
from neural_similarity_paper.tables.running import start_process, wait_for

END_SEARCH = "end-search"
"""Folder of the sheets below that of all results."""
PEAKS, DECAYS = (0.1, 0.2, 0.4), (2.5e-4, 1e-3)
HELD_OUT, SEED, SEARCH_EPOCHS = 5_000, 0, 16
Settings = tuple[float, float]
"""Learning rate and decay."""


def search_path(results: Path, arm: str) -> Path:
    """The sheet of an arm."""
    return results / END_SEARCH / f"{arm}.json"


def missing_settings(accuracies: dict[str, float]) -> list[Settings]:
    """What an arm's search runs next; nothing once it is whole."""
    first = [(peak, DECAY) for peak in PEAKS]
    if missing := [settings for settings in first if settings_key(settings) not in accuracies]:
        return missing
    peak, _ = best_settings(accuracies, first)
    second = [(peak, decay) for decay in DECAYS]
    return [settings for settings in second if settings_key(settings) not in accuracies]


def best_settings(accuracies: dict[str, float], among: list[Settings] | None = None) -> Settings:
    """The settings with the highest accuracy on held-out images, the first of equal ones."""
    known = among or [(float(p), float(d)) for p, d in (key.split() for key in accuracies)]
    return max(known, key=lambda settings: accuracies[settings_key(settings)])


def settings_key(settings: Settings) -> str:
    """The settings as the key of a run in a sheet."""
    return "{:g} {:g}".format(*settings)


def run_search(arm: str, data: Path, results: Path, report: ReportLine) -> None:
    """Run what the search of an arm lacks; every run is kept, and one that is stopped goes on."""
    with filling_alone(results / END_SEARCH):
        terms = {"epochs": SEARCH_EPOCHS, "held_out": HELD_OUT, "seed": SEED}
        sheet = open_sheet(search_path(results, arm), SCORED, arm=arm, **terms)
        while missing := missing_settings(sheet.scores):
            _run_settings(sheet, arm, missing[0], data, report)


def _run_settings(
    sheet: Sheet, arm: str, settings: Settings, data: Path, report: ReportLine
) -> None:
    key = settings_key(settings)
    folder = Path("runs") / END_SEARCH / f"{arm}-{key.replace(' ', '-')}"
    words = ["train", "--resume", f"{folder}"]
    if not folder.exists():
        words = ["train", f"cifar10-end-{arm}", "--budget", f"{EPOCHS[SEARCH_EPOCHS]}"]
        words += ["--lr", f"{settings[0]}", "--weight-decay", f"{settings[1]}"]
        words += ["--validation", f"{HELD_OUT}", "--seed", f"{SEED}", "--out", f"{folder}"]
        words += ["--threads", "1"]
    if not (folder / "summary.json").exists():
        with signals_noted() as stop:
            code = wait_for(start_process([*words, "--data", f"{data}"], None), stop)
        if code:
            raise RunError(f"nsim train ended with {code}; the same command goes on with {folder}")
    last, summary = read_lines(folder / "metrics.jsonl")[-1], read_facts(folder / "summary.json")
    accuracy = last["validation_accuracy"]
    facts = {"loss": last["validation_loss"], "score_precision": summary["score_precision"]}
    sheet.add(key, {"accuracy": accuracy} | facts)
    report(f"{arm}: rate {settings[0]:g}, decay {settings[1]:g}: {100 * accuracy:.2f} % held out")
