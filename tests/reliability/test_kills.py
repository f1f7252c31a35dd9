"""Work that is killed at any moment and done again ends as if nothing had happened."""

import json
import os
import random
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
import torch
from reliability.children import ended, killed, started
from reliability.counts import record
from tiny_classes import BY_NAMES, BY_TASKS, use_tiny_classes
from tiny_folders import write_folders
from tiny_images import TINY, use_tiny_images
from tiny_results import timeless
from tiny_results import tiny_table as tiny_table

from neural_similarity.files import write_text
from neural_similarity.lab import cli, session
from neural_similarity.lab.data import lay_out
from neural_similarity.lab.data.listing import list_images
from neural_similarity.lab.paper import running
from neural_similarity.lab.tasks.few_shot import partial
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluator
from neural_similarity.lab.tasks.few_shot.tasks import draw_tasks
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.ops.native import compiling

KILLS = int(os.environ.get("RELIABILITY_KILLS", "100"))
TIMES = "seconds", "images_per_second"
STEPS = {"steps": 14, "drops": (6, 11), "log_every": 4, "checkpoint_every": 3, "evaluate_every": 5}


def train(recipe, folder):
    """Begin the run, or go on with it."""
    if (folder / "run").exists():
        return session.resume(folder / "run", device="cpu")
    return session.train(recipe, out=folder / "run", device="cpu")


def trained(folder):
    """Weights, metrics without times, and what is in the folder."""
    run = session.open_run(folder / "run")
    assert run.summary.exists()
    lines = [{k: v for k, v in line.items() if k not in TIMES} for line in read_lines(run.metrics)]
    weights = [session.load(run, which).state_dict() for which in ("last", "best")]
    numbers = [tensor.tolist() for state in weights for tensor in state.values()]
    return numbers, lines, sorted(path.name for path in run.path.rglob("*"))


class Training:
    """Of a network to name classes."""

    recipe = replace(TINY, validation=16, **STEPS)

    def __init__(self, folder):
        self.folder = folder

    def work(self):
        train(self.recipe, self.folder)

    def outcome(self):
        return trained(self.folder)


class FewShotTraining(Training):
    recipe = replace(BY_TASKS, **STEPS)


class Evaluation(Training):
    """On tasks of classes that a network never saw, of a run that is there."""

    recipe = replace(BY_NAMES, select_on="none")

    def __init__(self, folder):
        super().__init__(folder)
        whole = folder.with_name("whole") / "run"
        if whole.exists():
            shutil.copytree(whole, folder / "run", ignore=shutil.ignore_patterns("evaluations"))
        self.run = train(self.recipe, folder)
        self.split = session.load_task(self.run).split
        sizes = replace(self.run.recipe.select_sizes, ways=3)
        self.tasks = draw_tasks(
            self.split.test, sizes, 20, seed=0, data=self.split.digest, part="test"
        )

    def work(self):
        Evaluator(method="static-nsn", device="cpu")(self.run, self.split, self.tasks)

    def outcome(self):
        found, _ = Evaluator(method="static-nsn", device="cpu")(self.run, self.split, self.tasks)
        files = sorted(path.name for path in (self.run.path / "evaluations").iterdir())
        return found.correct.tolist(), files


class Preparation(Training):
    """Of a data set from lists and images."""

    def __init__(self, folder):
        self.folder = folder
        source = folder / "source"
        write_folders(source / "images", {"a": [f"c{i}" for i in range(12)]}, each=6)
        rows = (f"a/c{i}/{j}.png,c{i}\n" for i in range(12) for j in range(6))
        (source / "all.csv").write_text("filename,label\n" + "".join(rows))

    def work(self):
        if not (self.folder / "made" / "val").is_dir():
            lay_out(self.folder / "source", self.folder / "made", held_out=2)

    def outcome(self):
        names = sorted(path.name for path in (self.folder / "made").glob("[!.]*"))
        return names, [list_images(self.folder / "made" / part).members for part in names]


class Compilation(Training):
    """Into the cache; the compiler copies what was compiled before."""

    def __init__(self, folder):
        self.folder, self.cache = folder, folder / "neural_similarity"
        library = compiling.library()
        assert not isinstance(library, str)
        compiler = folder / "compiler"
        compiler.write_text(
            f'#!/bin/sh\nfor word; do test "$last" = -o && cp {library._name} "$word"\n'
            "last=$word; done\n"
        )
        compiler.chmod(0o700)

    def work(self):
        os.environ["XDG_CACHE_HOME"] = str(self.folder)
        made = compiling._built([str(self.folder / "compiler")])
        assert not isinstance(made, str), made

    def outcome(self):
        assert ended(started(self.work)) == 0
        return [path.suffix for path in self.cache.iterdir() if path.is_file()]


class Process:
    """Of a table: as `running.start_process` starts it, but for the import of torch.

    It takes part in the group of its plan.
    """

    def __init__(self, number):
        self.number, self.code = number, None

    def poll(self):
        if self.code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if number else None
        return self.code

    def wait(self, timeout=None):
        end = time.monotonic() + (timeout or 600)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("nsim", timeout)
            time.sleep(0.01)
        return self.code

    def send_signal(self, sig, /):
        os.kill(self.number, sig)


class Reproduction(Training):
    """Of a table of four runs, two at a time."""

    def __init__(self, folder):
        self.folder = folder

    def records(self):
        return sorted((self.folder / "results").rglob("[!.]*.json"))

    def launch(self, words, _output):
        number = os.fork()
        if not number:
            os._exit(cli.main(list(words)))
        return Process(number)

    def work(self):
        """Go on with the plan, also while processes live on whose plan was killed."""
        self.keep()
        folders = [w for f in ("results", "runs") for w in (f"--{f}", str(self.folder / f))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running, "start_process", self.launch)
            patch.setattr(running, "POLL_SECONDS", 0.02)
            for _ in range(100):
                if cli.main(["reproduce", "tiny", *folders, "--seeds", "1,2", "--jobs", "2"]) == 0:
                    return
                time.sleep(0.1)
        raise AssertionError("the plan was not done in 100 calls")

    def keep(self):
        """Copy the records that are there, and see that none has changed or gone since."""
        copies = self.folder / "copies"
        copies.mkdir(exist_ok=True)
        texts = {f"{p.parts[-3]}-{p.name}": p.read_text() for p in self.records()}
        for copy in copies.glob("[!.]*"):
            assert texts[copy.name] == copy.read_text()
        for name, text in texts.items():
            json.loads(text)
            write_text(copies / name, text)

    def outcome(self):
        self.keep()
        return [timeless(path) for path in self.records()]


WORKS = {
    "training": Training,
    "few-shot training": FewShotTraining,
    "few-shot evaluation": Evaluation,
    "reproduction": Reproduction,
    "data preparation": Preparation,
    "compilation": Compilation,
}


def new(folder):
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    use_tiny_images(monkeypatch)
    use_tiny_classes(monkeypatch)
    monkeypatch.setattr(partial, "SAVE_SECONDS", 0.0)
    # What a killed process leaves is not in the way of another.
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_table")
@pytest.mark.parametrize("name", WORKS)
def test_killed_at_any_moment_it_ends_as_if_never_stopped(tmp_path, name):
    chance = random.Random(name)
    whole = WORKS[name](new(tmp_path / "whole"))
    began = time.monotonic()
    whole.work() if name != "compilation" else ended(started(whole.work))
    longest = 1.2 * (time.monotonic() - began)
    expected, kills, other = whole.outcome(), 0, 0
    while kills < KILLS:
        again = WORKS[name](new(tmp_path / "again"))
        for attempt in range(chance.randrange(1, 6)):
            seconds, began = chance.uniform(0, longest), time.monotonic()
            if not killed(again.work, seconds, alone=chance.random() < 0.5):
                if not attempt:
                    longest = 1.2 * (time.monotonic() - began)
                break
            kills += 1
        assert ended(started(again.work)) == 0
        other += again.outcome() != expected
        shutil.rmtree(again.folder)
    record(f"kills in {name}", tried=kills, errors=other)
    assert not other
