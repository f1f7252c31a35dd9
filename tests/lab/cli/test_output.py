"""What every command prints: in any encoding, whatever the names, steering no terminal."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from PIL import Image
from tiny_classes import BY_NAMES, tiny_classes_world
from tiny_images import CLASSES, TINY, make_dataset, tiny_world, use_tiny_images

import neural_similarity as ns
from neural_similarity.lab import cli, data, session
from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.terminal import Output
from neural_similarity.lab.train.progress import count_bar, print_notice

ENCODINGS = ("cp1252", "ascii", "utf-8")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
EVIL = "\x1b[2J\x00\x07\u202e−Δ±"
SMALL = "--width 0.1 --steps 2 --drops 1 --batch-size 8 --device cpu".split()
CASES = {
    "train": (0, ["train", *SMALL, "--out", "NEW"]),
    "evaluate": (0, "evaluate RUN --device cpu"),
    "predict": (1, "predict RUN IMAGE MISSING --device cpu"),
    "export": (0, "export RUN --format safetensors --out NEW --device cpu"),
    "inspect": (0, "inspect RUN --out NEW --device cpu"),
    "report": (0, "report RUN SHOTS --out NEW"),
    "reproduce": (0, "reproduce 4 --print --only cifar10-cnn --seeds 1 --results NEW"),
    "table": (0, "table 4"),
    "record": (1, "record RUN"),
    "theory": (0, "theory spectra --runs RUN --out NEW"),
    "recipes": (0, "recipes"),
    "models": (0, "models cnn9 --similarity static-diagonal"),
    "data": (0, "data embedded"),
    "completion": (2, f"completion {EVIL}"),
}
"""For every command its exit code and a call that prints what it usually prints."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run whose classes have evil names, a few-shot run, an image."""
    folder = tmp_path_factory.mktemp("output")
    with tiny_world():
        recipe = replace(TINY, similarity=ns.Static(ns.Diagonal()))
        run = session.train(recipe, out=folder / f"run{EVIL[0]}", device="cpu").path
    with tiny_classes_world():
        shots = session.train(BY_NAMES, out=folder / "shots", device="cpu").path
    config = json.loads((run / "config.json").read_text())
    config["classes"] = [f"{name}{EVIL}" for name in CLASSES]
    (run / "config.json").write_text(json.dumps(config))
    Image.new("L", (8, 8)).save(folder / "image\x1b[31m.png")
    names = {"RUN": run, "SHOTS": shots, "IMAGE": folder / "image\x1b[31m.png"}
    return names | {"MISSING": folder / f"missing{EVIL[1:].replace(chr(0), '')}.png"}


@pytest.fixture
def evil_data(monkeypatch):
    """The tiny images in classes of evil names; digests stay."""
    use_tiny_images(monkeypatch)
    images = make_dataset()
    evil = [f"{name}{EVIL}" for name in CLASSES]
    named = [replace(part, classes=tuple(evil)) for part in (images.train, images.test)]
    dataset = replace(images, train=named[0], test=named[1])
    dataset.__dict__["digest"] = images.digest
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: dataset)


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def called(words, encoding, monkeypatch, kind=io.TextIOWrapper):
    """The exit code, and what came out, of both streams."""
    streams = [kind(io.BytesIO(), encoding=encoding) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        code = cli.main(words)
    for stream in streams:
        stream.flush()
    return code, *(stream.buffer.getvalue().decode(encoding) for stream in streams)


def words_of(name, places, tmp_path):
    code, words = CASES[name]
    places = {key: str(path) for key, path in (places | {"NEW": tmp_path / "new"}).items()}
    words = words.split(" ") if isinstance(words, str) else words
    return code, [places.get(word, word) for word in words]


@pytest.mark.usefixtures("evil_data")
@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(name, marks=pytest.mark.long) for name in ENCODINGS[::2])]
)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_every_encoding(name, encoding, places, tmp_path, monkeypatch):
    """What fits into ASCII, which is tried first, fits into the others."""
    code, words = words_of(name, places, tmp_path)
    found, out, err = called(words, encoding, monkeypatch)
    assert found == code, err
    assert out + err
    assert not STEERING.search(out + err)
    for text in (["--help"], ["--no-such-option", EVIL]):
        found, out, err = called([name, *text], encoding, monkeypatch)
        assert found in (0, 1, 2)
        assert not STEERING.search(out + err)


@pytest.mark.parametrize("words", [["train", "--steps"], ["models", "cnn9"]])
def test_a_terminal_has_colours_of_ours_alone(words, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    _, *plain = called(words, "utf-8", monkeypatch)
    _, *coloured = called(words, "utf-8", monkeypatch, Terminal)
    assert "\x1b[" in "".join(coloured)
    assert "\x1b" not in "".join(plain)
    assert "\x1b" not in "".join(called([*words, EVIL], "utf-8", monkeypatch, Terminal)[1:])


def test_what_is_printed_beside_a_bar_steers_no_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal(io.BytesIO(), encoding="utf-8")

    def decode():
        with count_bar("images") as count:
            count(1, 3)
            count(2, 3)
            print_notice("\x1b]0;title\a\x1b[31mnotice")
            sys.stdout.write("\x1b[32mtext\0\n")
        print_notice("\x1b[34mafter")
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        assert cli.exit_code(decode) == 0
        assert sys.stdout is stream
    stream.flush()
    text = stream.buffer.getvalue().decode()
    assert "\x1b[" in text  # the bar
    for written in (r"\x1b]0;title\x07", r"\x1b[31m", r"\x1b[32m", r"\x00", r"\x1b[34m"):
        assert written in text
    assert not re.search(r"\x1b\]|\x1b\[3[1-4]m[a-z]|[\x00\x07]", text)


def test_an_error_takes_one_line(capsys):
    def fail():
        raise OSError(f"first\n\n  second\tthird{EVIL}")

    assert cli.exit_code(fail) == 1
    told = capsys.readouterr().err
    assert told == "nsim: first; second third\\x1b[2J\\x00\\x07\\u202e−Δ±\n"


WRITERS = {
    "write": lambda stream, text: stream.write(text),
    "writelines": lambda stream, text: stream.writelines([text[:9], text[9:]]),
    "print": lambda stream, text: print(text, file=stream),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_way_of_writing_steers_nothing_and_fits(writer, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    WRITERS[writer](Output(stream), f"a list of {EVIL}")
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)
    minus, delta, sign = "−Δ±" if encoding == "utf-8" else ("-", "d", "+-")
    sign = "±" if encoding == "cp1252" else sign
    assert text.strip() == rf"a list of \x1b[2J\x00\x07\u202e{minus}{delta}{sign}"


@pytest.mark.parametrize("stream", ["2>&1", "2>&1 >/dev/null"])
def test_a_traceback_steers_no_terminal(stream):
    code = r"""
from neural_similarity.lab import cli
def fail():
    raise KeyError('\x1b[2J') from RuntimeError('of \x1b]0;t\a \u202eΔ')
cli.exit_code(fail)"""
    words = f'PYTHONIOENCODING=cp1252 "$0" -c "$1" {stream}'
    done = subprocess.run(
        ["bash", "-c", words, sys.executable, code], capture_output=True, check=False
    )
    text = done.stdout.decode("cp1252")
    assert done.returncode == 1
    assert "Traceback" in text
    assert r"RuntimeError: of \x1b]0;t\x07 \u202e" in text
    assert not STEERING.search(text)


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        ("PYTHONIOENCODING=cp1252 nsim recipes --all", 0, "cifar10-cnn"),
        ("PYTHONIOENCODING=ascii TERM=dumb COLUMNS=10 nsim recipes --all", 0, "cifar10-cnn"),
        ("nsim recipes >&-", 0, ""),
        ("nsim sing 2>&-", 2, ""),
        ("nsim recipes <&- >&- 2>&-", 0, ""),
        ("nsim recipes > /dev/full", 1, "nsim: [Errno 28] No space left on device"),
        ("nsim recipes | :; exit ${PIPESTATUS[0]}", 141, ""),
        ("nsim --help | :; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_whatever_the_shell_does_with_the_output(words, code, wanted):
    words = words.replace("nsim", f"{sys.executable} -m neural_similarity")
    done = subprocess.run(["bash", "-c", words], capture_output=True, check=False)
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert done.returncode == code, text
    assert wanted in text
    assert "Traceback" not in text
    assert "Exception ignored" not in text
