"""How long runs will take, by the records of machines like this one."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median

from neural_similarity.lab.train import choose_runtime
from neural_similarity.lab.train.environment import cpu_name, device_name
from neural_similarity.lab.train.runtime import PrecisionChoice
from neural_similarity_paper.tables.missing import THREADS, Line
from neural_similarity_paper.tables.records import budget_folders, read_record, record_files


def training_seconds(
    lines: Iterable[Line], results: Path, precision: PrecisionChoice
) -> tuple[float, int]:
    """Seconds of training that lines take in one process, and the number of lines without records.

    A step takes the median of the recipe's records on such a machine, at any budget.
    """
    runtime = choose_runtime(precision=precision, thread_count=THREADS)
    device = {"cpu": cpu_name(), "device": device_name(runtime.device)}
    here = device | {"threads": THREADS, "precision": runtime.precision}
    known, unknown = 0.0, 0
    for line in lines:
        name = line.run.name
        folders = budget_folders(results, name) if line.steps else ()
        records = (read_record(path) for folder in folders for path in record_files(folder, name))
        alike = [
            record.training for record in records if record.environment.items() >= here.items()
        ]
        paces = [training["seconds"] / training["steps"] for training in alike]
        known += line.steps * median(paces) if paces else 0.0
        unknown += bool(line.steps and not paces)
    return known, unknown
