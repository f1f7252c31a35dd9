import numpy as np
import pytest
import torch
from PIL import Image
from tiny_folders import check, picture, write_classes, write_csv, write_folders

from neural_similarity.lab.data import load_split
from neural_similarity.lab.data.cifar import CIFAR100
from neural_similarity.lab.data.class_split import CLASS_PARTS, random_split
from neural_similarity.lab.data.splits import SPLITS, load_cifar_split


def test_folders_of_parts(tmp_path):
    pixels = write_folders(tmp_path)
    split = load_split("classes", tmp_path, image_size=6)
    check(split)
    for part in CLASS_PARTS:
        assert np.array_equal(split.images_of_part(part).pixels.numpy(), pixels[part])
    both = split.images_of_part("train+val")
    assert both.classes == ("ant", "bee", "cat")
    assert both.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="`name` must be one of train, val, test"):
        split.images_of_part("valid")


def test_mini_imagenet_as_images_and_lists(tmp_path):
    folder = write_csv(tmp_path / "mini-imagenet")
    split = load_split("mini-imagenet", tmp_path, image_size=6)
    check(split)
    expected = np.asarray(Image.open(folder / "images" / "bee1.png")).transpose(2, 0, 1)
    assert np.array_equal(split.train.pixels[3].numpy(), expected)


def test_mini_imagenet_is_never_split_at_random(tmp_path):
    for name in ("ant", "bee", "cat", "dog"):
        picture(tmp_path / name / "0.png", 0)
    with pytest.raises(FileNotFoundError, match=r"mini-imagenet is missing; it must hold images/ "):
        load_split("mini-imagenet", tmp_path)
    picture(tmp_path / "mini-imagenet" / "ant" / "0.png", 0)
    with pytest.raises(FileNotFoundError, match=r"mini-imagenet lacks its parts; it must hold"):
        load_split("mini-imagenet", tmp_path)


def test_classes_are_shared_out_at_random_always_alike(tmp_path):
    names = [f"class{i:03}" for i in range(25)]
    split = random_split(names)
    assert [len(split[part]) for part in CLASS_PARTS] == [16, 4, 5]
    assert sorted(name for part in CLASS_PARTS for name in split[part]) == names
    assert random_split(names) == split
    assert random_split(names, seed=1) != split
    write_classes(tmp_path, names, each=1)
    assert load_split("classes", tmp_path, image_size=6).test.classes == split["test"]
    with pytest.raises(ValueError, match=r"at least 3 classes, got 2"):
        random_split(names[:2])


@pytest.mark.parametrize(("name", "counts"), [("cifar-fs", (64, 16, 20)), ("fc100", (60, 20, 20))])
def test_cifar_splits(tmp_path, name, counts):
    names = [line for part in SPLITS["cifar-fs"].values() for line in part]
    names += [line for part in SPLITS["fc100"].values() for line in part if line not in names]
    names += [f"other{i}" for i in range(100 - len(names))]
    folder = tmp_path / CIFAR100.layouts[0].folder
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("\n".join(names))
    for file, each in (("train.bin", 2), ("test.bin", 1)):
        records = np.zeros((100 * each, 2 + 3072), np.uint8)
        records[:, 1] = np.arange(100 * each) % 100
        records[:, 2] = records[:, 1]
        (folder / file).write_bytes(records.tobytes())
    split = load_cifar_split(name, tmp_path, counts=(200, 100))
    assert tuple(len(split.images_of_part(part).classes) for part in CLASS_PARTS) == counts
    for part in CLASS_PARTS:
        images = split.images_of_part(part)
        assert torch.bincount(images.labels).tolist() == [3] * len(images.classes)
        shown = [names[i] for i in images.pixels[:, 0, 0, 0].tolist()]
        assert shown == [images.classes[label] for label in images.labels.tolist()]


def test_fc100_has_no_superclass_in_two_parts():
    """Those of TADAM (supplement): 8, 11, 13, 16 and 0, 7, 12, 14 of CIFAR-100's, by its page."""
    superclasses = {
        "val": [
            "bear leopard lion tiger wolf",
            "camel cattle chimpanzee elephant kangaroo",
            "crab lobster snail spider worm",
            "hamster mouse rabbit shrew squirrel",
        ],
        "test": [
            "beaver dolphin otter seal whale",
            "bee beetle butterfly caterpillar cockroach",
            "fox porcupine possum raccoon skunk",
            "baby boy girl man woman",
        ],
    }
    for part, classes in superclasses.items():
        assert sorted(SPLITS["fc100"][part]) == sorted(" ".join(classes).split())


def test_embedded():
    split = load_split("embedded")
    assert [len(split.images_of_part(part)) for part in CLASS_PARTS] == [5000, 2000, 3000]
    assert split.test.classes == ("Dress", "Shirt", "Ankle boot")
    with pytest.raises(ValueError, match="`image_size` is for mini-imagenet, folder"):
        load_split("embedded", image_size=84)


def test_bad_names_and_folders(tmp_path):
    with pytest.raises(ValueError, match=r"got 'mini-imagnet'; nearest: mini-imagenet"):
        load_split("mini-imagnet", tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a folder of images"):
        load_split("classes", tmp_path / "none")
    with pytest.raises(ValueError, match="`image_size` must be at least 1, got 0"):
        load_split("classes", tmp_path, image_size=0)
    write_folders(tmp_path, {"train": ["ant"]})
    with pytest.raises(FileNotFoundError, match=r"val is missing"):
        load_split("classes", tmp_path)


def test_faults_of_lists(tmp_path):
    write_csv(tmp_path)
    (tmp_path / "images" / "cat1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"cat1.png is missing: val names it"):
        load_split("mini-imagenet", tmp_path)
    (tmp_path / "images" / "cat1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cat1.png must be an image, but cannot be read"):
        load_split("mini-imagenet", tmp_path)
    for content, words in (
        ("\ufefffile,class\na,b\n".encode(), r"must have the columns filename and label, got"),
        (b"filename,label\ncat0.png,cat\ncat1.png\n", r"in every line, got 'cat1.png' in line 3"),
        ("filename,label\n".encode("utf-16"), r"val.csv must be in UTF-8, got"),
    ):
        (tmp_path / "val.csv").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            load_split("mini-imagenet", tmp_path)
    (tmp_path / "val.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"val.csv is missing"):
        load_split("mini-imagenet", tmp_path)


def test_an_image_that_is_listed_twice_is_named(tmp_path):
    """In one part it would be support and query, in two it would be known before the test."""
    write_csv(tmp_path)
    for part, label in (("val", "cat"), ("test", "dog")):
        kept = (tmp_path / f"{part}.csv").read_text()
        (tmp_path / f"{part}.csv").write_text(f"{kept}cat0.png,{label}\n")
        with pytest.raises(ValueError, match=r"must have every image once, got .*cat0.png'"):
            load_split("mini-imagenet", tmp_path)
        (tmp_path / f"{part}.csv").write_text(kept)
    assert load_split("mini-imagenet", tmp_path)


@pytest.mark.parametrize("colour", [False, True])
def test_mini_imagenet_has_colour_and_folders_where_one_image_has(tmp_path, colour):
    write_folders(tmp_path / "mini-imagenet")
    paths = sorted((tmp_path / "mini-imagenet").rglob("*.png"))
    for path in paths[colour:]:
        Image.open(path).convert("L").save(path)
    folder = tmp_path / "mini-imagenet"
    channels = [
        load_split(*place, image_size=size).train.pixels.shape[1]
        for size, place in ((6, ("mini-imagenet", tmp_path)), (5, ("classes", folder)))
    ]
    assert channels == [3, 3 if colour else 1]


def test_images_have_84_pixels_unless_another_size_is_given(tmp_path):
    write_folders(tmp_path / "mini-imagenet")
    for place in (("mini-imagenet", tmp_path), ("classes", tmp_path / "mini-imagenet")):
        assert load_split(*place).test.pixels.shape == (2, 3, 84, 84)


def test_the_random_split_of_version_1_stays():
    """Another one would test on classes that earlier runs were trained on."""
    split = random_split(list("abcdefghij"))
    assert [len(split[part]) for part in CLASS_PARTS] == [6, 2, 2]
    found = {part: "".join(names) for part, names in split.items()}
    assert found == {"train": "abcdhi", "val": "gj", "test": "ef"}


def test_cifar_fs_is_that_of_its_authors():
    """By superclass, as torchmeta lists it."""
    val = "beaver otter|flatfish shark|lamp television|beetle butterfly|sea|camel cattle|crab|"
    val += "crocodile|maple_tree|motorcycle|tractor"
    test = "whale|poppy rose|sweet_pepper|telephone|bed table wardrobe|leopard|plain|chimpanzee|"
    test += "fox|snail worm|baby man woman|bicycle pickup_truck|rocket"
    for part, names in (("val", val), ("test", test)):
        assert sorted(SPLITS["cifar-fs"][part]) == sorted(names.replace("|", " ").split())
