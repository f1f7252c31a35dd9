"""Every option of every command of `nsim` with every odd value: a code and the command's own words.

Options are read from `--help`, so that a new one is tried too, with the first start that has it.
"""

import re
import signal
import traceback

import pytest
from PIL import Image
from reliability.calls import bounded as bounded
from reliability.counts import record
from tiny_classes import BY_NAMES
from tiny_classes import tiny_classes as tiny_classes
from tiny_images import tiny as tiny
from tiny_images import train_tiny

from neural_similarity.lab import cli, session
from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train import fitting

SECONDS = 120
REPR = re.compile(r"<[\w.]+ object|<_io\.|<class |\b\w+(Error|Exception)\(")
NAMED = re.compile(r"`([a-z]\w*)`")
VALUES = [
    "", " ", "0", "-1", "0.5", "nan", "inf", "1e300", "9" * 30, "1" * 5000, "None", "x", "../x",
    "/dev/null", "/dev/zero", "\x00", "\x1b[31m", "\ud800", "é", "--", "meta", "(" * 500,
    "Static({[]:1})", "Dynamic(Diagonal(), predictor=SphereNet(hidden=1000000000000))", "1,1",
    "RUN", "SHOTS", "FOLDER", "MISSING", "IMAGE", "DAMAGED",
]  # fmt: skip
STARTS = {
    "train": ["train quickstart", "train fewshot-quickstart", "train adapt --backbone RUN"],
    "evaluate": ["evaluate RUN", "evaluate SHOTS"],
    "predict": ["predict RUN IMAGE"],
    "export": ["export RUN --format safetensors"],
    "inspect": ["inspect RUN"],
    "report": ["report RUN"],
    "reproduce": ["reproduce 1 --print", "reproduce adapt-known"],
    "table": ["table 1", "table adapt-known"],
    "record": ["record RUN"],
    "theory": ["theory x"],
    "recipes": ["recipes"],
    "models": ["models cnn9"],
    "data": ["data embedded"],
    "completion": ["completion bash"],
}
"""What a command line starts with, by command; it is tried as it is, too."""


def options_of(start, places, capsys):
    """The options that `--help` names."""
    cli.main([*words_of(start, places), "--help"])
    found = re.findall(r"(?<![\w-])--[a-z][\w-]*", capsys.readouterr().out)
    return sorted(set(found) - {"--help"})


def words_of(line, places):
    return [str(places.get(word, word)) for word in line.split()]


def enough(*_, **__):
    """In place of steps: what comes before them is tried."""
    raise RunError("enough")


def hangs(*_):
    raise AssertionError(f"it takes {SECONDS} s")


@pytest.fixture
def places(tmp_path):
    """Things that words of a command line name."""
    run = train_tiny(tmp_path).path
    shots = session.train(BY_NAMES, out=tmp_path / "shots", device="cpu").path
    names = {"FOLDER": "folder", "MISSING": "no", "IMAGE": "image.png", "DAMAGED": "damaged.png"}
    names = {name: tmp_path / file for name, file in names.items()}
    Image.new("L", (8, 8)).save(names["IMAGE"])
    names["DAMAGED"].write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    names["FOLDER"].mkdir()
    return names | {"RUN": run, "SHOTS": shots}


def fault_of(words, capsys, options):
    """What is wrong with how a command line ends, or None."""
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        code = cli.main(words)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{f.filename.split('/')[-1]}:{f.lineno}" for f in frames[-3:]]
        return f"{error!r:.120} at {' < '.join(where[::-1])}"
    finally:
        signal.alarm(0)
    printed = capsys.readouterr()
    if code not in (0, 1, 2) or "Traceback" in printed.err:
        return f"code {code}: {printed.err:.200}"
    if REPR.search(printed.err):
        return f"it prints an object: {printed.err:.200}"
    given = re.findall(r"\w+", " ".join([*options, *words]).replace("--", " ").replace("-", "_"))
    if unknown := set(NAMED.findall(printed.err)) - set(given):
        return f"it names {unknown}, which is no option: {printed.err:.200}"
    return "it prints control characters" if re.search("[\0\x07\x1b]", str(printed)) else None


def test_every_command_has_a_start():
    assert set(STARTS) == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny", "tiny_classes", "bounded")
@pytest.mark.parametrize("command", STARTS)
def test_odd_values_of_every_option(tmp_path, monkeypatch, capsys, places, command):
    monkeypatch.chdir(places["FOLDER"])
    monkeypatch.setattr(fitting, "fit_model", enough)
    tried, wrong, seen = 0, [], set()
    for start in STARTS[command]:
        known = options_of(start, places, capsys)
        options = [name for name in known if name not in seen]
        seen.update(options)
        for option in [None, *options]:
            for value in VALUES:
                odd = [str(places.get(value, value))]
                words = words_of(start, places) + ([option, *odd] if option else odd)
                if "--out" not in words and command in ("train", "export", "inspect", "report"):
                    words += ["--out", str(tmp_path / f"out{tried}")]
                tried += 1
                if fault := fault_of(words, capsys, known):
                    wrong.append(f"{words!r:.160}: {fault}")
    record(f"nsim {command}", **{"hostile": tried, "hostile, errors": len(wrong)})
    assert not wrong, "\n".join(wrong)
