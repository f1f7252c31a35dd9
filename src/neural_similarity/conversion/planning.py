"""Which layers of a network get a similarity, and why others do not."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from neural_similarity.conversion.freezing import similarities_of
from neural_similarity.conversion.where import (
    Choice,
    Where,
    choice_of,
    converts_class,
    exact_names,
    is_chosen,
    is_glob,
    matches_glob,
    plain_modules,
)
from neural_similarity.nn import Dynamic, Geometry, Static, StructureModule, sharing
from neural_similarity.nn.layer import (
    LAYER_CLASSES,
    counterpart,
    geometry_of,
    has_similarity,
    replaced_forward,
)
from neural_similarity.nn.modes import check_module, is_made_by
from neural_similarity.nn.own_forward import UnusualForward
from neural_similarity.nn.recurrent import lstm_geometries
from neural_similarity.nn.similarity import MOST_SCALARS, check_ready, predicted_scalars
from neural_similarity.nn.spec import Spec
from neural_similarity.nn.text import Similarity, SimilarityName, required_similarity

TextRows = Sequence[Sequence[str]]
_NUMBERS = ("layers", "scalars", "kB")
"""Heads of columns that are set to the right."""


class PrintedTable:
    """The base of what prints as a table, in notebooks as one of HTML."""

    def table_rows(self) -> TextRows:
        """The head and the rows."""
        raise NotImplementedError

    def table_summary(self) -> str:
        """The line below."""
        raise NotImplementedError

    def __str__(self) -> str:
        rows = self.table_rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        pads = [str.rjust if head in _NUMBERS else str.ljust for head in rows[0]]
        cells = ([p(c, w) for p, c, w in zip(pads, row, widths, strict=True)] for row in rows)
        return "\n".join([*("  ".join(row).rstrip() for row in cells), self.table_summary()])

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        head, *rows = ["".join(f"<td>{escape(cell)}</td>" for cell in r) for r in self.table_rows()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        head = f"<thead><tr>{head.replace('td>', 'th>')}</tr></thead>"
        return f"<table>{head}<tbody>{body}</tbody></table><p>{escape(self.table_summary())}</p>"


_INSIDE = "is part of a similarity"
_PARALLEL = "is in DistributedDataParallel, which knows its parameters already; convert it before"
_READ = "is in a TransformerEncoderLayer, which in evaluation reads its weight alone"
_READ_BY_ATTENTION = "is in a MultiheadAttention, which reads its weight alone"
_WRAPPED = "is in a layer of PEFT's, which knows its kernel without M; merge_and_unload() before"

_LYCORIS = "is given to LyCORIS, which reads its kernel without M; merge_to() and restore() before"


class _Unfit(str):
    """A reason that lies in the similarity, not in the layer."""


class Plan(PrintedTable, dict[str, str | None]):
    """Why each layer is not converted, or None if it is; prints as a table with M's parameters."""

    def __init__(self, reasons: Mapping[str, str | None], model: nn.Module, spec: Similarity):
        super().__init__(reasons)
        modules = plain_modules(model, remove_duplicate=False)
        layers = {name: modules[name] for name in self}
        self._kinds = {name: type(layer).__name__ for name, layer in layers.items()}
        converted = {layers[name]: name for name, why in self.items() if why is None}
        self._scalars = {
            name: scalars_per_position(spec, layer) for layer, name in converted.items()
        }
        self._unit = ""
        if isinstance(spec, Dynamic):
            self._unit = f" a position{_predictor_size(spec, converted)}"

    def table_rows(self) -> list[tuple[str, ...]]:
        """Layer, kind, parameters of M, and why not."""
        return [("layer", "kind", "scalars", "why not")] + [
            (name, self._kinds[name], f"{self._scalars.get(name, '')}", why or "")
            for name, why in self.items()
        ]

    def table_summary(self) -> str:
        """How many layers are converted."""
        total = sum(self._scalars.values())
        converted = f"{len(self._scalars)} of {len(self)} layers are converted"
        return f"{converted}, {total:,} scalars{self._unit}"


def _predictor_size(spec: Dynamic, layers: Iterable[nn.Module]) -> str:
    """How many parameters predictors of the library's own have, which an adapter holds."""
    if not isinstance(spec.predictor, Spec):
        return ""
    with torch.device("meta"), sharing():
        parts = [spec.build(geometry) for layer in layers for geometry in _part_geometries(layer)]
    return f", {sum(p.numel() for p in nn.ModuleList(parts).parameters()):,} parameters"


def scalars_per_position(spec: Similarity, layer: nn.Module) -> int:
    """The number of parameters of a layer's M: learned, or predicted at every position."""
    return sum(spec.structure.build(geometry).scalars for geometry in _part_geometries(layer))


def plan(
    model: nn.Module, similarity: Similarity | SimilarityName, where: Where | None = None
) -> Plan:
    """What `convert` does with each convolution: why it skips it, or None if it converts it.

    A dict by the names of layers; `print` shows it as a table.

    Returns:
        The plan: print it, or read its rows.

    Raises:
        ValueError: `model` is not a module, `similarity` does not start at the identity, or `where`
            names what cannot have a similarity or is not in the model.
    """
    spec = identity_start(similarity)
    return Plan(make_plan(model, spec, choice_of(where)), model, spec)


def identity_start(similarity: Similarity | str) -> Similarity:
    """The spec of a similarity, which must start at the identity."""
    spec = required_similarity(similarity)
    if spec.init != "identity":
        raise ValueError(f"`similarity` must start at the identity for a conversion, got {spec}")
    return spec


def make_plan(model: nn.Module, spec: Similarity, where: Choice | None) -> dict[str, str | None]:
    """`plan` for arguments that are parsed already."""
    check_module(model)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise ValueError(
            f"`model` must have run once, so that {lazy[0]} has a shape; got a lazy layer"
        )
    modules = plain_modules(model, remove_duplicate=False)
    names = exact_names(where)
    layers = {
        name: module
        for name, module in modules.items()
        if isinstance(module, _ConvNd)  # or of another class, such as timm's CondConv2d
        or (hasattr(module, "kernel_size") and isinstance(getattr(module, "weight", None), Tensor))
        or name in names
        or is_chosen(where, name, module)
    }
    missing = sorted(
        name for name in names if not isinstance(modules.get(name), tuple(LAYER_CLASSES))
    )
    globs = [glob for glob in where if is_glob(glob)] if isinstance(where, list) else []
    convertible = [
        name for name, layer in layers.items() if isinstance(layer, tuple(LAYER_CLASSES))
    ]
    missing += [glob for glob in globs if not any(matches_glob(name, glob) for name in convertible)]
    if missing:
        kinds = ", ".join(kind.__name__ for kind in LAYER_CLASSES)
        raise ValueError(f"`where` must name layers of the model ({kinds}), got {missing}")
    places = _excluded_places(model)
    return {
        name: places.get(layer) or _skip_reason(name, layer, spec, where)
        for name, layer in layers.items()
    }


def _excluded_places(model: nn.Module) -> dict[nn.Module, str]:
    """Modules whose place in the network rules a similarity out, with the reason."""
    read = ("linear1", "linear2")
    encoders = [part for part in model.modules() if isinstance(part, nn.TransformerEncoderLayer)]
    parallel = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
    attentions = [part for part in model.modules() if isinstance(part, nn.MultiheadAttention)]
    wrapped = [m for m in model.modules() if "base_layer" in m._modules and is_made_by("peft", m)]
    return (
        {part: _READ for outer in encoders for name, part in outer.named_children() if name in read}
        | {outer.out_proj: _READ_BY_ATTENTION for outer in attentions}
        | {part: _PARALLEL for outer in parallel for part in outer.modules()}
        | {part: _WRAPPED for outer in wrapped for part in outer.modules()}
        | {part: _INSIDE for outer in similarities_of(model) for part in outer.modules()}
    )


def _skip_reason(name: str, layer: nn.Module, spec: Similarity, where: Choice | None) -> str | None:
    """Why a layer is not converted."""
    if any(parameter.is_complex() for parameter in layer.parameters(recurse=False)):
        return "has complex weights, and similarities are real"
    if (forward := replaced_forward(layer)) is not None:
        if is_made_by("lycoris", getattr(forward, "__self__", None)):
            return _LYCORIS
        return "has a replaced `forward` (accelerate's hooks do that); convert it first"
    chosen = is_chosen(where, name, layer)
    if where is not None and not chosen:
        return f"is not {'named in' if isinstance(where, list) else 'chosen by'} `where`"
    if has_similarity(layer):
        return "has a similarity already"
    if isinstance(layer, nn.ConvTranspose2d) and isinstance(spec, Dynamic):
        return "is a transposed convolution, which takes a static similarity only"
    if type(layer) in LAYER_CLASSES and not chosen:
        return f"is a {type(layer).__name__}; name it in `where` to convert it, too"
    if not isinstance(layer, tuple(LAYER_CLASSES)):
        return f"is a {_class_name(layer)} with its own `forward`; replace it by a torch.nn.Conv2d"
    if not chosen or not converts_class(where, layer):
        kinds, name = (nn.Conv2d,) if where is None else LAYER_CLASSES, _class_name(layer)
        nearest = next((kind for kind in kinds if isinstance(layer, kind)), nn.Conv2d).__name__
        advice = f"; where={name}, its class, converts it" if counterpart(type(layer)) else ""
        return f"is a {name}, not exactly a torch.nn.{nearest}{advice}"
    if isinstance(layer, nn.LSTM) and (layer.bidirectional or layer.proj_size):
        return "is an LSTM with two directions or a projection"
    try:
        return _misfit_reason(_part_geometries(layer), spec, where)
    except UnusualForward as error:
        return f"is a {_class_name(layer)}, {error}"


def _part_geometries(layer: nn.Module) -> list[Geometry]:
    """The geometry of a layer, or those of the parts of an LSTM."""
    geometries = lstm_geometries(layer).values() if isinstance(layer, nn.LSTM) else ()
    return list(geometries) or [geometry_of(layer)]


def _class_name(layer: nn.Module) -> str:
    """The name of a layer's class, with its module if torch.nn has a class of that name."""
    kind = type(layer)
    known = {kind_of_torch.__name__ for kind_of_torch in LAYER_CLASSES}
    return f"{kind.__module__}.{kind.__name__}" if kind.__name__ in known else kind.__name__


def _misfit_reason(
    geometries: list[Geometry], spec: Similarity, where: Choice | None
) -> str | None:
    """Why a similarity does not fit a layer whose parts have these geometries."""
    if all(geometry.taps == 1 for geometry in geometries):
        return "has a single kernel tap"
    try:
        predicted = max(predicted_scalars(spec, geometry) for geometry in geometries)
        strangers = [g.taps for g in geometries if not starts_at_identity(spec, g)]
    except (ValueError, RuntimeError) as error:  # torch's own, from a user's structure
        return _Unfit(f"does not fit: {error}")
    if strangers:
        return _Unfit(f"does not start at the identity: {spec.structure!r} of {strangers[0]} taps")
    if predicted > MOST_SCALARS and where is None:
        return f"would predict {predicted} numbers per position; name it in `where` to allow that"
    return None


@torch.no_grad()
def starts_at_identity(similarity: Static | Dynamic, geometry: Geometry) -> bool:
    """Whether a layer of this geometry starts at M = I, as the plain layer.

    Raises:
        ValueError: the structure does not fit the layer, or makes an M of another size.
    """
    if similarity.init != "identity":
        return False
    with torch.device("cpu"):
        structure = similarity.structure.build(geometry)
        zero = isinstance(similarity, Dynamic)
        raw = torch.zeros(structure.scalars) if zero else structure.initial()
        m = structure(raw[None])[0]
        identity = (
            torch.eye(m.shape[-1]) if _is_matrix(m, structure, geometry) else torch.ones_like(m)
        )
        return torch.allclose(m, identity.expand_as(m), atol=1e-6)


def _is_matrix(m: Tensor, structure: StructureModule, geometry: Geometry) -> bool:
    """Whether M, after the axis of its blocks if it has one, is a matrix, not a diagonal."""
    blocks = () if structure.blocks is None else (structure.blocks[1],)
    taps = geometry.taps
    sizes = (taps, taps * geometry.in_channels // geometry.groups)
    if tuple(m.shape) not in {(*blocks, *[n] * dims) for n in sizes for dims in (1, 2)}:
        raise ValueError(
            f"M must be {(*blocks, taps)} or {(*blocks, taps, taps)} for {taps} taps, "
            f"got {tuple(m.shape)} from {structure}"
        )
    return m.dim() == len(blocks) + 2


def check_plan(
    model: nn.Module, reasons: Mapping[str, str | None], spec: Similarity, where: Choice | None
) -> None:
    """Raise a `ValueError` if a plan does not do what the caller asked for."""
    refused = {name: reasons[name] for name in exact_names(where) if reasons[name]}
    if refused:
        raise ValueError(f"`where` names modules that cannot be converted: {refused}")
    modules = plain_modules(model, remove_duplicate=False)
    chosen = {modules[name]: name for name, why in reasons.items() if why is None}
    unfit = {name: why for name, why in reasons.items() if isinstance(why, _Unfit)}
    if unfit and not chosen:
        raise ValueError(
            f"`similarity` must fit a layer and start at the identity: {_by_reason(unfit)}"
        )
    if not chosen and not similarities_of(model):
        raise ValueError(
            "`model` must have a layer to convert that `where` chooses, got none: "
            f"{_by_reason(reasons) or 'no convolution; name layers of other kinds in `where`'}"
        )
    check_ready(spec, chosen.values())


def _by_reason(reasons: Mapping[str, str | None]) -> str:
    """Every reason once, with the first layers that it applies to."""
    layers: dict[str | None, list[str]] = {}
    for name, why in reasons.items():
        layers.setdefault(why, []).append(repr(name))
    return "; ".join(
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}: {why}"
        for why, names in layers.items()
    )
