"""M in a detector of Ultralytics: a check that it survives training, reload, fusing and export.

Ultralytics is licensed under AGPL-3.0, as is what is derived from it. It is no dependency of this
library: `pip install ultralytics`. The network has random weights and the images are few, so that
the numbers are no result.
"""

import tempfile
from copy import deepcopy
from pathlib import Path

import torch
from PIL import Image
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils.torch_utils import unwrap_model

import neural_similarity as ns
from neural_similarity.lab.data import load_dataset

SIZE, SIDE = 96, 28


class SimilarityTrainer(DetectionTrainer):
    """Trains M and the detector's last layer; everything else stays as it is loaded."""

    def get_model(self, cfg=None, weights=None, verbose=True):
        self.add_callback("on_train_start", refreeze)
        self.add_callback("on_model_save", keep_adapter)
        model = ns.convert(super().get_model(cfg, weights, verbose), "static-full")
        if weights is not None:
            model.load(weights)  # By names: M comes along where the weights have it.
        return model


def refreeze(trainer):
    """Ultralytics lets every parameter train after `get_model`."""
    model = unwrap_model(trainer.model)
    ns.freeze_backbone(model, train=f"model.{len(model.model) - 1}")


def keep_adapter(trainer):
    """Beside best.pt, of the average that is validated, but not in halves.

    The rest of the average is rounded, and would be another backbone.
    """
    if trainer.fitness == trainer.best_fitness:
        model, averages = deepcopy(unwrap_model(trainer.model)), trainer.ema.ema.state_dict()
        learned = [name for name, p in model.named_parameters() if p.requires_grad]
        model.load_state_dict({name: averages[name] for name in learned}, strict=False)
        ns.save_adapter(model, trainer.save_dir / "adapter.safetensors")


def write_images(folder, count, generator):
    """Scenes of two garments of Fashion-MNIST each, and the labels of their boxes."""
    data = load_dataset("embedded").train
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for scene in range(count):
        canvas, lines = torch.zeros(SIZE, SIZE, dtype=torch.uint8), []
        for index in torch.randint(len(data.labels), (2,), generator=generator).tolist():
            x, y = torch.randint(SIZE - SIDE, (2,), generator=generator).tolist()
            canvas[y : y + SIDE, x : x + SIDE] = data.pixels[index, 0]
            middle = [(at + SIDE / 2) / SIZE for at in (x, y)]
            box = " ".join(f"{number:.4f}" for number in (*middle, SIDE / SIZE, SIDE / SIZE))
            lines.append(f"{int(data.labels[index])} {box}\n")
        Image.fromarray(canvas.numpy()).convert("RGB").save(folder / "images" / f"{scene}.png")
        (folder / "labels" / f"{scene}.txt").write_text("".join(lines), "utf-8")


def write_dataset(folder):
    """A file that Ultralytics reads as `data=`."""
    generator = torch.Generator().manual_seed(0)
    for part, count in {"train": 16, "val": 8}.items():
        write_images(folder / part, count, generator)
    names = "".join(f"  {index}: class{index}\n" for index in range(10))
    text = f"path: {folder}\ntrain: train/images\nval: val/images\nnames:\n{names}"
    (folder / "data.yaml").write_text(text, "utf-8")
    return folder / "data.yaml"


def largest_difference(one, other, x):
    """Of the boxes and scores that two detectors predict."""
    y, z = (model.eval()(x)[0] for model in (one, other))
    return (y - z).abs().max().item()


def check_adapter(folder):
    """On the network that was trained on, with a head of 10 classes, it gives M of best.pt."""
    plain = DetectionModel("yolov8n.yaml", nc=10, verbose=False)
    plain.load(YOLO(folder / "pretrained.pt").model)  # By names and shapes: all but the head.
    similar = ns.load_adapter(plain.eval(), folder / "first" / "adapter.safetensors").state_dict()
    best = YOLO(folder / "first" / "weights" / "best.pt").model.state_dict()
    learned = [key for key in best if key.endswith("similarity.raw") or key.startswith("model.22.")]
    assert any(best[key].any() for key in learned if key.endswith("similarity.raw"))
    assert all(torch.equal(similar[key].half(), best[key].half()) for key in learned)


def main(folder):
    """Train, reload, validate, fuse, export; M is there at every step."""
    options = {
        "data": str(write_dataset(folder / "scenes")), "imgsz": SIZE, "batch": 8, "workers": 0,
        "device": "cpu", "amp": False, "plots": False, "project": str(folder), "exist_ok": True,
        "optimizer": "AdamW", "lr0": 0.01, "warmup_epochs": 0, "nbs": 8,
    }  # fmt: skip
    YOLO("yolov8n.yaml", verbose=False).save(folder / "pretrained.pt")  # Of 80 classes.
    yolo = YOLO(folder / "pretrained.pt")
    yolo.train(trainer=SimilarityTrainer, epochs=2, name="first", **options)
    check_adapter(folder)
    trained = YOLO(folder / "first" / "weights" / "last.pt")
    layers = [m for m in trained.model.modules() if isinstance(m, ns.nn.StaticSimilarity)]
    moved = [layer for layer in layers if layer.raw.any()]
    assert len(moved) > len(layers) / 2  # No box of these scenes is assigned to some of them.

    # The next training begins where this one ended, with its M.
    again = YOLO(folder / "first" / "weights" / "last.pt")
    again.train(trainer=SimilarityTrainer, epochs=1, name="second", **options)

    x = torch.rand(1, 3, SIZE, SIZE)
    model = trained.model.float().eval()
    with torch.no_grad():
        plain = largest_difference(model, ns.unconvert(model), x)
        folded = largest_difference(model, ns.fold(model), x)
        fused = largest_difference(model, ns.fold(model).fuse(verbose=False), x)
        both = largest_difference(model, trained.model.fuse(verbose=False), x)
    assert plain > 100 * max(folded, fused, both)
    file = trained.export(format="torchscript", imgsz=SIZE, verbose=False)
    program = torch.jit.load(file)
    with torch.no_grad():
        exported = (program(x)[0] - trained.model(x)[0][0]).abs().max().item()
    print(
        f"{len(layers)} layers with M, {len(moved)} moved; without it the boxes move by {plain:.1e}"
    )
    print(f"folded {folded:.1e}, fused {max(fused, both):.1e}, exported {exported:.1e}")
    print(f"adapter: {(folder / 'first' / 'adapter.safetensors').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
