#!/usr/bin/env bash
# A newcomer's path, timed: install, then docs/tutorials/ship.md with images of one's own.
#
#     bash scripts/newcomer.sh [BACKBONE]    # timm:resnet18, say; else a small one is trained first
#
# The images are 40 PNGs of each of three classes, written from the embedded ones. It ends with an error
# after more than 15 minutes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
cd "$home"
told() { printf '%d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }

uv venv --quiet --python 3.11 env
uv pip install --quiet --python env/bin/python "neural-similarity[lab,adapt,export] @ file://$root"
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
backbone=${1:-backbone}
if [ $# = 0 ]; then
    nsim train --model resnet20 --width 0.25 --similarity none --steps 200 --out backbone >&2
    told "trained a small backbone"
fi
nsim train adapt --backbone "$backbone" --data mine --train M+head --out adapted
told "adapted"
nsim evaluate adapted
nsim export adapted --format onnx --fold
nsim export adapted --format onnx --int8
told "folded, exported in float and int8, checked in onnxruntime"
[ $SECONDS -le 900 ]
