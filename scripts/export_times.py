"""Seconds of `nsim export` for thirty networks of timm and more; write the page.

    uv run python scripts/export_times.py            # networks that the record lacks
    uv run python scripts/export_times.py resnet18   # these, again

Each network has random weights, a static full M and one step of training on images of its usual
size. Written is ONNX, or pt2 where ONNX cannot hold the network, by the defaults, in one thread,
from the start of Python to the comparison of the file with torch. CPU seconds do not grow where
other programs run beside it, as seconds do.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import timm
from PIL import Image
from sweep import ROOT, read_rows, write_page, write_record

from neural_similarity.lab import cli
from neural_similarity.lab.train.environment import checkout_commit

RECORD = ROOT / "results" / "timm-export.json"
MARKS = "<!-- export -->\n", "<!-- end of export -->\n"
TF = (
    "tf_efficientnet_b0 tf_efficientnet_cc_b0_4e tf_efficientnet_es tf_efficientnet_lite0 "
    "tf_efficientnetv2_b0 tf_efficientnetv2_s tf_mixnet_s tf_mobilenetv3_large_075 "
    "tf_mobilenetv3_large_minimal_100 tf_mobilenetv3_small_075 tf_mobilenetv3_small_minimal_100"
).split()
"""One network of every kind that begins with tf_."""
OTHERS = (
    "convnext_atto densenet121 dm_nfnet_f0 eca_nfnet_l0 edgenext_xx_small efficientnet_b0 "
    "fastvit_t8 ghostnet_100 hgnetv2_b0 inception_next_atto mobilenetv2_050 mobilenetv4_conv_small "
    "mnasnet_small regnety_002 repvgg_a0 resnet18 resnet50 resnetv2_50x1_bit vgg11_bn"
).split()
IMAGES = 10
"""Images of each of two classes."""


def write_images(folder, size):
    """Noise, by class."""
    random = np.random.default_rng(0)
    for name in ("one", "other"):
        (folder / name).mkdir(parents=True)
        for index in range(IMAGES):
            pixels = random.integers(0, 256, (size, size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


def run_command(*words):
    """CPU seconds and seconds of an `nsim` process in one thread, and what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [str(Path(sys.executable).with_name("nsim")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, seconds, done.stdout + done.stderr


def time_export(name):
    """A row: the image size, whether others are taken, the format, and seconds."""
    size = timm.get_pretrained_cfg(name).input_size[-1]
    with tempfile.TemporaryDirectory() as folder:
        images, run = Path(folder) / "images", Path(folder) / "run"
        write_images(images, size)
        words = (
            "train adapt --pretrained False --steps 1 --drops --lr 0.001 --batch-size 4 --threads 1"
        ).split()
        words += ["--backbone", f"timm:{name}", "--data", str(images), "--out", str(run)]
        if cli.main(words):
            raise RuntimeError(f"{name} cannot be trained")
        kind = "onnx"
        try:
            cpu, seconds, printed = run_command("export", run)
        except RuntimeError as error:
            if "torch.onnx cannot write" not in str(error):
                raise
            kind = "pt2"
            cpu, seconds, printed = run_command("export", run, "--format", kind)
    sizes = "this size" if "pixels alone\n" in printed else "any size"
    row = {"pixels": size, "takes": sizes, "format": kind}
    return row | {"cpu": round(cpu, 1), "seconds": round(seconds, 1)}


def table_of(rows):
    """The page's table."""
    lines = [
        "| network | pixels | the file takes | format | CPU seconds |",
        "|---|--:|---|---|--:|",
    ]
    for name, row in rows.items():
        cells = (str(row[key]) for key in ("pixels", "takes", "format", "cpu"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(names):
    """Time these networks, or those that the record lacks; print, keep and show each."""
    rows = read_rows(RECORD)
    commit = checkout_commit()  # before this changes the record
    for name in names or [name for name in TF + OTHERS if name not in rows]:
        rows[name] = time_export(name) | {"commit": commit}
        sys.stdout.write(f"{name}: {rows[name]}\n")
        sys.stdout.flush()
        write_record(RECORD, rows)
    write_page(table_of(read_rows(RECORD)), MARKS)


if __name__ == "__main__":
    main(sys.argv[1:])
