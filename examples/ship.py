"""From a trained network to an int8 ONNX file: docs/tutorials/ship.md as a program.

It adapts a small network to rotated images by its similarities, exports it, and asks onnxruntime.
A minute or two on a laptop; `python examples/ship.py FOLDER` writes below FOLDER, else here.
"""

import json
import sys
from pathlib import Path

import onnxruntime
import torch
from PIL import Image

from neural_similarity.lab.cli import main
from neural_similarity.lab.data import load_dataset
from neural_similarity.lab.session import load, open_run

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
start, before, adapted = folder / "start", folder / "before", folder / "adapted"


def nsim(*words: object) -> None:
    """Run a command as in a terminal."""
    if code := main([str(word) for word in words]):
        raise SystemExit(code)


# A backbone: plain, trained for a moment. Yours would be timm:resnet18, or a run of hours.
small = ("--dataset", "embedded", "--model", "resnet20", "--width", 0.25, "--batch-size", 32)
nsim("train", *small, "--similarity", "none", "--steps", 120, "--out", start)

# Photographs of a camera that hangs askew: one folder for each class, in the backbone's order.
data = load_dataset("embedded")
for part, subset, count in (("train", data.train, 20), ("test", data.test, 40)):
    for label, name in enumerate(data.train.classes):
        place = folder / "photographs" / part / f"{label} {name.replace('/', '-')}"
        place.mkdir(parents=True, exist_ok=True)
        for index in torch.nonzero(subset.labels == label)[:count, 0].tolist():
            image = Image.fromarray(subset.pixels[index, 0].numpy())
            image.rotate(30, Image.Resampling.BILINEAR).save(place / f"{index}.png")

# M learns, running statistics follow. Kilobytes hold what was learned.
images = ("--backbone", start, "--data", folder / "photographs", "--classifier", "kept")
images += ("--flip", False, "--crop", 0)
none = ("--train", "nothing", "--steps", 1)
nsim("train", "adapt", *images, *none, "--out", before)
nsim("train", "adapt", *images, "--train", "M", "--norm", "train", "--steps", 60, "--out", adapted)

# M folds into the kernels, and they become int8; the command checks what it wrote.
file = folder / "network.onnx"
nsim("export", adapted, "--format", "onnx", "--int8", "--out", file)

# Deployed: onnxruntime, and what the file says of its input.
session = onnxruntime.InferenceSession(file)
facts = session.get_modelmeta().custom_metadata_map
mean, std = (torch.tensor(json.loads(facts[key])).view(-1, 1, 1) for key in ("mean", "std"))
pixels = torch.randint(256, (3, len(mean), 28, 28), dtype=torch.uint8)
(logits,) = session.run(None, {"images": ((pixels / 255 - mean) / std).numpy()})
print(json.loads(facts["classes"])[logits[0].argmax()], logits.shape)

run = open_run(adapted)
with torch.no_grad():
    whole = load(run)(run.preprocess(pixels))
print(f"int8 is {(torch.from_numpy(logits) - whole).abs().max():.3f} from the run's own logits")
