"""Files of data that are damaged or hostile: a clear error, within the memory there is."""

import os
import random
from pathlib import Path

import pytest
from lab.data.test_unpickling import test_hostile_pickles_crash_nothing as crash_nothing
from PIL import Image
from reliability.calls import bounded as bounded
from reliability.counts import record

from neural_similarity.files import read_json
from neural_similarity.lab.data.decoding import read_header, read_pixels
from neural_similarity.lab.data.listing import read_image_list

FILES = int(os.environ.get("RELIABILITY_CALLS", "400"))
PIECES = [
    b"", b"\x00", b"\xff" * 4, b"\x00" * 5000, b"../", b"/etc/passwd", b"\x1b[2J", b",", b'"',
    b"\n", b"[" * 100_000, b"9" * 5000, b"\xed\xa0\x80", b"{", b"IDAT", b"IEND",
    b"\x7f\xff\xff\xff",
]  # fmt: skip


def damaged(chance, content):
    """The content with some pieces replaced, or cut short."""
    content = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(content) + 1)
        content[place : place + chance.choice([0, 1, 4, 100])] = chance.choice(PIECES)
    return bytes(content[: chance.choice([None, None, chance.randrange(len(content) + 1)])])


def image(path):
    read_header(path)
    read_pixels(path, "RGB", (8, 8))


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
def test_damaged_files(tmp_path):
    chance, deep = random.Random(2019), {}
    (tmp_path / "images").mkdir()
    for name, kind in (("a.png", "RGB"), ("b.jpg", "L"), ("c.gif", "P"), ("d.webp", "RGB")):
        Image.effect_noise((40, 30), 50).convert(kind).save(tmp_path / "images" / name)
    lists = b"filename,label\na.png,ant\nb.jpg,bee\n"
    images = list((tmp_path / "images").iterdir())
    goods = {
        **{path: (path.read_bytes(), image) for path in images},
        tmp_path / "train.csv": (lists, read_image_list),
        tmp_path / "list.json": (b'{"a": [1, {"b": null}]}', read_json),
    }
    for _ in range(FILES):
        path = chance.choice(list(goods))
        content, read = goods[path]
        path.write_bytes(damaged(chance, content))
        try:
            read(path)
        except (ValueError, FileNotFoundError):
            pass
        except Exception as error:
            deep[f"{path.name}: {error!r:.200}"] = error
        path.write_bytes(content)
    record("damaged archives, images and lists", tried=FILES, errors=len(deep))
    assert not deep, "\n".join(deep)


@pytest.mark.slow
def test_hostile_pickles(tmp_path):
    for seed in range(4):
        folder = Path(tmp_path, str(seed))
        folder.mkdir()
        crash_nothing(folder, seed)
    record("hostile pickles", tried=4 * 300, errors=0)
