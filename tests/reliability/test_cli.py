"""Random command lines of `nsim`, in this process: each ends with a code and its own words."""

import collections
import os
import random
import shutil
import signal
import traceback

import pytest
from PIL import Image
from reliability.counts import record
from reliability.test_api import bounded as bounded
from tiny_classes import BY_NAMES
from tiny_classes import tiny_classes as tiny_classes
from tiny_images import tiny as tiny
from tiny_images import train_tiny

from neural_similarity.lab import cli, session
from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.few_shot import scoring

CALLS = int(os.environ.get("RELIABILITY_CALLS", "500"))
VALUES = [
    "", " ", "0", "1", "-1", "2", "0.5", "nan", "inf", "1e300", "1e-300", "-1e300", "9" * 30,
    "99999999999999", "100000", "1" * 5000, "true", "None", "none", "x", "../x", "/dev/null",
    "/dev/zero", "/", "\x00", "\x1b[31m", "\ud800", "é", "*", "--", "static-full", "auto", "cpu",
    "cuda", "meta", "Static({[]:1})", "Static(Diagonal())", "Static(Static(Full()))", "Full()",
    "Dynamic(Diagonal(), predictor=SphereNet(hidden=10**9))", "Dynamic(Diagonal(),", "(" * 500,
    "Dynamic(Diagonal(), predictor=SphereNet(hidden=1000000000000))", "Static(Shift(-1))",
    "Static(Masked(1))", "Static(Sparse(nan))", "Static(Unshared(0))", "Static(*[1])", "1,2", "1,1",
    "RUN", "RUN/config.json", "SHOTS", "FOLDER", "MISSING", "IMAGE", "DAMAGED", "onnx", "pt2",
    "static-nsn", "maml", "2**70", "cifar10-cnn*", "1e308",
]  # fmt: skip
OPTIONS = {
    "train": (
        "width", "lr", "steps", "seed", "similarity", "batch-size", "crop", "drops", "precision",
        "threads", "budget", "validation", "data", "device", "resume", "retrain", "dataset",
        "model", "variant", "image-size", "checkpoint-seconds", "log-every", "penalty", "config",
        "track", "workers", "optimizer", "start", "momentum", "norm-eps", "label-smoothing",
    ),
    "evaluate": (
        "checkpoint", "data", "device", "processes", "ways", "tasks", "task-list", "shots",
        "queries", "task-seed", "method", "part", "batch-norm",
    ),
    "predict": ("checkpoint", "device"),
    "export": ("format", "fold", "checkpoint", "out", "data"),
    "inspect": ("out", "images", "data"),
    "report": ("out",),
    "reproduce": (
        "seeds", "jobs", "budget", "results", "runs", "only", "variant", "shots", "tasks",
        "processes", "precision", "device", "stage",
    ),
    "table": ("results", "budget", "out", "costs", "variant"),
    "record": ("results",),
    "models": ("similarity",),
    "data": ("data", "source"),
    "theory": ("seeds", "out"),
}  # fmt: skip
WORDS = [
    "quickstart", "fewshot-quickstart", "RUN", "RUN", "SHOTS", "SHOTS", "IMAGE", "4", "6",
    "embedded", "cnn9", "--help",
]  # fmt: skip


def command_line(chance, places):
    """Mostly a command with an argument it may have, and options with odd values."""
    command = chance.choice([*OPTIONS, *OPTIONS, *COMMANDS, chance.choice(VALUES)])
    words = [command, *chance.choices(WORDS, k=chance.choice([0, 1, 1, 2]))]
    for option in chance.choices(OPTIONS.get(command, ("out",)), k=chance.choice([0, 1, 1, 2, 3])):
        words += [f"--{option}", chance.choice(VALUES)]
    if command in ("export", "inspect", "report", "train"):
        words += ["--out", str(places["OUT"])]
    if command == "reproduce":
        words += ["--runs", str(places["OUT"]), "--print"]
    if command == "models":  # All of them take a minute.
        words += ["cnn9"]
    words = [str(places.get(word, word)) for word in words]
    return [word.replace("RUN", str(places["RUN"])) for word in words]


def enough(*_, **__):
    """In place of steps: what comes before them is tried."""
    raise RunError("enough")


def hangs(*_):
    raise AssertionError("it takes three minutes")


@pytest.mark.slow
@pytest.mark.usefixtures("tiny", "tiny_classes", "bounded")
def test_random_command_lines(tmp_path, monkeypatch, capsys):
    run = train_tiny(tmp_path).path
    shots = session.train(BY_NAMES, out=tmp_path / "shots", device="cpu").path
    image = tmp_path / "image.png"
    Image.new("L", (8, 8)).save(image)
    names = {"RUN": run, "SHOTS": shots, "IMAGE": image, "DAMAGED": tmp_path / "damaged.png"}
    names |= {"FOLDER": tmp_path / "folder", "MISSING": tmp_path / "no"}
    names["DAMAGED"].write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    names["FOLDER"].mkdir()
    monkeypatch.chdir(names["FOLDER"])
    signal.signal(signal.SIGALRM, hangs)
    monkeypatch.setattr(session, "fit", enough)
    monkeypatch.setitem(scoring.USUAL, "tasks", 4)
    chance, outcomes, deep = random.Random(2019), collections.Counter(), {}
    for number in range(CALLS):
        out = tmp_path / f"out{number}"
        words = command_line(chance, names | {"OUT": out})
        signal.alarm(180)
        try:
            outcomes[cli.main(words)] += 1
        except Exception as error:
            error = error.__cause__ or error
            frames = traceback.extract_tb(error.__traceback__)
            where = [f"{f.filename.split('/')[-1]}:{f.lineno}" for f in frames[-3:]]
            deep[f"{words!r:.200}: {error!r:.120} at {' < '.join(where[::-1])}"] = error
        signal.alarm(0)
        shutil.rmtree(out, ignore_errors=True)
        assert "Traceback" not in capsys.readouterr().err
    record("calls of the CLI", tried=CALLS, refused=outcomes[1] + outcomes[2], errors=len(deep))
    assert set(outcomes) <= {0, 1, 2}
    assert not deep, "\n".join(deep)
