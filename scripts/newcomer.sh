#!/usr/bin/env bash
# A newcomer's path, timed: a wheel, then docs/tutorials/ship.md with images of one's own, without a clone.
#
#     bash scripts/newcomer.sh            # timm's ResNet-18 with random weights: nothing is downloaded
#     bash scripts/newcomer.sh timm:resnet18    # with its pretrained weights, or another backbone
#
# The images are 40 PNGs of each of three classes, written from the embedded ones. It ends with an error if
# more than 5 minutes pass until the adapted network is folded, or 15 until it is exported in int8.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
uv build --quiet --wheel --out-dir "$home" "$root"
wheel=$(echo "$home"/*.whl)
cd "$home"
SECONDS=0
told() { printf '%d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }

uv venv --quiet --python 3.11 env
uv pip install --quiet --python env/bin/python "neural-similarity[lab,adapt,export] @ file://$wheel"
export PATH="$home/env/bin:$PATH"
told "installed"
python - <<'END'
from pathlib import Path

from neural_similarity.lab.data import load_dataset
from PIL import Image

train = load_dataset("embedded").train
for label, name in enumerate(train.classes[:3]):
    folder = Path("mine", name.replace("/", " "))
    folder.mkdir(parents=True)
    for index, pixels in enumerate(train.pixels[train.labels == label][:40]):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{index}.png")
END
if [ $# = 0 ]; then set -- timm:resnet18 --pretrained False; fi
nsim train adapt --backbone "$@" --data mine --train M+head --image-size 64 --steps 50 --out adapted
told "adapted"
nsim evaluate adapted
nsim export adapted --format safetensors --fold
told "folded"
[ $SECONDS -le 300 ]
nsim export adapted --format onnx --fold
nsim export adapted --format onnx --int8
told "exported in float and int8, checked in onnxruntime"
[ $SECONDS -le 900 ]
