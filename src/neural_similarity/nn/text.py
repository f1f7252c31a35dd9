"""Similarities as text, for command lines and files.

A text is a name of `SIMILARITIES` or the constructor call that `repr` prints, such as
`Dynamic(Diagonal(), predictor=SphereNet(hidden=32))`.
"""

import ast
from typing import Any, Literal

from torch import nn

from neural_similarity.choices import nearest_name
from neural_similarity.nn.affine import Affine
from neural_similarity.nn.cheap import Light, Pooled
from neural_similarity.nn.predictor import CNN, SphereNet
from neural_similarity.nn.shared import Shared
from neural_similarity.nn.similarity import SIMILARITIES, Dynamic, Static
from neural_similarity.nn.sparse import Dilation, Masked, Select, Shift, Sparse
from neural_similarity.nn.spec import written_out
from neural_similarity.nn.structure import (
    Diagonal,
    Full,
    LowRank,
    PositiveSemidefinite,
    Structure,
    Symmetric,
)
from neural_similarity.nn.unshared import Unshared, Unstructured

Similarity = Static | Dynamic
SimilarityName = Literal[
    "none", "static-diagonal", "static-full", "dynamic-diagonal", "dynamic-full"
]
"""The names of `SIMILARITIES`, so that type checkers find a misspelt one."""
STRUCTURES: dict[str, Structure] = {
    "Diagonal": Diagonal(),
    "Full": Full(),
    "LowRank": LowRank(rank=2),
    "Symmetric": Symmetric(),
    "PositiveSemidefinite": PositiveSemidefinite(),
    "Unstructured": Unstructured(),
    "Unshared (channels)": Unshared(Full(), channels=2),
    "Unshared (filters)": Unshared(Diagonal(), filters=2),
    "Masked": Masked(Full()),
    "Masked (continuous)": Masked(Diagonal(), continuous=True),
    "Dilation": Dilation(rate=2),
    "Sparse": Sparse(keep=5),
    "Select": Select(),
    "Shift": Unshared(Shift(), channels="each"),
    "Affine": Affine(),
}
"""Examples of every structure: texts may name their classes, and the laws are tested with them."""
STRUCTURE_CLASSES = tuple(dict.fromkeys([*map(type, STRUCTURES.values()), Shift]))
PREDICTORS = (SphereNet, CNN, Shared, Pooled, Light)
SPECS = {spec.__name__: spec for spec in (Static, Dynamic, *STRUCTURE_CLASSES, *PREDICTORS)}
"""The dataclasses that a text may name."""


def parse_similarity(text: str) -> Similarity | None:
    """The similarity that `text` describes; None for "none".

    Raises:
        ValueError: it is neither a name nor a constructor call of known parts.
    """
    if text in SIMILARITIES:
        return SIMILARITIES[text]
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two for deep nesting
        node = None
    if not isinstance(node, ast.Call):
        raise ValueError(
            f"`similarity` must be one of {', '.join(SIMILARITIES)} or a text such as "
            f"'Dynamic(Diagonal())', got {text!r}; nearest: {nearest_name(text, SIMILARITIES)}"
        )
    try:
        value = _construct_value(node)
    except RecursionError:
        raise ValueError("`similarity` is nested too deeply") from None
    if not isinstance(value, Similarity):
        raise ValueError(f"`similarity` must be a Static(...) or Dynamic(...), got {text!r}")
    return value


def required_similarity(similarity: object) -> Similarity:
    """The spec that a name or spec means.

    Raises:
        ValueError: it is neither, or means no similarity.
    """
    spec = parse_similarity(similarity) if isinstance(similarity, str) else similarity
    if not isinstance(spec, Similarity):
        raise ValueError(f"`similarity` must be a name or spec of a similarity, got {similarity!r}")
    return spec


def resolve_similarity(similarity: Any) -> Similarity | nn.Module | None:
    """The spec or module that a `similarity` argument means."""
    if isinstance(similarity, str):
        return parse_similarity(similarity)
    if similarity is None or isinstance(similarity, nn.Module | Similarity):
        return similarity
    raise ValueError(
        "`similarity` must be None, a name, an ns.Static or ns.Dynamic, or a module, "
        f"got {similarity!r}"
    )


def format_similarity(similarity: Similarity | None, *, complete: bool = False) -> str:
    """The text of a similarity, which `parse_similarity` reads back.

    Args:
        similarity: what to write.
        complete: Name every field, as stored texts must, since defaults may change. Otherwise the
            shortest text.

    Raises:
        ValueError: a part of it is not one of the library's own, such as a user's predictor.
    """
    if similarity is None:
        return "none"
    for name, named in SIMILARITIES.items():
        if similarity == named and not complete:
            return name
    text = written_out(similarity) if complete else repr(similarity)
    try:
        same = parse_similarity(text) == similarity
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"`similarity` must be made of {', '.join(SPECS)} to be stored, got {text}"
        )
    return text


def _construct_value(node: ast.expr) -> Any:
    """The value of a constructor call or literal."""
    if not isinstance(node, ast.Call):
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):  # TypeError for a list as a key
            raise ValueError(f"expected a literal value, got {ast.unparse(node)!r}") from None
    name = ast.unparse(node.func)
    if name not in SPECS:
        known = ", ".join(SPECS)
        raise ValueError(
            f"unknown part {name!r}; known: {known}; nearest: {nearest_name(name, SPECS)}"
        )
    arguments = [_construct_value(argument) for argument in node.args]
    if None in (word.arg for word in node.keywords):
        raise ValueError(f"arguments must be named one by one, got {ast.unparse(node)!r}")
    options = {str(word.arg): _construct_value(word.value) for word in node.keywords}
    try:
        return SPECS[name](*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{ast.unparse(node)}: {error}") from None
