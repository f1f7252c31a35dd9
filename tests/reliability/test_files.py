"""Files of data that are damaged or hostile: a clear error, within the memory there is."""

import os
import pickle
import pickletools
import random
import subprocess
import sys

import numpy as np
import pytest
from lab.data.test_unpickling import BYTES, FIELDS, HOSTILE, Made, array
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


CHILD = """
import resource, sys
from pathlib import Path
from neural_similarity.lab.data.pickles import _read_part
from neural_similarity.lab.data.unpickling import unpickle_arrays

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, flush=True)
    for read in (unpickle_arrays, _read_part):
        try:
            repr(read(path))
        except ValueError as error:
            assert str(path) in str(error), error
"""


def hostile_pickles(count, seed):
    """Damaged good ones, hostile ones inside of good ones, and programs of random instructions."""
    draw = random.Random(seed)
    pixels = np.zeros((4, 2, 2, 3), np.uint8)
    good = {"image_data": pixels, "class_dict": {"a": [0, 1], "b": np.arange(2, 4)}}
    older = {"data": pixels, "labels": ["a", "a", "b", "b"]}
    made = [*HOSTILE.values(), array(Made(np.dtype, ("V8",), FIELDS), b"A" * 32, (4,))]
    codes = [code.code.encode("latin1") for code in pickletools.opcodes]
    for number in range(count):
        protocol = draw.randrange(pickle.HIGHEST_PROTOCOL + 1)
        value = dict(draw.choice([good, older]))
        if number % 3 == 0:
            value[draw.choice([*value, "labels", "class_dict"])] = draw.choice(made)
        content = bytearray(pickle.dumps(value, protocol))
        for _ in range(draw.choice([0, 1, 2, 5, 20])):
            place = draw.randrange(len(content))
            new = draw.choice([bytes([draw.randrange(256)]), draw.choice(codes), b""])
            content[place : place + draw.choice([0, 1, 1, 4])] = new * draw.choice([1, 1, 1, 3])
        if number % 3 == 1:
            program = [
                draw.choice(codes) + draw.randbytes(draw.choice([0, 1, 4])) for _ in "1" * 30
            ]
            start = draw.randrange(len(content))
            content[start:start] = b"".join(program)
        yield bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_hostile_pickles(tmp_path, seed):
    """300 in each of four processes: whatever they do, a clear error names the file."""
    for name, content in BYTES.items() if seed == 0 else ():
        (tmp_path / f"{name}.pkl").write_bytes(content)
    for number, content in enumerate(hostile_pickles(300, seed)):
        (tmp_path / f"{number:03}.pkl").write_bytes(content)
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    last = tmp_path / (done.stdout.split("\n")[-2] if done.stdout else "none")
    assert done.returncode == 0, f"{last.name}: {done.returncode} {done.stderr[-500:]}"
    record("hostile pickles", tried=4 * 300, errors=0)
