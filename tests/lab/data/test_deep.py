"""Images of 16 bits or of more than three channels keep both."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from neural_similarity.lab.data import Preprocess
from neural_similarity.lab.data.decoding import read_header, read_pixels
from neural_similarity.lab.data.deep import Depth
from neural_similarity.lab.data.images import Images
from neural_similarity.lab.data.registry import load_folder
from neural_similarity.lab.data.transforms import join_pixels

tifffile = pytest.importorskip("tifffile")
GREY = {"photometric": "minisblack", "planarconfig": "contig"}


def draw_values(channels, dtype, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(np.iinfo(dtype).max + 1, size=(10, 12, channels), dtype=dtype)


VALUES = draw_values(4, np.uint16)
FLOATS = VALUES.astype(np.float32)


@pytest.mark.parametrize(
    ("channels", "dtype", "options"),
    [
        (1, np.uint16, {}),
        (1, np.uint16, {"byteorder": ">"}),
        (2, np.uint8, GREY),
        (3, np.uint16, {}),
        (4, np.uint8, GREY),
        (4, np.uint16, {}),
        (4, np.uint16, {"bigtiff": True}),
        (4, np.uint16, {"compression": "zlib", "predictor": True}),
        (5, np.uint8, {**GREY, "planarconfig": "separate"}),
    ],
)
def test_values_are_those_of_the_file(tmp_path, channels, dtype, options):
    values = draw_values(channels, dtype)
    stored = np.moveaxis(values, -1, 0) if options.get("planarconfig") == "separate" else values
    tifffile.imwrite(tmp_path / "a.tif", stored[..., 0] if channels == 1 else stored, **options)
    header = read_header(tmp_path / "a.tif")
    assert (header.mode, header.size) == (Depth(channels, values.itemsize * 8), (12, 10))
    pixels = read_pixels(tmp_path / "a.tif", header.mode, header.size)
    assert pixels.dtype == (np.uint8 if dtype == np.uint8 else np.int32)
    assert np.array_equal(pixels, np.moveaxis(values, -1, 0))


def test_pillow_reads_grey_without_tifffile(tmp_path, monkeypatch):
    values = draw_values(1, np.uint16)[..., 0]
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for name in ("a.tif", "a.png"):
        Image.fromarray(values).save(tmp_path / name)
        assert not read_header(tmp_path / name).paged
        assert np.array_equal(read_pixels(tmp_path / name, Depth(1, 16), (12, 10))[0], values)


def test_a_missing_tifffile_is_named_with_its_extra(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", draw_values(4, np.uint16))
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ValueError, match=r"a\.tif .*4 channels of 16 bits needs tifffile.*tiff"):
        read_pixels(tmp_path / "a.tif", Depth(4, 16), (12, 10))


@pytest.mark.parametrize("channels", [1, 4])
def test_further_pages_are_known(tmp_path, channels):
    for pages in (1, 2):
        values = np.stack([draw_values(channels, np.uint16).squeeze()] * pages)
        tifffile.imwrite(tmp_path / "a.tif", values, **(GREY if channels > 1 else {}))
        assert read_header(tmp_path / "a.tif").paged == (pages > 1)


def test_resizing_keeps_16_bits(tmp_path):
    """Every channel is a ramp; the middle of its resized values is that of the ramp."""
    ramp = np.linspace(1000, 60_000, 40).astype(np.uint16)
    values = np.stack([np.tile(ramp, (40, 1)) // (c + 1) for c in range(4)], -1)
    tifffile.imwrite(tmp_path / "a.tif", values)
    pixels = read_pixels(tmp_path / "a.tif", Depth(4, 16), (10, 10))
    means = values.reshape(40, 10, 4, 4).mean((0, 2))  # (10, channels)
    assert np.abs(pixels[:, :, 1:-1] - means.T[:, None, 1:-1]).max() < 2


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:300]), "must be an image, but"),
        (lambda file: tifffile.imwrite(file, FLOATS, **GREY), "32-bit other numbers"),
        (lambda file: tifffile.imwrite(file, VALUES[..., :3]), r"other\.tif of 3 channels of 16"),
        (lambda file: Image.new("RGB", (12, 10)).save(file), r"other\.tif of 8 bits, RGB"),
    ],
    ids=["cut", "float", "channels", "bits"],
)
def test_a_file_unlike_the_others_is_named(tmp_path, write, message):
    for name in ("a/one", "a/two", "b/one", "b/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        tifffile.imwrite(tmp_path / f"{name}.tif", VALUES)
    write(tmp_path / "b" / "other.tif")
    with pytest.raises(ValueError, match=message) as error:
        load_folder(tmp_path)
    assert "other.tif" in str(error.value)
    assert "\n" not in str(error.value)


def test_16_bits_scale_as_8_do():
    """257 x of 16 bits is x of 8: the same statistics, the same input of the network."""
    narrow = torch.randint(256, (6, 4, 5, 5), dtype=torch.uint8)
    labels = torch.zeros(6, dtype=torch.int64)
    sets = [Images(x, labels, ("a",)) for x in (narrow, narrow.int() * 257)]
    fits = [Preprocess.fit_to_images(images) for images in sets]
    assert fits[0] == fits[1]
    assert torch.equal(fits[0](sets[0].pixels), fits[0](sets[1].pixels))
    assert torch.equal(join_pixels([*narrow, sets[1].pixels[0]])[0], sets[1].pixels[0])


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["quickstart", "adapt"])
def test_a_run_on_four_channels_of_16_bits(tmp_path, nsim, recipe):
    for c, name in enumerate(("dark", "light")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(10):
            values = draw_values(4, np.uint16, index) // 4 + c * 40_000
            tifffile.imwrite(tmp_path / "images" / name / f"{index}.tif", values[:, :10])
    words = f"train {recipe} --dataset folder --data {tmp_path / 'images'} --device cpu"
    words += " --steps 2 --drops --batch-size 8 --crop 0"
    if recipe == "adapt":
        words += " --backbone timm:resnet18 --pretrained False --image-size 32"
    run = tmp_path / "run"
    nsim(f"{words} --out {run}")
    nsim(f"evaluate {run} --device cpu")
    nsim(f"report {run} --out {tmp_path / 'report.html'}")
    nsim(f"predict {run} --device cpu", tmp_path / "images" / "dark" / "0.tif")
    Image.new("RGB", (12, 10)).save(tmp_path / "rgb.png")
    told = nsim(f"predict {run} --device cpu", tmp_path / "rgb.png", code=1).err
    assert "rgb.png must have 4 channels, got 3" in told
