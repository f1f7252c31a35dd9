"""Short work of every kind that writes files: what is there before, what is done, what comes of it.

A work may be begun again after it was cut short; it then ends as if nothing had happened.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from launches import launched_here
from PIL import Image
from safetensors.torch import load_file
from tiny_classes import BY_NAMES
from tiny_folders import write_folders
from tiny_images import DRAW, make_images
from tiny_results import STATIC, TINY_RECIPES, timeless

import neural_similarity as ns
from neural_similarity.files import new_file
from neural_similarity.lab import cli, session
from neural_similarity.lab.train import pack_correct
from neural_similarity.ops.native import compiling
from neural_similarity_paper.cli import studies
from neural_similarity_paper.studies.adapt_unlabelled import KNOWN_CHANGES

UNREAD = {"state.pt", "manifest.json", "environment.json", "network.pt2"}
"""Files whose bytes hold times or names of folders; that they are there is compared."""
COMMON = (
    " --width 0.05 --steps 3 --drops 2 --batch-size 8 --evaluate-every 2 --crop 1 --log-every 1"
    " --checkpoint-every 1 --precision fp32 --device cpu"
)
SHORT = COMMON + " --similarity static-diagonal"
EPISODES = COMMON + " --ways 2 --shots 2 --queries 3 --select-ways 2 --select-tasks 4"


@dataclass(frozen=True)
class Work:
    """Work on the files of a folder, which is also the current one.

    Attributes:
        command: the command of `nsim`, or the public name, whose work it is.
        words: the words of its command line, or a function of no arguments.
        needs: names of `SOURCES` that the folder holds before.
        again: words of what goes on with a run that is there, `run`, instead.
        once: whether it refuses to do again what is done.
    """

    command: str
    words: str | Callable[[], None]
    needs: tuple[str, ...] = ()
    again: str | None = None
    once: bool = False

    def __call__(self):
        """Do it, or go on with it; the exit code."""
        if callable(self.words):
            return cli.exit_code(lambda: self.words() or 0)
        words = self.again if self.again and Path("run").exists() else self.words
        return cli.main(words.split())


def image_folder(folder):
    """Of more images of each class than `nsim data` holds out for validation."""
    write_folders(folder / "source" / "images", {"a": ["c0", "c1"]}, each=102)
    rows = (f"a/c{i}/{j}.png,c{i}\n" for i in range(2) for j in range(102))
    (folder / "source" / "all.csv").write_text("filename,label\n" + "".join(rows))


def one_image(folder):
    Image.fromarray(make_images(1, 0).pixels[0, 0].numpy()).save(folder / "image.png")


def fake_compiler(folder):
    """It copies the library that was compiled before, and takes its time."""
    library = compiling.load_library()
    assert not isinstance(library, str)
    (folder / "compiler").write_text(
        f'#!/bin/sh\nsleep 0.1\nfor word; do test "$last" = -o && cp {library._name} "$word"\n'
        "last=$word; done\n"
    )
    (folder / "compiler").chmod(0o700)


SOURCES = {
    "adapter": lambda folder: ns.save_adapter(
        ns.freeze_backbone(network(), train=()), folder / "adapter"
    ),
    "compiler": fake_compiler,
    "run": lambda folder: session.train(
        TINY_RECIPES[STATIC], name=STATIC, out=folder / "run", device="cpu"
    ),
    "shots": lambda folder: session.train(BY_NAMES, out=folder / "shots", device="cpu"),
    "source": image_folder,
    "image": one_image,
}


def backbone():
    """A small network, the same at every call."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))


def network():
    """It, converted, whose M is not the identity."""
    model = ns.convert(backbone(), "static-diagonal")
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if "similarity" in n):
            parameter.add_(0.1)
    return model


def save_adapter():
    ns.save_adapter(network(), "adapters/one.safetensors")


def save_from_peft():
    ns.peft.export_adapter(ns.peft.import_adapter(backbone(), "adapter"), "new/adapter")


def write_picture(_model, _x, folder):
    """In place of `visualize.draw`, which takes longer than a training: the work *visualize*."""
    with new_file(Path(folder) / "similarities.png") as file:
        file.write(b"a picture")
    return [Path(folder) / "similarities.png"]


def draw():
    DRAW(network(), torch.zeros(1, 1, 8, 8), "pictures")


def reproduce():
    words = f"reproduce tiny --only {STATIC} --runs runs --results results --seeds 1 --device cpu"
    with launched_here():  # so that all writes are counted in this process
        return cli.main(words.split())


def reproduce_study():
    """A study of three runs, each of which its file keeps."""

    def run_trial(trial, **_):
        right = torch.arange(16) < 4 * len(trial.way)
        scores = {"accuracy": 0.5, "score_precision": "fp32"}
        return scores | {"trained": 0, "correct": pack_correct(right)}

    study = replace(KNOWN_CHANGES, cells=KNOWN_CHANGES.cells[:1], run_trial=run_trial)
    with patch.dict(studies.STUDIES, {study.name: study}):
        return cli.main(f"reproduce {study.name} --data . --results results".split())


def compile_operators():
    compiler, cache = Path("compiler").absolute(), Path("cache").absolute()
    with patch.dict(os.environ, XDG_CACHE_HOME=str(cache)):
        made = compiling._build_library([str(compiler)])
    if isinstance(made, str):
        raise OSError(made)


WORKS = {
    "classification": Work(
        "train",
        "train quickstart --out run --validation 16" + SHORT,
        (),
        "train --resume run --device cpu",
    ),
    "few-shot": Work(
        "train",
        "train fewshot-quickstart --out run --select-on val" + EPISODES,
        (),
        "train --resume run --device cpu",
    ),
    "adaptation": Work(
        "train",
        "train adapt --backbone start --dataset embedded --out run --train M+norm --device cpu "
        "--steps 3 --drops 2 --batch-size 8 --log-every 1 --checkpoint-every 1 --precision fp32",
        ("run",),
        "train --resume run --device cpu",
    ),
    "evaluation on tasks": Work(
        "evaluate", "evaluate shots --tasks 6 --ways 2 --shots 1 --queries 3 --device cpu",
        ("shots",),
    ),
    "export to safetensors": Work("export", "export run --format safetensors --fold", ("run",)),
    "export to a new folder": Work(
        "export", "export run --format safetensors --out new/folder/m.safetensors", ("run",)
    ),
    "export to pt2": Work("export", "export run --format pt2 --device cpu", ("run",)),
    "inspect": Work("inspect", "inspect run --out pictures", ("run",)),
    "report": Work("report", "report run --out new/page.html", ("run",)),
    "record": Work("record", "record run --results results", ("run",)),
    "reproduce": Work("reproduce", reproduce),
    "reproduce a study": Work("reproduce", reproduce_study),
    "table": Work("table", "table tiny --results results --out new/table.md --budget 1"),
    "table of a study": Work("table", "table adapt-known --results results --out new/known.md"),
    "theory": Work("theory", "theory euler --seeds 3 --out new"),
    "data": Work("data", "data imagenet --source source --data made", ("source",), once=True),
    "compilation": Work("C operators", compile_operators, ("compiler",)),
    "save_adapter": Work("save_adapter", save_adapter),
    "peft adapter": Work("peft", save_from_peft, ("adapter",)),
    "visualize": Work("draw", draw),
    "hub network": Work(
        "hub",
        lambda: ns.hub.Network("cnn9", 2, "static-full", width=0.05).save_pretrained("hub"),
    ),
    "hub adapter": Work("hub", lambda: ns.hub.Adapted(network()).save_pretrained("hub")),
}  # fmt: skip
READING = {
    "predict": Work("predict", "predict run image.png --device cpu", ("run", "image")),
    "evaluate": Work("evaluate", "evaluate run --device cpu", ("run",)),
    "recipes": Work("recipes", "recipes"),
    "models": Work("models", "models cnn9"),
    "completion": Work("completion", "completion bash"),
    "table on the terminal": Work("table", "table tiny --results results --budget 1"),
    "help": Work("train", "train --help"),
}
"""Work that writes no file."""


def prepare(work, folder, known):
    """Make what the folder holds before, from `known`, where every source is made once."""
    folder.mkdir()
    for name in work.needs:
        source = known / name
        if not source.exists():
            source.mkdir(parents=True)
            SOURCES[name](source)
        shutil.copytree(source, folder, dirs_exist_ok=True)
    if "--backbone start" in str(work.words):
        (folder / "run").rename(folder / "start")


def outcome(folder):
    """Names of all files and folders, hidden ones included, and what of the files is the same."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = "folder"
        elif path.name in UNREAD:
            found[name] = "unread"
        elif path.suffix == ".safetensors":
            found[name] = {key: tensor.tolist() for key, tensor in load_file(path).items()}
        elif path.suffix == ".json":
            found[name] = timeless(path)
        elif path.suffix == ".jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.read_bytes()
    return found
