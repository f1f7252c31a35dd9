import pytest

from neural_similarity.lab.data import NAMES, load


@pytest.mark.parametrize(
    ("name", "nearest"), [("cifar-10", "cifar10"), ("fashionmnist", "fashion-mnist"), ("x", "")]
)
def test_unknown_name(name, nearest):
    match = rf"`name` must be one of {', '.join(NAMES)}, got '{name}'; nearest: {nearest}"
    with pytest.raises(ValueError, match=match):
        load(name)


def test_image_size_is_for_folders():
    with pytest.raises(
        ValueError, match="for the data sets folder and imagenet, got 32 for embedded"
    ):
        load("embedded", image_size=32)
