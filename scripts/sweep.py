"""Convert, train, save, fold and export one network of every family of timm; write the page.

    uv run python scripts/sweep.py                # families that results/timm.json lacks
    uv run python scripts/sweep.py resnet nfnet   # these, again

Networks have random weights; images are as small as a network takes.
"""

import json
import logging
import re
import sys
import tempfile
from pathlib import Path

import timm
import torch
from prose import replace_table
from torch import nn
from torch.nn.modules.conv import _ConvNd

import neural_similarity as ns
from neural_similarity.lab.train.environment import checkout_commit
from neural_similarity.lab.train.exporting import trace_network

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "results" / "timm.json", ROOT / "docs" / "evidence" / "timm.md"
SMALL = (
    "atto zepto femto pico nano xxs micro xs mini tiny s0 t0 lite 18 10t b0 002 small 050".split()
)
SIZES = 64, 96, 128, 224, 256
TOLERANCE = 1e-3
"""Largest difference of a folded or exported network, relative to its largest output."""


def smallest_network(family):
    """The network with the fewest parameters among the five whose names look smallest."""
    names = [name for name in timm.list_models(module=family) if not name.startswith("test_")]
    likely = sorted(names, key=lambda name: (not any(mark in name for mark in SMALL), len(name)))
    return min(likely[:5], key=count_parameters)


def count_parameters(name):
    """Without memory for them."""
    with torch.device("meta"):
        return sum(p.numel() for p in timm.create_model(name).parameters())


def make_network(name):
    """The network with random weights, and two images of the smallest size that it takes."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10).eval()
    with torch.no_grad():  # Some layers start at zero, and answer alike to everything.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    sizes = sorted({*SIZES, timm.get_pretrained_cfg(name).input_size[-1]})
    for size in sizes:
        x = torch.randn(2, 3, size, size)
        try:
            first_output(model, x)
        except (RuntimeError, AssertionError, ValueError):
            if size == sizes[-1]:
                raise
        else:
            return set_statistics(model, x), x
    raise AssertionError


@torch.no_grad()
def set_statistics(model, x):
    """The network with the running statistics of these images, so that no signal dies."""
    norms = [m for m in model.modules() if getattr(m, "running_var", None) is not None]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(x)
    for norm in norms:
        norm.momentum = 0.1
        norm.running_var.clamp_(min=1e-3)
    return model.eval()


def first_output(model, x):
    """The logits; some networks answer several in training."""
    y = model(x)
    return y[0] if isinstance(y, tuple | list) else y


def train_steps(model, x):
    """Two steps of Adam, and in how many layers M has moved."""
    raws = {n: p for n, p in model.named_parameters() if n.endswith("similarity.raw")}
    start = {name: raw.detach().clone() for name, raw in raws.items()}
    optimizer = torch.optim.Adam(raws.values(), lr=1e-2)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        first_output(model, x).square().mean().backward()
        optimizer.step()
    model.eval()
    return sum(not torch.equal(raw, start[name]) for name, raw in raws.items())


@torch.no_grad()
def relative_difference(one, other, x):
    """Largest difference of two networks' outputs, relative to the largest output of the first."""
    y, z = first_output(one, x), first_output(other, x)
    return ((y - z).abs().max() / y.abs().max()).item()


def try_network(name):
    """A row: what was converted and why not, and what went wrong ("" where nothing did)."""
    row = {"network": name, "error": ""}
    try:
        fill_row(row, *make_network(name))
    except Exception as error:  # libraries raise errors of their own; the row names each
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return row


def fill_row(row, backbone, x):
    """Convert, train, save, load, fold and export a network."""
    plan = ns.plan(backbone, "static-full")
    # Convolutions of more than one tap are to be converted.
    convolutions = {n: m for n, m in backbone.named_modules() if isinstance(m, _ConvNd)}
    kernels = {name: layer._parameters.get("weight") for name, layer in convolutions.items()}
    larger = {name for name, own in kernels.items() if own is None or own[0, 0].numel() > 1}
    # Why convolutions are not converted, but for those of a single tap.
    found = {why for name, why in plan.items() if why and (name in larger or "tap" not in why)}
    reasons = sorted({re.sub(r"\d+", "n", why) for why in found})
    row |= {"size": x.shape[-1], "larger": len(larger), "reasons": reasons}
    alone = None not in plan.values()  # without a convolution to convert: linear layers
    row["layers"] = "linear" if alone else "convolutions"
    similarity, where = ("static-diagonal", nn.Linear) if alone else ("static-full", None)
    model = ns.freeze_backbone(ns.convert(backbone, similarity, where), train=())
    row["converted"] = sum(isinstance(m, ns.nn.StaticSimilarity) for m in model.modules())
    differences = {"start": relative_difference(backbone, model, x)}
    row["moved"] = train_steps(model, x)
    with tempfile.TemporaryDirectory() as folder:
        file = ns.save_adapter(model, Path(folder) / "adapter.safetensors")
        row["kB"] = round(file.stat().st_size / 1000, 1)
        again = ns.load_adapter(backbone, file).eval()
    differences["loaded"] = relative_difference(model, again, x)
    folded = ns.fold(model).eval()
    relative_difference(model, folded, x)  # Layers may write their kernel at a first call.
    differences["folded"] = relative_difference(model, folded, x)
    exported = trace_network(model, x, free=False).module()
    differences["exported"] = relative_difference(model, exported, x)
    row |= {key: float(f"{value:.1e}") for key, value in differences.items()}
    row["error"] = "; ".join(errors_of(row))


def errors_of(row):
    """What is wrong in a row."""
    limits = {"start": TOLERANCE, "loaded": 0, "folded": TOLERANCE, "exported": TOLERANCE}
    wrong = [f"{key} differs" for key, limit in limits.items() if not row[key] <= limit]
    return wrong + ["no M has moved"] * (row["moved"] == 0)


def table_of(rows):
    """The page's table."""
    lines = [
        "| family | network | pixels | with M | of | adapter, kB | loaded | folded | exported |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for family, row in rows.items():
        if row["error"]:
            lines.append(f"| {family} | {row['network']} | | | | | | | {row['error']} |")
            continue
        cells = [row[key] for key in ("network", "size", "converted")]
        of = row["larger"] if row["layers"] == "convolutions" else "linear"
        cells += [of, f"{row['kB']:,.1f}", row["loaded"], row["folded"], row["exported"]]
        lines.append(f"| {family} | {' | '.join(map(str, cells))} |")
    reasons = sorted(
        {(why, family) for family, row in rows.items() for why in row.get("reasons", ())}
    )
    lines += ["", "| not converted | family |", "|---|---|"] * bool(reasons)
    return "\n".join(lines + [f"| {why} | {family} |" for why, family in reasons]) + "\n"


def main(families):
    """Try these families, or those that the record lacks; print, keep and show each."""
    logging.getLogger("neural_similarity").setLevel(logging.ERROR)
    rows = json.loads(RECORD.read_text("utf-8"))["rows"] if RECORD.exists() else {}
    commit = checkout_commit()  # before this changes the record
    for family in families or sorted({*timm.list_modules()} - {*rows}):
        rows[family] = try_network(smallest_network(family)) | {"commit": commit}
        sys.stdout.write(f"{family}: {rows[family]}\n")
        sys.stdout.flush()
        rows = dict(sorted(rows.items()))
        commits = [
            {"commit": commit} for commit in sorted({row["commit"] for row in rows.values()})
        ]
        content = {"environment": {"resumed": commits}, "rows": rows}
        RECORD.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    replace_table(PAGE, table_of(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
