"""Images as people have them: the right pixels, or an error that names the file."""

import os
import re
import resource
import signal
import socket
import struct
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_imagenet import write_jpeg

from neural_similarity.lab.data import decoding
from neural_similarity.lab.data.decoding import (
    read_centre,
    read_header,
    read_pixels,
    read_random_window,
    work_ahead,
)

SIZE = (48, 32)
"""Width and height of the scene."""


def scene(mode="RGB"):
    """Four flat quarters of whole blocks, which JPEG keeps."""
    values = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    values[:16, :24], values[:16, 24:] = (200, 40, 40), (40, 200, 40)
    values[16:, :24], values[16:, 24:] = (40, 40, 200), (220, 220, 220)
    return Image.fromarray(values).convert(mode)


EXACTLY = {"jpg": {"quality": 100, "subsampling": 0}, "webp": {"lossless": True}}


def pixels_of(path, mode="RGB", size=None):
    return read_pixels(path, mode, size or read_header(path).size)


def as_array(image):
    values = np.asarray(image)
    return values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)


TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera's picture lies in the file (the inverse of what shows it upright)."""


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_cameras_that_were_turned(tmp_path, orientation, suffix):
    path = tmp_path / f"turned.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = scene()
    stored = image.transpose(TRANSPOSES[orientation]) if orientation > 1 else image
    stored.save(path, exif=exif, **EXACTLY.get(suffix, {}))
    assert read_header(path).size == SIZE
    assert np.abs(pixels_of(path).astype(int) - as_array(image)).max() < 4
    image.save(tmp_path / "upright.png")
    for read in (read_centre, window):
        found = read(path, 21).astype(int)
        assert np.abs(found - read(tmp_path / "upright.png", 21)).max() < 4


def window(path, size):
    return read_random_window(path, size, torch.Generator().manual_seed(0))


def transparent(mode):
    """The scene with its right half cleared, in one of the ways to say so."""
    if mode in ("RGBA", "LA"):
        image = scene("RGBA")
        alpha = np.full(SIZE[::-1], 255, np.uint8)
        alpha[:, 24:] = 0
        image.putalpha(Image.fromarray(alpha))
        return image.convert(mode), {}
    image = scene("RGB")
    image.paste((1, 2, 3), (24, 0, 48, 32))
    if mode == "RGB":
        return image, {"transparency": (1, 2, 3)}
    if mode == "L":
        grey = scene("L")
        grey.paste(7, (24, 0, 48, 32))
        return grey, {"transparency": 7}
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    return palette, {"transparency": palette.getpixel((30, 3))}


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [(mode, "png") for mode in ("RGBA", "LA", "RGB", "L", "P")]
    + [(mode, "webp") for mode in ("RGBA", "LA")]
    + [(mode, "gif") for mode in ("RGBA", "L", "P")],
)
def test_transparent_pixels_are_white(tmp_path, mode, suffix):
    path = tmp_path / f"clear.{suffix}"
    image, options = transparent(mode)
    image.save(path, **options, **EXACTLY.get(suffix, {}))
    grey = mode in ("L", "LA")
    if suffix == "png":
        assert read_header(path).mode == ("L" if grey else "RGB")
    found = pixels_of(path)
    assert (found[:, :, 24:] == 255).all()
    kept = as_array(scene("L" if grey else "RGB").convert("RGB"))[:, :, :24]
    assert np.abs(found[:, :, :24].astype(int) - kept).max() < 3


def test_half_transparent_pixels_lie_on_white(tmp_path):
    path = tmp_path / "half.png"
    Image.new("RGBA", (4, 4), (0, 100, 200, 51)).save(path)
    assert pixels_of(path)[:, 0, 0].tolist() == [204, 224, 244]
    Image.new("LA", (4, 4), (100, 51)).save(path)
    assert pixels_of(path, "L")[:, 0, 0].tolist() == [224]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "RGB"])
@pytest.mark.parametrize("suffix", ["tif", "jpg", "png"])
def test_modes_of_8_bits(tmp_path, mode, suffix):
    path = tmp_path / f"mode.{suffix}"
    try:
        scene(mode).save(path, **EXACTLY.get(suffix, {}))
    except OSError:
        pytest.skip("the format has no such mode")
    found = pixels_of(path).astype(int)
    expected = as_array(scene(mode).convert("RGB")).astype(int)
    assert np.abs(found - expected).mean() < 4


def test_colours_of_16_bits_lose_their_low_byte(tmp_path):
    """Pillow writes none, so by hand."""
    values = np.random.default_rng(0).integers(65536, size=(5, 4, 3), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    (tmp_path / "deep.png").write_bytes(png(4, 5, zlib.compress(rows), depth=16))
    assert np.array_equal(pixels_of(tmp_path / "deep.png"), as_array(values >> 8))


def png(width, height, data, depth=8):
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    parts = part(b"IHDR", header), part(b"IDAT", data), part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def part(name, content):
    """A chunk of a PNG file."""
    body = name + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_of_animated_images_the_first_one(tmp_path, suffix):
    path = tmp_path / f"frames.{suffix}"
    frames = [scene(), Image.new("RGB", SIZE, "black"), Image.new("RGB", SIZE, "red")]
    frames[0].save(path, save_all=True, append_images=frames[1:], **EXACTLY.get(suffix, {}))
    assert read_header(path).paged
    assert np.abs(pixels_of(path).astype(int) - as_array(scene())).max() < 3


def strange_files(folder):
    """Files that are not images, by their names."""
    scene().save(folder / "whole.png")
    whole = (folder / "whole.png").read_bytes()
    (folder / "truncated.png").write_bytes(whole[:60])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("hello")
    (folder / "program.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (folder / "broken.png").symlink_to(folder / "nowhere")
    (folder / "looping.png").symlink_to(folder / "looping.png")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "device.png").symlink_to("/dev/zero")
    address = folder / "socket.png"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
    return sorted(path for path in folder.iterdir() if path.name != "whole.png")


def test_what_is_no_image_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in strange_files(tmp_path):
        for read in (
            read_header,
            lambda path: read_centre(path, 8),
            lambda path: read_pixels(path, "RGB", (8, 8)),
        ):
            if path.name == "truncated.png" and read is read_header:
                continue
            with pytest.raises(
                ValueError, match=rf"^{re.escape(str(path))} must be an image, but"
            ) as error:
                in_time(read, path)
            assert "<" not in str(error.value)


def in_time(read, path, seconds=5):
    """What `read` makes of a file; a pipe that was opened is closed from the other end."""
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(read, path)
        try:
            return work.result(seconds)
        except TimeoutError:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            pytest.fail(f"{path.name} is waited for")


def test_images_that_would_fill_the_memory(tmp_path):
    """13,400 x 13,400 pixels in 500 KB, and one of a single row that its aspect would blow up."""
    huge = tmp_path / "huge.png"
    squeeze, row = zlib.compressobj(1), bytes(1 + 3 * 13_400)
    packed = b"".join(squeeze.compress(row) for _ in range(100)) + squeeze.flush()
    huge.write_bytes(png(13_400, 13_400, packed))
    thin = tmp_path / "thin.png"
    Image.new("L", (3_000_000, 1)).save(thin)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for path in (huge, thin):
        for read in (
            lambda path: read_centre(path, 224),
            lambda path: read_pixels(path, "RGB", (84, 84)),
        ):
            reason = "178,956,970 pixels; scale it down" if path == huge else "pixels would become"
            match = rf"{path.name} must be an image, but .*{reason}"
            with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=match):
                read(path)
    scene().save(tmp_path / "large.bmp")
    content = bytearray((tmp_path / "large.bmp").read_bytes())
    content[18:26] = struct.pack("<ii", 13_300, 13_300)
    (tmp_path / "large.bmp").write_bytes(content)
    assert read_header(tmp_path / "large.bmp").size == (13_300, 13_300)
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize("chunk", [b"zTXt", b"iCCP", b"iTXt", b"IDAT"])
def test_two_gibibytes_in_a_chunk(tmp_path, chunk):
    squeeze = zlib.compressobj()
    start = squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    again = squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    bomb = start + again * 2047
    head = {b"zTXt": b"a\0\0", b"iCCP": b"a\0\0", b"iTXt": b"a\0\1\0\0\0", b"IDAT": b""}[chunk]
    path = tmp_path / "small.png"
    whole = png(4, 4, bomb if chunk == b"IDAT" else zlib.compress(bytes(52)))
    inside = whole[:33] + part(chunk, head + bomb) + whole[33:]
    path.write_bytes(whole if chunk == b"IDAT" else inside)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    try:
        assert not pixels_of(path).any()
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"{path} must be an image, but cannot be read: ")
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_damaged_metadata_is_no_matter(tmp_path):
    path = tmp_path / "odd.jpg"
    scene().save(path, **EXACTLY["jpg"], exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01")
    assert np.abs(pixels_of(path).astype(int) - as_array(scene())).max() < 4


@pytest.mark.parametrize(
    ("suffix", "shape", "size", "orientation", "decoded"),
    [
        ("jpg", (800, 600), (20, 20), 1, (100, 75)),
        ("jpg", (800, 600), (20, 20), 6, (75, 100)),
        ("jpg", (800, 600), (64, 64), 1, (400, 300)),
        ("jpg", (800, 600), (200, 200), 1, (800, 600)),
        ("jpg", (130, 640), (20, 20), 1, (65, 320)),
        ("jpg", (90, 640), (20, 20), 1, (90, 640)),
        ("jpg", (64, 64), (128, 128), 1, (64, 64)),
        ("png", (800, 600), (20, 20), 1, (800, 600)),
    ],
)
def test_a_draft_is_decoded_at_a_fraction(
    tmp_path, monkeypatch, suffix, shape, size, orientation, decoded
):
    """It has thrice the sides that are asked for, at least; no fraction, no difference."""
    path, seen, cover = tmp_path / f"photo.{suffix}", [], decoding._cover_size
    write_jpeg(path, 0, shape)
    exif = Image.Exif()
    exif[0x0112] = orientation
    noise = np.random.default_rng(0).normal(0, 4, (*shape[::-1], 3))
    values = (np.asarray(Image.open(path)) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(values).save(path, exif=exif)
    monkeypatch.setattr(decoding, "_cover_size", lambda *a: seen.append(a[0].size) or cover(*a))
    whole, draft = (read_pixels(path, "RGB", size, draft=draft) for draft in (False, True))
    assert seen == [shape if orientation == 1 else shape[::-1], decoded]
    assert np.abs(whole.astype(int) - draft).mean() < (1 if seen[0] != decoded else 1e-9)


@pytest.mark.parametrize("size", [(50, 40), (31, 67), (8, 90), (90, 7)])
def test_random_windows_are_functions_of_their_generator(tmp_path, size):
    """And not of torch's own, which stays. A ramp shows which window of the image it is."""
    path = tmp_path / "ramp.png"
    ramp = np.zeros((size[1], size[0], 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(size[0]), np.arange(size[1])[:, None]
    Image.fromarray(ramp).save(path)
    windows = set()
    for seed in range(20):
        draws = [torch.Generator().manual_seed(seed) for _ in range(3)]
        found = read_random_window(path, 24, draws[0])
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        assert np.array_equal(found, read_random_window(path, 24, draws[1]))
        flipped = read_random_window(path, 24, draws[2], flip=True)
        assert np.array_equal(flipped, found) or np.array_equal(flipped[:, ::-1], found)
        assert torch.equal(torch.get_rng_state(), before)
        windows.add(found.tobytes())
    assert len(windows) > 5


@pytest.mark.parametrize("size", [(50, 40), (31, 67), (256, 256), (500, 375), (23, 23)])
@pytest.mark.parametrize("side", [24, 84, 224])
def test_centres_are_those_of_the_resized_image(tmp_path, size, side):
    """By Pillow alone, so that no version of torchvision changes what a network is scored on."""
    path = tmp_path / "image.JPEG"
    write_jpeg(path, 0, size)
    shorter = round(side * 256 / 224)
    whole = tuple(shorter * length // min(size) for length in size)
    left, top = (round((length - side) / 2) for length in whole)
    image = Image.open(path).convert("RGB").resize(whole, Image.Resampling.BILINEAR)
    expected = np.asarray(image.crop((left, top, left + side, top + side)))
    assert np.array_equal(read_centre(path, side), expected)


def test_images_of_more_than_8_bits_are_refused(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.linspace(0, 60_000, 900).astype(np.uint16).reshape(30, 30)).save(path)
    message = r"deep\.png must have 8 bits per channel, got the mode I;16"
    with pytest.raises(ValueError, match=message):
        read_centre(path, 24)
    with pytest.raises(ValueError, match=message):
        read_random_window(path, 24, torch.Generator())


def square(number):
    return torch.tensor(number * number)


def process(_):
    return os.getpid()


def handlers(_):
    found = (signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM))
    return torch.tensor([int(handler) if isinstance(handler, int) else -1 for handler in found])


def test_work_is_done_in_order_by_other_processes_which_leave_ctrl_c_to_training():
    assert list(work_ahead(square, range(7), workers=2)) == [square(i) for i in range(7)]
    assert next(work_ahead(process, range(3), workers=1)) != os.getpid()
    assert next(work_ahead(process, range(3), workers=0)) == os.getpid()
    (found,) = work_ahead(handlers, range(1), workers=1)
    assert found.tolist() == [signal.SIG_IGN, signal.SIG_DFL]
