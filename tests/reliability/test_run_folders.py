"""Run folders that were forged: every command that reads one says what is wrong with it."""

import collections
import json
import os
import random
import shutil
import traceback

import pytest
import torch
from forgeries import BYTES, forged_json
from PIL import Image
from reliability.calls import bounded as bounded
from reliability.counts import record
from tiny_images import TINY, train_tiny
from tiny_images import tiny as tiny

from neural_similarity.lab import cli
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train import checkpoint
from neural_similarity.lab.train.journal import Journal

FOLDERS = int(os.environ.get("RELIABILITY_CALLS", "300"))
COMMANDS = ["train --resume RUN", "evaluate RUN", "predict RUN IMAGE", "record RUN"]


def few_steps(_journal, step):
    """A run that says it has 10³⁰ steps is ended."""
    if step > 2 * TINY.steps:
        raise RunError("enough")


def forge(chance, folder):
    """Change one file of a run; checkpoints get seals that fit."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png"]
    file = chance.choice(sorted(files))
    if file.suffix in (".json", ".jsonl"):
        file.write_bytes(chance.choice([*forged_json(file)]))
    elif chance.random() < 0.2:
        file.write_bytes(chance.choice(BYTES))
    elif file.suffix == ".pt":
        state = torch.load(file)
        key = chance.choice(list(state))
        state[key] = chance.choice([None, "x", -1, torch.zeros(3), {}, {"state": {}}, [1], 2**70])
        torch.save(state, file)
    else:
        content = bytearray(file.read_bytes())
        content[chance.randrange(min(len(content), 400))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
    if file.name in (checkpoint.WEIGHTS, checkpoint.STATE):
        names = (checkpoint.WEIGHTS, checkpoint.STATE)
        seals = {n: checkpoint._seal_of(file.parent / n) for n in names}
        (file.parent / checkpoint.MANIFEST).write_text(json.dumps(seals))
    return file.name


@pytest.mark.slow
@pytest.mark.usefixtures("tiny", "bounded")
def test_forged_run_folders(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    whole = train_tiny(tmp_path, validation=16, checkpoint_every=3, evaluate_every=3).path
    image = tmp_path / "image.png"
    Image.new("L", (8, 8)).save(image)
    monkeypatch.setattr(Journal, "show_step", few_steps)
    chance, deep, outcomes = random.Random(2019), {}, collections.Counter()
    for number in range(FOLDERS):
        folder = tmp_path / f"forged{number}"
        shutil.copytree(whole, folder)
        if chance.random() < 0.5:
            (folder / "summary.json").unlink()
        name = forge(chance, folder)
        for command in COMMANDS:
            places = {"RUN": str(folder), "IMAGE": str(image)}
            try:
                outcomes[cli.main([places.get(word, word) for word in command.split()])] += 1
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                where = [f"{f.filename.split('/')[-1]}:{f.lineno}" for f in frames[-3:]]
                deep[f"{command} {name}: {error!r:.100} at {' < '.join(where[::-1])}"] = error
        out = capsys.readouterr()
        assert "\x1b" not in out.out + out.err
        shutil.rmtree(folder)
    record("forged run folders", tried=FOLDERS, commands=outcomes.total(), errors=len(deep))
    assert set(outcomes) <= {0, 1, 2}
    assert not deep, "\n".join(deep)
