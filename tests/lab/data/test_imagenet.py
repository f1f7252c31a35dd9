"""ImageNet's layout: listing, decoding, batches from files."""

import pickle
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_folders import write_csv
from tiny_imagenet import CLASSES, make_imagenet
from torchvision.transforms.v2 import functional as F

from neural_similarity.lab import data
from neural_similarity.lab.data import FileBatches, Place, Preprocess, imagenet
from neural_similarity.lab.data import batches as batches_module
from neural_similarity.lab.data import images as images_module
from neural_similarity.lab.data.decoding import read_centre, read_random_window
from neural_similarity.lab.data.images import seeded_generator

SIZE = 24
RAW = Preprocess.raw_values(3)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_imagenet(tmp_path_factory.mktemp("imagenet"))


def load(root, workers=0, image_size=SIZE):
    return data.load_dataset("imagenet", root, image_size=image_size, workers=workers)


def batches(root, workers=0, **options):
    options = {"preprocess": RAW, "seed": 3} | options
    return FileBatches(load(root, workers).train, 10, **options)


def test_listing(root):
    dataset = load(root)
    assert dataset.train.classes == dataset.test.classes == CLASSES
    assert (len(dataset.train), len(dataset.test)) == (48, 24)
    assert dataset.train.labels.tolist() == [label for label in range(12) for _ in range(4)]
    assert dataset.train.file_path(5) == root / "train" / CLASSES[1] / f"{CLASSES[1]}_1.JPEG"
    assert dataset.train.shape == (3, SIZE, SIZE)
    assert load(root, image_size=None).train.shape == (3, 224, 224)


def test_a_batch_is_a_function_of_its_step(root):
    there = batches(root)
    assert there._decode.order.steps_per_epoch == 4
    first = [there.at(step) for step in range(9)]
    for step in (6, 2, 3, 8):
        again = batches(root).at(step)
        assert torch.equal(again[0], first[step][0])
        assert torch.equal(again[1], first[step][1])
    assert torch.equal(there.at(5)[0], first[5][0])
    assert not torch.equal(batches(root, seed=4).at(0)[0], first[0][0])


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_workers_change_nothing_and_draw_no_random_numbers(root, layout):
    place = Place(memory_format=layout)
    alone, helped = (batches(root, workers, place=place) for workers in (0, 2))
    state = torch.get_rng_state()
    for step in (0, 1, 2, 3, 4, 2):
        x, y = alone.at(step)
        other, labels = helped.at(step)
        assert torch.equal(x, other)
        assert torch.equal(y, labels)
        assert x.is_contiguous(memory_format=layout)
        assert other.is_contiguous(memory_format=layout)
    assert torch.equal(torch.get_rng_state(), state)


def test_every_image_once_an_epoch_each_time_in_another_window(root):
    files = load(root).train
    there = FileBatches(files, 12, preprocess=RAW, flip=False)
    seen = [torch.cat([there.at(step)[0] for step in range(e * 4, e * 4 + 4)]) for e in (0, 1)]
    draws = [seeded_generator("window", 0, epoch, i) for epoch in (0, 1) for i in range(48)]
    by_hand = [read_random_window(files.file_path(i % 48), SIZE, d) for i, d in enumerate(draws)]
    key = [image.astype(np.float64).sum().item() for image in by_hand]
    assert sorted(seen[0].double().sum((1, 2, 3)).round().tolist()) == sorted(key[:48])
    assert sorted(seen[1].double().sum((1, 2, 3)).round().tolist()) == sorted(key[48:])
    assert key[:48] != key[48:]


def test_half_of_the_images_are_mirrored(root):
    files = load(root).train
    plain = files.random_windows(range(48), seed=1, epoch=0, flip=False)
    flipped = files.random_windows(range(48), seed=1, epoch=0, flip=True)
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(plain, flipped, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(plain, flipped, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 12 < sum(mirrored) < 36
    other = files.random_windows(range(48), seed=2, epoch=0, flip=False)
    assert not any(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_preprocessing_is_the_usual_one(root):
    preprocess = Preprocess.fit_to_images(load(root).train)
    assert preprocess.mean == (0.485, 0.456, 0.406)
    x = batches(root, preprocess=preprocess).at(0)[0]
    raw = batches(root).at(0)[0]
    expected = F.normalize(raw / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_chunks_are_the_centres_in_order(root, workers):
    files = load(root, workers).test
    chunks = list(files.chunks(9))
    assert [len(chunk) for chunk in chunks] == [9, 9, 6]
    by_hand = [read_centre(files.file_path(i), SIZE).transpose(2, 0, 1) for i in range(24)]
    assert np.array_equal(torch.cat(chunks).numpy(), np.stack(by_hand))
    assert torch.equal(files.head(2), chunks[0][:2])


def test_held_out_images_are_files_too(root):
    kept, out = data.hold_out(load(root).train, 12, seed=0)
    assert (len(kept), len(out)) == (36, 12)
    assert sorted(out.labels.tolist()) == list(range(12))
    assert not {kept.file_path(i) for i in range(36)} & {out.file_path(i) for i in range(12)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named_without_a_traceback(tmp_path, workers):
    path = make_imagenet(tmp_path, CLASSES[:3]) / "train" / CLASSES[1] / f"{CLASSES[1]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:200])
    there = FileBatches(load(tmp_path, workers).train, 12, preprocess=RAW)
    with pytest.raises(ValueError, match=rf"^{path} must be an image, but cannot be read: [^\n]+$"):
        there.at(0)


def test_grey_and_cmyk_images_are_rgb(tmp_path):
    make_imagenet(tmp_path, CLASSES[:2])
    for number, mode in enumerate(("L", "CMYK")):
        path = tmp_path / "train" / CLASSES[0] / f"{CLASSES[0]}_{number}.JPEG"
        Image.open(path).convert(mode).save(path)
    assert load(tmp_path).train.head(2).shape == (2, 3, SIZE, SIZE)


def test_missing_part_and_bad_size(tmp_path, root):
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match=r"train is missing; ImageNet's layout is"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"val is missing; ImageNet's layout is train/CLA"):
        load(tmp_path)
    with pytest.raises(ValueError, match="`image_size` must be at least 1, got 0"):
        load(root, image_size=0)


def test_digest_names_files_and_sizes(tmp_path):
    make_imagenet(tmp_path, CLASSES[:2])
    before = load(tmp_path).digest
    assert load(tmp_path).digest == before
    path = tmp_path / "val" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG"
    content = path.read_bytes()
    path.unlink()
    (path.parent / "other.JPEG").write_bytes(content)
    renamed = load(tmp_path).digest
    (path.parent / "other.JPEG").unlink()
    path.write_bytes(content + b"more")
    assert len({before, renamed, load(tmp_path).digest}) == 3


def test_what_goes_to_other_processes_can_be_pickled(root, monkeypatch):
    """Python 3.14 starts them anew, and so do other systems."""
    sent = []
    monkeypatch.setattr(images_module, "work_ahead", lambda work, *_, **__: sent.append(work))
    monkeypatch.setattr(
        batches_module, "work_ahead", lambda work, steps, **_: sent.append(work) or map(work, steps)
    )
    load(root).test.chunks(4)
    batches(root).at(3)
    chunk, batch = pickle.loads(pickle.dumps(sent))
    assert torch.equal(chunk(4), load(root).test.central_pixels(range(4, 8)))
    monkeypatch.undo()
    pixels, labels = batch(3)
    assert torch.equal(pixels.float(), batches(root).at(3)[0])
    assert torch.equal(labels, batches(root).at(3)[1])


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_lay_out_makes_train_and_val_of_every_class(tmp_path):
    """Of a file in two lists once; the source stays."""
    names = {"train": ("n1",), "trainval": ("n1", "n2"), "test": ("n3",)}
    source = write_csv(tmp_path / "mini", names, each=5)
    (source / "._list.csv").write_bytes(b"of macOS")
    before = {path.name: path.read_bytes() for path in (source / "images").iterdir()}
    root = data.lay_out(source, tmp_path / "made", held_out=2)
    dataset = load(root)
    assert dataset.train.classes == ("n1", "n2", "n3")
    assert (len(dataset.train), len(dataset.test)) == (9, 6)
    assert names_in(root / "train" / "n1") == ["n10.png", "n11.png", "n12.png"]
    assert names_in(root / "val" / "n3") == ["n33.png", "n34.png"]
    assert names_in(root) == ["train", "val"]
    assert {path.name: path.read_bytes() for path in (source / "images").iterdir()} == before
    with pytest.raises(FileExistsError, match="made holds files already; name another folder"):
        data.lay_out(source, root, held_out=2)


def test_a_layout_that_was_cut_short_leaves_nothing(tmp_path, monkeypatch):
    source = write_csv(tmp_path / "mini", {"train": ("n1", "n2")}, each=5)
    made = tmp_path / "made"
    with monkeypatch.context() as patch:
        patch.setattr(imagenet, "_link_file", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            data.lay_out(source, made, held_out=2)
    assert names_in(tmp_path) == ["mini"]
    assert names_in(data.lay_out(source, made, held_out=2)) == ["train", "val"]


def test_lay_out_refuses(tmp_path):
    def refused(message, held_out=1, error=ValueError):
        with pytest.raises(error, match=message):
            data.lay_out(tmp_path, tmp_path / "made", held_out=held_out)
        assert not (tmp_path / "made").exists()

    refused(r"must hold images/ and lists \*.csv", error=FileNotFoundError)
    (tmp_path / "all.csv").write_text("file,class\n0.png,n1\n")
    refused(r"all\.csv must have the columns filename and label, got")
    (tmp_path / "all.csv").write_text("filename,label\nx/0.png,n1\ny/0.png,n1\n")
    (tmp_path / "images").mkdir()
    refused(r"got x/0.png and y/0.png in the class 'n1'")
    (tmp_path / "all.csv").unlink()
    write_csv(tmp_path, {"train": ("n1",)}, each=5)
    refused(r"below the number of images of every class, got 5 for 5 .* 'n1'", held_out=5)
    refused("`held_out` must be an integer of at least 1, got 0", held_out=0)
    (tmp_path / "images" / "n10.png").unlink()
    refused(r"a list names .*n10.png, which is missing", error=FileNotFoundError)
