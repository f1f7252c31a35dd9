"""Evaluating few-shot runs."""

from pathlib import Path

from torch import Tensor

from neural_similarity.lab.data import ClassSplit
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.paper.few_shot_records import (
    EVALUATIONS,
    Evaluation,
    evaluation_name,
    facts_of,
    make_evaluation,
    read_evaluation,
    write_evaluation,
)
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate, use_statistics
from neural_similarity.lab.tasks.few_shot.method import Statistics
from neural_similarity.lab.tasks.few_shot.partial import Partial
from neural_similarity.lab.tasks.few_shot.run import FewShotRun, load_method, usual_checkpoint
from neural_similarity.lab.tasks.few_shot.tasks import TaskList
from neural_similarity.lab.train import RunError, Runtime, choose_runtime
from neural_similarity.lab.train.run import find_checkpoint, require_finished
from neural_similarity.lab.train.runtime import threads


def evaluate_run(
    run: FewShotRun,
    split: ClassSplit,
    tasks: TaskList,
    *,
    method: str | None = None,
    statistics: Statistics | None = None,
    device: str = "auto",
    processes: int = 1,
    progress: Progress | None = None,
) -> tuple[Evaluation, Path]:
    """Evaluate a finished run into its folder, from where an interrupted evaluation stopped.

    Args:
        run: a finished run.
        split: the data set that it was trained on.
        tasks: of one of the parts of the data set.
        method: its name; None is what the run was trained for.
        statistics: what normalises queries; None is the method's own.
        device: "auto", "cpu" or "cuda".
        processes: how many compute and share the threads, see `evaluate`.
        progress: told how many tasks are done, of how many.

    Returns:
        The evaluation and its file.

    Raises:
        RunError: the run is not finished, or its network was trained for another method, or on the
            classes of the tasks, or its folder has an evaluation of as many other tasks of the same
            seed, or a process ended.
        ValueError: the tasks are of other data, there is no such method, or there are several
            processes for a GPU.
    """
    _require_suited(run, tasks)
    images = split.part(tasks.part)
    tasks.check(run.digest, tasks.part, images)
    runtime = choose_runtime(device, run.precision, run.recipe.channels_last)
    checkpoint, name = usual_checkpoint(run), method or run.recipe.method
    module = use_statistics(load_method(run, checkpoint, name), statistics)
    runtime.place(module)
    of = name, run.recipe.train_on, module.statistics, run.recipe.seed
    partial = _partial(run, evaluation_name(*of, tasks.sizes, facts_of(tasks)), tasks, runtime)

    def keep(correct: Tensor) -> None:
        partial.save(correct)
        if progress:
            progress(len(correct), len(tasks))

    with threads(run.recipe.threads):
        correct = evaluate(
            module,
            images,
            tasks,
            preprocess=run.preprocess,
            runtime=runtime,
            done=partial.done,
            progress=keep,
            processes=processes,
        )
    evaluation = make_evaluation(
        run, (name, module), tasks, correct, checkpoint=checkpoint, seconds=partial.spent
    )
    path = write_evaluation(run.path / EVALUATIONS, evaluation)
    partial.remove()
    return evaluation, path


def _require_suited(run: FewShotRun, tasks: TaskList) -> None:
    """Refuse a run that is not finished, and tasks of classes that it was trained on."""
    require_finished(run)
    if tasks.part == "val" and run.recipe.train_on == "train+val":
        raise RunError(f"{run.path} was trained on the validation classes; --part must be test")


def _partial(run: FewShotRun, name: str, tasks: TaskList, runtime: Runtime) -> Partial:
    """What an interrupted evaluation of that name had found; none of its tasks is done twice."""
    checkpoint = find_checkpoint(run, usual_checkpoint(run)).name
    what = {"tasks": tasks.digest, "checkpoint": checkpoint, "precision": runtime.precision}
    _require_same_tasks(run.path / EVALUATIONS / f"{name}.json", tasks)
    return Partial(run.path / EVALUATIONS / f"{name}.partial", what)


def _require_same_tasks(path: Path, tasks: TaskList) -> None:
    """Refuse to replace an evaluation of other tasks."""
    if path.exists() and read_evaluation(path).tasks["digest"] != tasks.digest:
        raise RunError(
            f"{path} exists already, of other tasks with the same number and seed; move it away"
        )
