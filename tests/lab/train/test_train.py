import base64
import errno
import json
import shutil
from dataclasses import replace

import pytest
import torch
from kills import assert_same, killed_after, outcome
from tiny_images import DRAW_CURVES, TINY, make_dataset, make_images, train_tiny
from torch.nn import functional as F

from neural_similarity.lab import data, folders, session
from neural_similarity.lab.data import Augment, Batches, Preprocess
from neural_similarity.lab.session import load, train
from neural_similarity.lab.tasks import classification
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.tasks.classification import ClassificationTask
from neural_similarity.lab.train import (
    RunError,
    choose_runtime,
    evaluate_model,
    fitting,
    pack_correct,
    read_run,
    unpack_correct,
)
from neural_similarity.lab.train.checkpoint import list_checkpoints
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.scoring import Scores, score_logits
from neural_similarity.nn import format_similarity

pytestmark = pytest.mark.usefixtures("tiny")


def test_training_is_the_textbook_loop(tmp_path):
    """Momentum and decay written out by hand, on the same batches: equal weights and metrics."""
    terms = {"similarity": None, "label_smoothing": 0.1, "weight_decay": 0.01}
    run = train_tiny(tmp_path, lr=0.05, drops=(2, 4), **terms)
    images = make_dataset().train
    preprocess = Preprocess.fit_to_images(images)
    augment = Augment(crop=1, flip=True, padding="zero")
    options = {"augment": augment, "seed": 0}
    batches = Batches(images, 8, preprocess=preprocess, **options)
    model = run.build().to(memory_format=torch.channels_last)
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]
    metrics = torch.zeros(3, 2)
    for step, rate in enumerate((0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005)):
        x, y = batches.at(step)
        logits = model(x)
        log_probability = F.log_softmax(logits, 1)
        hit = log_probability.gather(1, y[:, None]).mean()
        loss = -0.9 * hit - 0.1 * log_probability.mean()
        right = (logits.argmax(1) == y).float().mean()
        metrics[step // 2] += torch.stack([loss, right]).detach() / 2
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, v, gradient in zip(model.parameters(), velocity, gradients, strict=True):
                v.mul_(0.9).add_(gradient + 0.01 * weight)
                weight -= rate * v
    trained = load(run)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    lines = torch.tensor([[line["loss"], line["accuracy"]] for line in read_lines(run.metrics)])
    torch.testing.assert_close(lines, metrics, rtol=1e-4, atol=1e-5)


def test_a_run_is_read_and_loaded_as_it_was(tmp_path):
    run = train_tiny(tmp_path, validation=8, similarity=None, evaluate_every=50, steps=2, drops=())
    assert read_run(run.path) == run
    before = torch.get_rng_state()
    assert not load(run.path).training
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="`checkpoint` must be 'last' or 'best', got 'first'"):
        load(run, "first")
    shutil.rmtree(run.best)
    with pytest.raises(RunError, match="has no best checkpoint"):
        load(run, "best")


@pytest.mark.long
def test_run_folder_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "draw_learning_curves", DRAW_CURVES)
    run = train_tiny(tmp_path)
    config = json.loads((run.path / "config.json").read_text())
    assert config["fields"]["similarity"] == format_similarity(TINY.similarity, complete=True)
    assert config["classes"] == ["up", "down", "left", "right"]
    assert config["digest"] == make_dataset().digest
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["threads"] == 1
    lines = read_lines(run.metrics)
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.1, 0.01])
    keys = {"step", "loss", "accuracy", "lr", "images_per_second", "seconds"}
    assert all(set(line) == keys for line in lines)
    assert [path.name for path in list_checkpoints(run.checkpoints)] == ["step-00000006"]
    assert (run.plots / "learning-curves.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads(run.summary.read_text())
    assert summary["steps"] == 6
    assert summary["test_error_percent"] == pytest.approx(100 - 100 * summary["test_accuracy"])
    assert summary["parameters"] == sum(p.numel() for p in run.build().parameters())
    assert set(summary) == {
        *("test_accuracy", "test_error_percent", "test_loss", "steps", "seconds", "device"),
        *("test_balanced_accuracy", "test_class_accuracies"),
        *("images_per_second", "parameters", "precision", "command", "test_correct"),
        "score_precision",
    }


@pytest.mark.parametrize("unit", ["images", "tasks"])
@pytest.mark.parametrize("count", [0, 1, 8, 13])
def test_packed_answers_survive_json(count, unit):
    """A bit an image, the first one highest; for tasks two bytes, the low one first."""
    if unit == "images":
        correct = torch.rand(count) < 0.5
        bits = "".join("01"[bit] for bit in correct.tolist()).ljust(-(-count // 8) * 8, "0")
        by_hand = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    else:
        correct = torch.randint(0, 1 << 16, (count,))
        by_hand = bytes(byte for value in correct.tolist() for byte in (value % 256, value // 256))
    record = json.loads(json.dumps(pack_correct(correct)))
    assert base64.b64decode(record["packed"]) == by_hand
    assert torch.equal(unpack_correct(record), correct)
    with pytest.raises(ValueError, match=rf"`packed` must hold \d+ bytes for {count + 9} {unit}"):
        unpack_correct(record | {unit: count + 9})


@pytest.mark.parametrize(
    ("classes", "size", "message"),
    [
        (2, (8, 9), "images must be square, got 8x9; `image_size` crops them"),
        (1, (8, 8), "there must be at least two classes, got "),
    ],
)
def test_images_that_no_network_takes_are_refused(tmp_path, monkeypatch, classes, size, message):
    names, labels = tuple(map(str, range(classes))), torch.arange(40) % classes
    images = data.Images(torch.zeros(40, 1, *size, dtype=torch.uint8), labels, names)
    both = data.Dataset("x", images, images)
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: both)
    with pytest.raises(ValueError, match=message):
        train(TINY, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_files_that_were_edited_are_named(tmp_path):
    run = train_tiny(tmp_path)
    for damage in (b'{"step": \n', b"\xff\xfe\n", b"3\n"):
        run.metrics.write_bytes(b'{"step": 2}\n' + damage)
        with pytest.raises(RunError, match=r"metrics.jsonl cannot be read: "):
            read_lines(run.metrics)
    wider = replace(run, recipe=replace(run.recipe, width=0.2))
    with pytest.raises(RunError, match=r"safetensors holds the weights of another network: size"):
        load(wider)
    (run.path / "environment.json").write_text("{}")
    with pytest.raises(RunError, match=r"environment.json cannot be read: it lacks 'precision'"):
        _ = run.precision
    for text, words in (
        ('{"recipe": "x"}', "it lacks 'budget'"),
        ("[]", "a value has another type"),
    ):
        (run.path / "config.json").write_text(text)
        with pytest.raises(RunError, match=rf"config.json cannot be read: {words}"):
            read_run(run.path)


def test_validation_is_of_the_images_that_the_seed_holds_out(tmp_path):
    run, dataset = train_tiny(tmp_path, validation=16, evaluate_every=2, seed=3), make_dataset()
    training, held = data.hold_out(dataset.train, 16, 3)
    parts = ClassificationTask(run.recipe, dataset).training_split()
    assert torch.equal(parts[0].pixels, training.pixels)
    assert torch.equal(parts[1].pixels, held.pixels)
    assert run.preprocess == Preprocess.fit_to_images(training)
    last = evaluate_model(load(run), held, run.preprocess, choose_runtime("cpu", "fp32"))
    (line,) = (line for line in read_lines(run.metrics)[-2:] if "validation_loss" in line)
    assert line["validation_accuracy"] == last.accuracy
    assert line["validation_loss"] == pytest.approx(last.loss, rel=1e-5)


def test_training_has_its_precision_and_every_score_is_in_float32(tmp_path, passes):
    """What is scored is what is shipped: validation, the last, the best, and those of adapting."""
    settings = {"validation": 16, "evaluate_every": 2, "precision": "bf16", "drops": (), "steps": 4}
    start = train_tiny(tmp_path, similarity=None, **settings)
    recipe = AdaptationRecipe(backbone=str(start.path), dataset="embedded", lr=0.0, **settings)
    adapted = train(recipe, out=tmp_path / "adapted", device="cpu")
    assert (True, True) in passes
    assert (False, True) not in passes
    for run in (start, adapted):
        summary = json.loads(run.summary.read_text())
        assert (summary["precision"], summary["score_precision"]) == ("bf16", "fp32")
        for which, scores in (("last", summary), ("best", summary["best_checkpoint"])):
            found = evaluate_model(
                load(run, which), make_dataset().test, run.preprocess, choose_runtime("cpu", "fp32")
            )
            assert scores["test_accuracy"] == found.accuracy
            assert scores["test_correct"] == pack_correct(found.correct)
            assert scores["test_loss"] == pytest.approx(found.loss, rel=1e-5)


@pytest.mark.long
def test_test_images_reach_nothing_but_the_summary(tmp_path, monkeypatch):
    def trained(name):
        run = train_tiny(tmp_path / name, validation=16, evaluate_every=2)
        return outcome(run, "last", "best")

    *first, _ = trained("one")
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: make_dataset(test_seed=9))
    *second, _ = trained("other")
    assert_same(second, first)


def test_test_set_is_scored_once_at_the_end(tmp_path, monkeypatch):
    scored = []

    def noting(model, images, *rest):
        scored.append((len(images), list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name))
        return evaluate_model(model, images, *rest)

    monkeypatch.setattr(classification, "evaluate_model", noting)
    train_tiny(tmp_path)
    assert scored == [(32, "step-00000006")]


def test_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path):
    with pytest.raises(RunError, match=r"the loss is not finite at step .*; try a lower --lr"):
        train_tiny(tmp_path, lr=1e30)
    assert not list_checkpoints(tmp_path / "run" / "checkpoints")


def test_changed_data_are_refused(tmp_path, monkeypatch):
    run = train_tiny(tmp_path)
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: make_dataset(test_seed=9))
    with pytest.raises(RunError, match=f"its digest is .*, not {run.digest}"):
        session.load_task(run)


def test_prediction_does_not_depend_on_the_batch(tmp_path, monkeypatch):
    run = train_tiny(tmp_path)
    model, images = load(run), make_images(11, 3)
    runtime = choose_runtime("cpu", "fp32")
    whole = evaluate_model(model, images, run.preprocess, runtime)
    monkeypatch.setattr("neural_similarity.lab.train.scoring.BATCH_SIZE", 3)
    parts = evaluate_model(model.train(), images, run.preprocess, runtime)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)
    assert torch.equal(parts.correct, whole.correct)


def test_the_first_five_count_from_eleven_classes_on():
    assert score_logits(torch.eye(10), torch.arange(10)).correct5 is None
    assert score_logits(torch.eye(11), torch.arange(11)).correct5.all()


def test_scores_by_class_count_every_class_once():
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 3])
    answers = torch.tensor([0, 0, 0, 0, 0, 1, 1, 0, 0])
    scores = Scores(0.0, answers, labels)
    assert scores.accuracy == 6 / 9
    assert scores.class_accuracies("abcd") == {"a": 5 / 6, "b": 1 / 2, "d": 0}
    assert scores.only_answer is None  # One of three images of other classes is right.
    assert Scores(0.0, torch.zeros(9).long(), labels).only_answer == 0
    assert Scores(0.0, torch.zeros(9).long(), torch.zeros(9).long()).only_answer is None


@pytest.mark.parametrize("argument", ["data_root", "backbone"])
def test_text_that_no_file_can_hold_is_refused_before_data_are_read(
    tmp_path, monkeypatch, argument
):
    monkeypatch.setattr(data, "load_dataset", None)
    name = "d\udcff"
    recipe = TINY if argument == "data_root" else AdaptationRecipe(backbone=name)
    with pytest.raises(ValueError, match=rf"`{argument}` must be valid UTF-8, got '.*udcff'"):
        train(recipe, out=tmp_path / "run", data_root=name if argument == "data_root" else "data")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_a_run_folder_is_made_is_no_run_that_exists(tmp_path, monkeypatch):
    """Not even where the folder has its name already, and only that name is not on the disk yet."""

    def full(path):
        if path == tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders, "sync_path", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*run'"):
        train(TINY, out=tmp_path / "run", device="cpu")
    assert (tmp_path / "run" / "config.json").exists()


STEPS = {"steps": 5, "drops": (), "evaluate_every": 1, "checkpoint_every": 1}
SCRIPTS = {
    "in the middle": [0.3, 0.9, 0.5, 0.9, 0.1],
    "first": [0.5, 0.4, 0.3, 0.2, 0.1],
    "last": [0.0, 0.1, 0.2, 0.3, 0.4],
    "all equal": [0.25] * 5,
    "nothing is right": [0.0] * 5,
}


@pytest.fixture
def script(monkeypatch):
    """Validation comes to given accuracies, by step; the weights that were judged, by step."""

    def prepare(accuracies):
        judged = {}

        def judge(model):
            step = len(judged) + 1
            judged[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            # The loss says the opposite, as it may.
            return {"validation_accuracy": accuracies[step - 1], "validation_loss": 1.0 / step}

        monkeypatch.setattr(ClassificationTask, "validation", lambda *_: judge)
        return judged

    return prepare


def assert_is(state, other):
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in other)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_best_checkpoint_is_that_of_the_highest_accuracy(tmp_path, script, name):
    accuracies = SCRIPTS[name]
    first_best = 1 + accuracies.index(max(accuracies))
    judged = script(accuracies)
    run = train(replace(TINY, validation=16, **STEPS), out=tmp_path / "run", device="cpu")
    assert [path.name for path in list_checkpoints(run.best)] == [f"step-{first_best:08d}"]
    assert_is(load(run, "best").state_dict(), judged[first_best])
    assert_is(load(run).state_dict(), judged[5])
    summary = json.loads(run.summary.read_text())
    assert summary["best_checkpoint"]["validation_accuracy"] == max(accuracies)


def test_a_resumed_run_knows_how_good_the_best_was(tmp_path, script):
    judged = script(SCRIPTS["in the middle"])
    recipe = replace(TINY, validation=16, **STEPS)
    killed_after(4, lambda: train(recipe, out=tmp_path / "run", device="cpu"))
    assert len(judged) == 3  # The checkpoint of step 3 is the last.
    run = session.resume(tmp_path / "run", device="cpu")
    assert [path.name for path in list_checkpoints(run.best)] == ["step-00000002"]
    assert_is(load(run, "best").state_dict(), judged[2])
