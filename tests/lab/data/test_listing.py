"""Folders and lists of images: parts by their names, and nothing outside of the data."""

import os
import re

import pytest
from PIL import Image
from tiny_folders import WANTED, picture, write_classes, write_folders
from torchvision.datasets.folder import IMG_EXTENSIONS

from neural_similarity.files import read_json
from neural_similarity.lab import data
from neural_similarity.lab.data import load_dataset, load_split
from neural_similarity.lab.data.decoding import SUFFIXES
from neural_similarity.lab.data.listing import list_images

TRAIN, TEST = ("train", "Train", "training", "TRAINING"), ("test", "testing", "Test", "val", "dev")


@pytest.mark.parametrize("train", TRAIN)
@pytest.mark.parametrize("test", [*TEST, "valid", "Validation", "DEV"])
def test_parts_have_the_names_that_people_give_them(tmp_path, train, test):
    write_classes(tmp_path / train, each=3)
    write_classes(tmp_path / test)
    dataset = load_dataset("folder", tmp_path)
    assert dataset.train.classes == dataset.test.classes == ("ant", "bee")
    assert (len(dataset.train), len(dataset.test)) == (6, 4)


@pytest.mark.parametrize("val", ["val", "Valid", "validation", "dev"])
def test_parts_of_other_data_sets(tmp_path, val):
    write_classes(tmp_path / "whole" / "Training", each=3)
    write_classes(tmp_path / "whole" / val)
    dataset = load_dataset("imagenet", tmp_path / "whole", image_size=6)
    assert dataset.train.classes == dataset.test.classes == ("ant", "bee")
    for part, names in (("training", ("ant", "bee")), (val, ("cat",)), ("testing", ("dog",))):
        write_classes(tmp_path / "split" / part, names)
    split = load_split("classes", tmp_path / "split", image_size=6)
    parts = [split.images_of_part(part).classes for part in ("train", "val", "test")]
    assert parts == [("ant", "bee"), ("cat",), ("dog",)]
    for part, each in (("training", 4), (val, 3), ("testing", 2)):
        write_classes(tmp_path / "three" / part, each=each)
    assert len(load_dataset("folder", tmp_path / "three").test) == 4


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "dev", "testing"), ("valid",)])
def test_parts_are_no_classes(tmp_path, names):
    """Flat images in all of them; beside other classes, one may be called train."""
    write_classes(tmp_path, names, each=4)
    message = rf"must hold class folders inside of its parts .*{names[0]}.*, got none"
    with pytest.raises(ValueError, match=message):
        load_dataset("folder", tmp_path)
    with pytest.raises(ValueError, match=message):
        load_split("classes", tmp_path)


def test_two_folders_of_one_part(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "training")
    message = "must have one folder of the part train, got train/ and training/"
    with pytest.raises(ValueError, match=message):
        load_dataset("folder", tmp_path)


def listed(folder, rows):
    text = "".join(f"{name},{label}\n" for name, label in rows)
    (folder / "train.csv").write_text(f"filename,label\n{text}")


@pytest.fixture
def source(tmp_path):
    """Ten pictures of two classes, and secrets beside them."""
    folder = tmp_path / "source"
    for number in range(10):
        picture(folder / "images" / f"{number}.png", number)
    picture(tmp_path / "secret.png", 0)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "images" / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "images" / "up").symlink_to(tmp_path)
    (folder / "images" / "text.txt").write_text("no image")
    (folder / "images" / "text.png").write_text("no image")
    os.mkfifo(folder / "images" / "pipe.png")
    return folder


LABELS = ["../out", "..", ".", ".hidden", "a/b", "/out", "a\\b", "a\x00b", "a\x1b[31mb"]
FILES = ["../../secret.png", "/etc/hostname", "{root}/secret.png", "out.png", "up/secret.png"]
NO_IMAGES = ["text.txt", "../../secret.txt", ".", "..", "a\x00.png"]


@pytest.mark.parametrize(
    ("name", "label", "words"),
    [
        *((None, label, r"have plain names as labels, got '") for label in LABELS),
        *((name, "n1", r"name images in .*/images, got '") for name in FILES + NO_IMAGES),
    ],
)
def test_lists_hold_plain_labels_and_images_of_the_folder(tmp_path, source, name, label, words):
    rows = [(f"{number}.png", f'"{label}"') for number in range(4)]
    listed(source, rows + ([(name.format(root=tmp_path), label)] if name else []))
    before = sorted(tmp_path.rglob("*"))
    for read in (
        lambda: data.lay_out(source, tmp_path / "made", held_out=1),
        lambda: load_split("mini-imagenet", source),
    ):
        with pytest.raises(ValueError, match=rf"train\.csv must {words}"):
            read()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["text.png", "pipe.png"])
def test_what_is_listed_is_an_image(tmp_path, source, name):
    listed(source, [*((f"{number}.png", "n1") for number in range(4)), (name, "n1")])
    with pytest.raises((ValueError, FileNotFoundError), match=rf"images/{name}[ ,]"):
        data.lay_out(source, tmp_path / "made", held_out=1)
    assert not (tmp_path / "made").exists()


def test_a_link_inside_of_the_folder_is_laid_out(tmp_path, source):
    (source / "images" / "in.png").symlink_to("0.png")
    listed(source, [("in.png", "n1"), ("1.png", "n1")])
    data.lay_out(source, tmp_path / "made", held_out=1)
    made = tmp_path / "made" / "val" / "n1" / "in.png"
    assert made.read_bytes() == (source / "images" / "0.png").read_bytes()
    assert not made.is_symlink()


@pytest.mark.parametrize("field", ["filename", "label"])
def test_fields_of_lists_that_never_end(source, field):
    row = {"filename": "0.png", "label": "n1"} | {field: "x" * 200_000}
    listed(source, [tuple(row.values())])
    with pytest.raises(ValueError, match=r"train\.csv must be a list of filename,label, got field"):
        load_split("mini-imagenet", source)


@pytest.mark.parametrize("deep", ["[", '{"a":'])
def test_json_that_is_nested_without_end(tmp_path, deep):
    path = tmp_path / "deep.json"
    path.write_text(deep * 100_000)
    with pytest.raises(ValueError, match=r"deep\.json (must be JSON|is nested too deeply)"):
        read_json(path)


def test_files_of_gibibytes_are_not_read(tmp_path):
    """A sparse file, which takes no room on the disk."""
    path = tmp_path / "large.json"
    path.touch()
    os.truncate(path, 10 << 30)
    with pytest.raises(ValueError, match=r"large\.json must hold at most 67,108,864 bytes, got 10"):
        read_json(path)


def test_links_that_lead_back(tmp_path):
    write_classes(tmp_path / "plain")
    (tmp_path / "plain" / "ant" / "again").symlink_to(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"again/ant must not link to a folder that is listed"):
        load_dataset("folder", tmp_path / "plain")
    for name, other in (("x", "y"), ("y", "x")):
        write_classes(tmp_path / "pair" / name, ("ant",))
        (tmp_path / "pair" / name / "ant" / "there").symlink_to(tmp_path / "pair" / other / "ant")
    with pytest.raises(ValueError, match=r"must not link to a folder that is listed already"):
        list_images(tmp_path / "pair")


@pytest.mark.parametrize("kind", ["broken", "looping", "pipe"])
def test_what_cannot_be_read_is_named(tmp_path, kind):
    write_classes(tmp_path)
    path = tmp_path / "bee" / "strange.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "looping" else tmp_path / "nowhere")
    with pytest.raises(ValueError, match=rf"bee.* (must|got) .*{re.escape(str(path))}|{path} must"):
        load_dataset("folder", tmp_path)


def test_links_to_images_elsewhere_are_images(tmp_path):
    """In folders of classes, which are the user's own, as large collections have them."""
    write_classes(tmp_path / "whole", each=3, size=6)
    picture(tmp_path / "store" / "far.png", 0)
    (tmp_path / "whole" / "ant" / "far.png").symlink_to(tmp_path / "store" / "far.png")
    dataset = load_dataset("folder", tmp_path / "whole")
    assert len(dataset.train) + len(dataset.test) == 7


@pytest.mark.parametrize(
    ("name", "parts", "ignored"),
    [
        ("folder", ("train", "eval"), "eval/"),
        ("folder", ("train", "val", "test"), "val/"),
        ("folder", ("train", "test", "extra", "notes"), "extra/, notes/"),
        ("folder", ("train", "test"), None),
        ("folder", ("train", "val"), None),
        ("folder", ("ant", "bee"), None),
        ("imagenet", ("train", "val", "more"), "more/"),
        ("classes", (*WANTED, "more"), "more/"),
    ],
)
def test_folders_beside_the_parts_are_named(tmp_path, caplog, name, parts, ignored):
    more = WANTED | {"more": ["elk"]}
    split = more if name == "classes" else {part: ["ant", "bee"] for part in parts}
    write_folders(tmp_path, split)
    (tmp_path / ".hidden").mkdir()
    load_split(name, tmp_path) if name == "classes" else load_dataset(name, tmp_path)
    told = [text for text in caplog.messages if text.startswith("Warning")]
    assert len(told) == (ignored is not None)
    if ignored:
        assert f"in {tmp_path}, {ignored} is ignored; used are train/" in told[0]


def test_images_of_other_formats_are_counted(tmp_path, caplog):
    write_classes(tmp_path / "train", each=3)
    for name in ("a.HEIC", "b.heic", "c.avif", "d.gif", "notes.txt", ".d.heic"):
        (tmp_path / "train" / "ant" / name).touch()
    list_images(tmp_path / "train")
    (told,) = caplog.messages
    assert told.endswith("train, images of other formats are left out: 1 .avif, 1 .gif, 2 .heic.")
    assert set(IMG_EXTENSIONS) == SUFFIXES


@pytest.mark.parametrize("name", ["folder", "classes"])
def test_files_with_more_pages_are_named(tmp_path, caplog, name):
    """Of a phone's MPO the second image is a preview."""
    write_classes(tmp_path, ("ant", "bee", "cat"), size=6)
    pages = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    for path in ("bee/2.tif", "ant/2.webp", "ant/3.jpg"):
        kind = {"format": "MPO"} if path.endswith("jpg") else {}
        pages[0].save(tmp_path / path, save_all=True, append_images=pages[1:], **kind)
    load_dataset(name, tmp_path) if name == "folder" else load_split(name, tmp_path)
    (told,) = caplog.messages
    start, _, files = told.rstrip(".").partition(" of ")
    assert start == "Warning: the first page alone is used"
    assert sorted(files.split(", ")) == [f"{tmp_path}/{f}" for f in ("ant/2.webp", "bee/2.tif")]


NFC, NFD = "caf\xe9", "cafe\u0301"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": [NFC], "test": [NFD]}, r"test; there is 'cafe\\u0301', which looks .* 'caf"),
        ({"train": [NFC, "a"], "val": ["b"], "test": [NFD]}, "must have no class in common, got"),
    ],
)
def test_names_that_look_the_same_are_shown_apart(tmp_path, caplog, parts, message):
    """As one disk keeps an accent with its letter, and another one apart."""
    for part, names in parts.items():
        write_classes(tmp_path / part, names)
    with pytest.raises(ValueError, match=message):
        load_dataset("folder", tmp_path) if len(parts) == 2 else load_split("classes", tmp_path)
    write_classes(tmp_path / "both", (NFC, NFD))
    list_images(tmp_path / "both")
    assert caplog.messages[-1].endswith(r"the classes 'cafe\u0301' and 'caf\xe9' look the same.")
