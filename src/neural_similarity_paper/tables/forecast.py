"""How long the training of lines takes, by the records of their recipes."""

from collections.abc import Iterable
from statistics import median

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.recipe import scale_recipe
from neural_similarity_paper.tables.missing import Line, Scope
from neural_similarity_paper.tables.records import budget_folders, read_record, record_files


def training_seconds(lines: Iterable[Line], scope: Scope, device: str) -> tuple[float, int]:
    """Seconds that runs train one after another, whole, and the number of runs without a forecast.

    An update takes the median of the recipe's records on CPUs where `device` is "cpu", else on
    GPUs: whatever their make, so that the forecast tells an evening from a week, no more.
    """
    known, unknown = 0.0, 0
    for line in lines:
        if line.commands[0][0] != "train":
            continue
        name = line.run.name
        folders = budget_folders(scope.results, name)
        records = [read_record(path) for folder in folders for path in record_files(folder, name)]
        paces = [
            record.training["seconds"] / record.training["steps"]
            for record in records
            if (record.environment["device"] == "cpu") == (device == "cpu")
        ]
        known += scale_recipe(RECIPES[name], scope.budget).steps * median(paces) if paces else 0.0
        unknown += not paces
    return known, unknown
