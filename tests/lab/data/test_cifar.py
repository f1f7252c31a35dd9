import os
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from neural_similarity.lab.data import Preprocess, load_dataset
from neural_similarity.lab.data.cifar import CIFAR10, CIFAR10_CLASSES, CIFAR100, load_cifar

COUNTS = (20, 6)
NAMES100 = tuple(f"class_{i}" for i in range(100))
SETS = {"cifar10": (CIFAR10, CIFAR10_CLASSES), "cifar100": (CIFAR100, NAMES100)}
FILES = {
    "cifar10": [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"],
    "cifar100": ["train", "test"],
}
LAYOUTS = [
    ("cifar10", "binary", "cifar-10-batches-bin"),
    ("cifar10", "python 2", "cifar-10-batches-py"),
    ("cifar10", "python 3", "cifar-10-batches-py"),
    ("cifar100", "binary", "cifar-100-binary"),
    ("cifar100", "python 2", "cifar-100-python"),
    ("cifar100", "python 3", "cifar-100-python"),
]


def parts(name):
    """File name, pixels (n, 3, 32, 32) and labels (n,) of every file of a tiny set."""
    random, counts = np.random.default_rng(0), {"cifar10": [4] * 5 + [6], "cifar100": COUNTS}[name]
    for file, count in zip(FILES[name], counts, strict=True):
        pixels = random.integers(256, size=(count, 3, 32, 32), dtype=np.uint8)
        yield file, pixels, random.integers(len(SETS[name][1]), size=count)


def python2(value):
    """The opcodes that Python 2's `cPickle.dump(value, file, 2)` writes, without memo."""
    if isinstance(value, str):
        return b"T" + struct.pack("<I", len(value)) + value.encode()
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    rows, columns = (b"M" + struct.pack("<H", size) for size in value.shape)
    minus_one = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * minus_one + b"K\x00tb"
    content = b"T" + struct.pack("<I", value.size) + value.tobytes()
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return empty + b"(K\x01" + rows + columns + b"\x86" + dtype + b"\x89" + content + b"tb"


def pickled(value, form):
    if form == "python 3":
        return pickle.dumps(value, protocol=2)
    return b"\x80\x02" + python2(value) + b"."


def content_of(name, form, pixels, labels):
    coarse = np.full(len(labels), 255)
    if form == "binary":
        columns = [labels] if name == "cifar10" else [coarse, labels]
        rows = np.column_stack([*columns, pixels.reshape(len(pixels), -1)])
        return rows.astype(np.uint8).tobytes()
    key = {"cifar10": "labels", "cifar100": "fine_labels"}[name]
    value = {"batch_label": "batch 1", key: labels.tolist(), "data": pixels.reshape(-1, 3072)}
    return pickled(value | {"coarse_labels": coarse.tolist()}, form)


def write(folder, name, form):
    folder.mkdir(parents=True, exist_ok=True)
    for file, pixels, labels in parts(name):
        path = folder / (f"{file}.bin" if form == "binary" else file)
        path.write_bytes(content_of(name, form, pixels, labels))
    classes = SETS[name][1]
    if form == "binary":
        file = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}[name]
        (folder / file).write_text("\n".join(classes) + "\n\n")
    else:
        meta = {"cifar10": ("batches.meta", "label"), "cifar100": ("meta", "fine_label")}
        file, key = meta[name]
        (folder / file).write_bytes(pickled({f"{key}_names": list(classes)}, form))


@pytest.mark.parametrize("nested", [True, False], ids=["below root", "root itself"])
@pytest.mark.parametrize(("name", "form", "folder"), LAYOUTS)
def test_reads_the_official_layouts(tmp_path, name, form, folder, nested):
    write(tmp_path / folder if nested else tmp_path, name, form)
    cifar, classes = SETS[name]
    dataset = load_cifar(cifar, tmp_path, COUNTS)
    written = list(parts(name))
    for part, files in ((dataset.train, written[:-1]), (dataset.test, written[-1:])):
        assert np.array_equal(part.pixels.numpy(), np.concatenate([p for _, p, _ in files]))
        assert np.array_equal(part.labels.numpy(), np.concatenate([y for *_, y in files]))
        assert part.classes == classes
    assert dataset.name == name


@pytest.mark.parametrize(
    ("form", "folder", "file"), [("binary", "-bin", ".txt"), ("python 2", "-py", "")]
)
def test_cifar10_needs_no_file_of_names(tmp_path, form, folder, file):
    write(tmp_path / f"cifar-10-batches{folder}", "cifar10", form)
    (tmp_path / f"cifar-10-batches{folder}" / f"batches.meta{file}").unlink()
    assert load_cifar(CIFAR10, tmp_path, COUNTS).test.classes == CIFAR10_CLASSES


@pytest.mark.parametrize(
    ("name", "form", "folder", "file"),
    [
        *((*layout, FILES[layout[0]][-1] + ".bin" * (layout[1] == "binary")) for layout in LAYOUTS),
        ("cifar100", "binary", "cifar-100-binary", "fine_label_names.txt"),
    ],
)
def test_one_file_is_missing(tmp_path, name, form, folder, file):
    write(tmp_path / folder, name, form)
    (tmp_path / folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{folder}/{file} is missing; .* data {name} "):
        load_cifar(SETS[name][0], tmp_path, COUNTS)


def test_full_size_is_the_default(tmp_path):
    write(tmp_path, "cifar10", "binary")
    with pytest.raises(ValueError, match=r"data_batch_1\.bin must hold 30,730,000 bytes, got"):
        load_dataset("cifar10", tmp_path)


GOOD = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]}


WRONG = [
    ([1, 2], "must hold a dictionary, got <class 'list'>"),
    ({}, r"must hold 'data', uint8 \(4, 3072\), got <class 'NoneType'>"),
    (GOOD | {"data": GOOD["data"][:3]}, r"must hold 'data', .* got uint8 \(3, 3072\)"),
    (GOOD | {"data": GOOD["data"].astype(float)}, r"must hold 'data', .* float64 \(4, 3072\)"),
    (GOOD | {"labels": [1, 2]}, "must hold 'labels', a list of 4 class numbers"),
    (GOOD | {"labels": "abcd"}, "must hold 'labels', a list of 4 class numbers"),
    (GOOD | {"labels": [0, 1, 2, -1]}, "must hold 'labels', a list of 4 class numbers"),
    (GOOD | {"labels": [0, 1, 2, 10]}, "must hold labels below 10, got 10"),
]


def of(value):
    return lambda _: pickle.dumps(value, protocol=2)


@pytest.mark.parametrize(
    ("form", "file", "change", "message"),
    [
        ("binary", "data_batch_3.bin", lambda c: c[:-1], "must hold 12,292 bytes, got 12,291; del"),
        ("binary", "test_batch.bin", lambda c: b"\x0b" + c[1:], "must hold labels below 10, got 1"),
        ("binary", "batches.meta.txt", lambda _: b"\xff\xfe", "must be in UTF-8, got"),
        ("python 2", "test_batch", lambda c: c[:-100], "must be a pickle of arrays .*: .*; delete"),
        ("python 3", "test_batch", lambda c: c[:-100], "must be a pickle of arrays .*: .*; delete"),
        ("python 3", "batches.meta", of({}), "must hold 'label_names', a list of names"),
        ("python 3", "batches.meta", of({"label_names": ["a"]}), "must name 10 classes, got 1"),
        *[("python 3", "data_batch_4", of(value), message) for value, message in WRONG],
    ],
)
def test_damaged_files_are_named(tmp_path, form, file, change, message):
    write(tmp_path, "cifar10", form)
    path = tmp_path / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{re.escape(file)} {message}"):
        load_cifar(CIFAR10, tmp_path, COUNTS)


@pytest.mark.parametrize("name", ["batches.meta", "data_batch_2"])
def test_a_sparse_pickle_of_ten_gibibytes(tmp_path, name):
    write(tmp_path, "cifar10", "python 3")
    os.truncate(tmp_path / name, 10 << 30)
    with pytest.raises(ValueError, match=rf"{name} must hold at most .* bytes, got 10,737,418,240"):
        load_cifar(CIFAR10, tmp_path, COUNTS)


@pytest.mark.data
def test_real_cifar10():
    root = Path(__file__).parents[3] / "data"
    if not (root / "cifar-10-batches-bin").is_dir() and not (root / "cifar-10-batches-py").is_dir():
        pytest.skip(f"no CIFAR-10 in {root}; `nsim data cifar10` fetches it")
    dataset = load_dataset("cifar10", root)
    assert dataset.train.labels.bincount().tolist() == [5_000] * 10
    assert dataset.test.labels.bincount().tolist() == [1_000] * 10
    assert dataset.train.classes == CIFAR10_CLASSES
    # Of files that have the published checksums.
    assert dataset.digest == "a497819b355c01c51f7f064ef5ecc596e68acd1f38bd5a091d01396da39ae6b5"
    # The statistics that everybody uses: (0.4914, 0.4822, 0.4465) and (0.247, 0.2435, 0.2616).
    preprocess = Preprocess.fit_to_images(dataset.train)
    assert preprocess.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=5e-5)
    assert preprocess.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=5e-5)
