"""Evaluating few-shot runs: `evaluations/<what was evaluated>.json` in the run folder.

Every file holds the result of each task, so that methods are compared task by task.
"""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.lab.data import ClassSplit, Images
from neural_similarity.lab.errors import RunError, content_errors
from neural_similarity.lab.tasks.few_shot.evaluate import Course, evaluate_method, use_statistics
from neural_similarity.lab.tasks.few_shot.interface import Method, NormStatistics
from neural_similarity.lab.tasks.few_shot.partial import Partial
from neural_similarity.lab.tasks.few_shot.recipe import Classes
from neural_similarity.lab.tasks.few_shot.run import FewShotRun, load_method
from neural_similarity.lab.tasks.few_shot.tasks import TaskList, TaskSizes
from neural_similarity.lab.train import Runtime, choose_runtime, distributed
from neural_similarity.lab.train.files import (
    pack_correct,
    read_result,
    unpack_correct,
    write_result,
)
from neural_similarity.lab.train.peers import report_dead_processes
from neural_similarity.lab.train.progress import count_bar
from neural_similarity.lab.train.run import (
    checkpoint_facts,
    find_checkpoint,
    read_facts,
    require_finished,
    usual_checkpoint,
)
from neural_similarity.lab.train.runtime import SCORE_PRECISION, Precision, cpu_threads
from neural_similarity.lab.train.statistics import by_task
from neural_similarity.models import parameters

EVALUATIONS = "evaluations"
EVALUATION_NAME = re.compile(
    r"[\w+-]+\.train(\+val)?\.\d+w\d+s\d+q\.\w+-\d+--?\d+\.\w+\.-?\d+", re.ASCII
)
"""Names that `evaluation_name` makes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The result of one run's method on a list of tasks."""

    method: str
    statistics: str
    """The statistics that normalised queries."""
    sizes: TaskSizes
    tasks: dict[str, Any]
    """Number, seed, part and digest of the tasks."""
    checkpoint: dict[str, Any]
    """Whether it is "last" or "best", its step, and SHA-256 of its weights (not in older files)."""
    summary: dict[str, Any]
    """Accuracy, half-width of its interval (as `reach`), parameters, seconds, and, but for older
    files, the precision of the scores."""
    correct: Tensor
    """Correct queries of each task; int64 (tasks,)."""

    @property
    def accuracies(self) -> Tensor:
        """Share of correct queries in each task; float64 (tasks,)."""
        return self.correct.double() / len(self.sizes.query_labels)

    def file_name(self, train_on: Classes, seed: int) -> str:
        return evaluation_name(
            (self.method, train_on, self.statistics, seed), self.sizes, self.tasks
        )

    def to_json(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["sizes"] = dataclasses.asdict(self.sizes)
        return fields | {"correct": pack_correct(self.correct)}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Evaluation":
        """The evaluation in the content of a file, which may hold other fields."""
        fields = {f.name: content[f.name] for f in dataclasses.fields(Evaluation)}
        fields["sizes"] = TaskSizes(**fields["sizes"])
        fields["correct"] = unpack_correct(fields["correct"])
        evaluation = Evaluation(**fields)
        mean = by_task(evaluation.accuracies).mean
        if mean != evaluation.summary["accuracy"]:
            raise ValueError(f"its tasks say {mean}, its summary {evaluation.summary}")
        return evaluation


def evaluation_name(
    of: tuple[str, Classes, str, int], sizes: TaskSizes, tasks: dict[str, Any]
) -> str:
    """The name of an evaluation, which no other one of its recipe and budget has.

    `of` is the method, the training classes, the statistics and the training seed. With the sizes,
    part, number and seed of the tasks, a name is
    `fine-tuning.train.5w5s15q.test-2000-0.running.1`.
    """
    method, train_on, statistics, seed = of
    shape = f"{sizes.ways}w{sizes.shots}s{sizes.queries}q"
    which = f"{tasks['part']}-{tasks['count']}-{tasks['seed']}"
    return f"{method}.{train_on}.{shape}.{which}.{statistics}.{seed}"


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates finished runs, each into its folder."""

    method: str | None = None
    """Name of the method; None is what a run was trained for."""
    statistics: NormStatistics | None = None
    """The statistics that normalise queries; None is the method's own."""
    device: str = "auto"
    precision: Precision = SCORE_PRECISION

    def __call__(
        self, run: FewShotRun, split: ClassSplit, tasks: TaskList
    ) -> tuple[Evaluation, Path]:
        """Evaluate `run` on `tasks` of its data set `split`, from where it was interrupted.

        Returns:
            The evaluation and its file.

        Raises:
            RunError: the run is not finished, or its network was trained for another method, or on
                the classes of the tasks, or its folder has an evaluation on other tasks of the same
                number and seed.
            ValueError: the tasks are of other data, or there is no such method.
        """
        _require_suited(run, tasks)
        images = split.images_of_part(tasks.part)
        tasks.check_data(run.digest, tasks.part, images)
        runtime = choose_runtime(self.device, self.precision, run.recipe.channels_last)
        distributed.join_processes(runtime.device)
        with report_dead_processes(), cpu_threads(run.recipe.threads):
            return self._evaluate_run(run, images, tasks, runtime)

    def _evaluate_run(
        self, run: FewShotRun, images: Images, tasks: TaskList, runtime: Runtime
    ) -> tuple[Evaluation, Path]:
        name = self.method or run.recipe.method
        method = use_statistics(load_method(run, usual_checkpoint(run), name), self.statistics)
        runtime.place_model(method)
        file = _evaluation_file(run, name, method, tasks)
        partial = _partial_results(run, file, tasks, runtime)
        distributed.wait_for_all()  # Until every process has read the earlier results.
        with count_bar("tasks") as count:

            def keep(results: Tensor) -> None:
                if distributed.is_first():
                    partial.save_results(results)
                    count(len(results), len(tasks))

            course = Course(done=partial.done, progress=keep)
            correct = evaluate_method(
                method, images, tasks, preprocess=run.preprocess, runtime=runtime, course=course
            )
        facts = {"seconds": partial.spent_seconds, "score_precision": runtime.precision}
        evaluation = _make_evaluation(run, (name, method), tasks, correct, facts)
        if distributed.is_first():
            write_result(file, evaluation.to_json())
            partial.remove_file()
        return evaluation, file


def read_evaluations(run: FewShotRun) -> list[Evaluation]:
    """All evaluations in a run's folder, in the order of their names."""
    return [read_evaluation(path) for path in evaluation_files(run.path)]


def evaluation_files(run: Path) -> list[Path]:
    """The files of the evaluations in a run folder, in the order of their names."""
    return [path for path in sorted((run / EVALUATIONS).glob("*.json")) if is_evaluation(path)]


def scored_texts(run: FewShotRun) -> dict[str, str]:
    """The accuracy of every evaluation of a run, by the names of their files."""
    texts = {}
    for file in evaluation_files(run.path):
        with content_errors(file):
            scores = read_facts(file, within=run.path)["summary"]
            texts[file.stem] = f"{100 * scores['accuracy']:.2f} ± {100 * scores['reach']:.2f} %"
    return texts


def is_evaluation(path: Path) -> bool:
    """Whether a file is named by `evaluation_name`; files with other names are the user's."""
    return EVALUATION_NAME.fullmatch(path.stem) is not None


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in a file."""
    return read_result(path, "an evaluation", Evaluation.from_json)


def _make_evaluation(
    run: FewShotRun,
    named: tuple[str, Method],
    tasks: TaskList,
    correct: Tensor,
    facts: dict[str, Any],
) -> Evaluation:
    name, method = named
    right = by_task(correct.double() / len(tasks.sizes.query_labels))
    return Evaluation(
        method=name,
        statistics=method.statistics,
        sizes=tasks.sizes,
        tasks=_task_facts(tasks),
        checkpoint=checkpoint_facts(run, usual_checkpoint(run)),
        summary={
            "accuracy": right.mean,
            "reach": right.half_width,
            "parameters": parameters(method),
            **facts,
        },
        correct=correct,
    )


def _task_facts(tasks: TaskList) -> dict[str, Any]:
    return {"count": len(tasks), "seed": tasks.seed, "part": tasks.part, "digest": tasks.digest}


def _evaluation_file(run: FewShotRun, name: str, method: Method, tasks: TaskList) -> Path:
    of = (name, run.recipe.train_on, method.statistics, run.recipe.seed)
    name = evaluation_name(of, tasks.sizes, _task_facts(tasks))
    return run.path / EVALUATIONS / f"{name}.json"


def _require_suited(run: FewShotRun, tasks: TaskList) -> None:
    """Check that a run is finished and was not trained on the classes of the tasks."""
    require_finished(run)
    if tasks.part == "val" and run.recipe.train_on == "train+val":
        raise RunError(f"{run.path} was trained on the validation classes; --part must be test")


def _partial_results(run: FewShotRun, file: Path, tasks: TaskList, runtime: Runtime) -> Partial:
    """The results of an interrupted evaluation of that file, whose tasks are not repeated."""
    if file.exists() and read_evaluation(file).tasks["digest"] != tasks.digest:
        raise RunError(
            f"{file} exists already, for other tasks of the same number and seed; move it away"
        )
    checkpoint = find_checkpoint(run, usual_checkpoint(run)).name
    what = {"tasks": tasks.digest, "checkpoint": checkpoint, "precision": runtime.precision}
    return Partial(file.with_suffix(".partial"), what)
