"""Parsing command lines into dataclasses by tyro; similarities are given as text."""

import typing
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

import tyro

from neural_similarity.lab.cli.commands import require_known_name
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.terminal import styled_output
from neural_similarity.lab.train import TrainingRecipe
from neural_similarity.nn import format_similarity, parse_similarity

Options = TypeVar("Options")
Item = TypeVar("Item")
REGISTRY = tyro.constructors.ConstructorRegistry()
SIMILARITY = typing.get_type_hints(TrainingRecipe)["similarity"]


@REGISTRY.primitive_rule
def _similarity_as_text(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    if info.type != SIMILARITY:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SIMILARITY",
        instance_from_str=lambda words: parse_similarity(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda similarity: [format_similarity(similarity)],
    )


@REGISTRY.primitive_rule
def _number_or_none(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """A number that may be None; tyro's own rule prints the exceptions of both."""
    kinds = {int | None: (int, "INT", "an integer"), float | None: (float, "FLOAT", "a number")}
    if info.type not in kinds:
        return None
    kind, metavar, article = kinds[info.type]

    def parse(words: list[str]) -> float | None:
        if words[0] in ("None", "none"):
            return None
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"it must be {article} or None, got {words[0]!r:.80}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{None}}|{metavar}",
        instance_from_str=parse,
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [f"{value}"],
    )


def named_recipe(
    args: Sequence[str], recipes: Collection[str], noun: str
) -> tuple[str | None, Sequence[str]]:
    """The recipe that the first word names, None where that is an option, and the other words."""
    if not args or args[0].startswith("-"):
        return None, args
    require_known_name(noun, args[0], recipes)
    return args[0], args[1:]


def parse_options(
    options: type[Options],
    args: Sequence[str],
    *,
    prog: str,
    description: str,
    default: Options | None = None,
    flags: bool = False,
) -> Options:
    """Fill the dataclass `options` from the command line, or exit with 2 and the nearest names.

    The help is `description` and the docstrings of fields. With `flags`, `--yes` alone is enough;
    else it takes a value, as a recipe's fields do.
    """
    form = tyro.conf.FlagCreatePairsOff if flags else tyro.conf.FlagConversionOff
    # tyro colours its text, in which words and values appear; `repr` writes a control character
    # out by a backslash.
    plain = "\\" in repr((list(args), default))
    try:
        with nullcontext() if plain else styled_output():
            parsed = tyro.cli(
                options,
                prog=prog,
                args=args,
                default=default,
                description=description,
                registry=REGISTRY,
                config=(form,),
            )
        return cast(Options, parsed)
    except ValueError as error:
        raise UsageError(str(error)) from error


def comma_list(
    parse_item: Callable[[str], Item], metavar: str
) -> tyro.constructors.PrimitiveConstructorSpec:
    """A tuple in one word, its items separated by commas."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: tuple(parse_item(word) for word in words[0].split(",")),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda items: [",".join(map(str, items))],
    )


def parse_integer(word: str) -> int:
    """The integer that a word is."""
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"items must be integers separated by commas, got {word!r}") from None


def check_seeds(seeds: Sequence[int]) -> None:
    """Check that seeds differ and are in the range of a run's seed."""
    if len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**63 for seed in seeds):
        raise ValueError(f"`seeds` must be distinct, not negative and below 2**63, got {seeds}")


def check_folders(**folders: Path) -> None:
    """Check that paths, by option, are folders or do not exist."""
    for option, path in folders.items():
        if path.exists() and not path.is_dir():
            raise ValueError(f"`{option}` must be a folder, got the file {path}")


def require_only(allowed: Sequence[str], name: str | None, args: Sequence[str]) -> None:
    """Check that no option changes the run that is continued or repeated.

    `allowed` begins with the option that names the run.
    """
    flags = (arg.partition("=")[0] for arg in args if arg.startswith("--"))
    for word in (*([name] if name else []), *flags):
        if word not in allowed:
            raise UsageError(
                f"{word} cannot be given with {allowed[0]}, which takes every setting from the "
                f"run folder; only {', '.join(allowed[1:])} may"
            )
