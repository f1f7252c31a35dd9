"""Command lines to commands and to dataclasses, with the nearest names in errors.

Dataclasses are filled by tyro, with similarities as text.
"""

import difflib
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import tyro

from neural_similarity.lab.train import Recipe
from neural_similarity.nn import format_similarity, parse_similarity

Options = TypeVar("Options")
Item = TypeVar("Item")
Commands = Mapping[str, tuple[Callable[[Sequence[str]], int], str]]
"""By name: what takes the words after it and returns the exit code, and a line of help."""
REGISTRY = tyro.constructors.ConstructorRegistry()
SIMILARITY = typing.get_type_hints(Recipe)["similarity"]


class UsageError(ValueError):
    """The command line asks for what does not exist; `nsim` exits with 2."""


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


def dispatch(
    args: Sequence[str], commands: Commands, *, prog: str, kind: str, about: str, examples: str
) -> int:
    """Run the command that the first word names and return its exit code.

    Without a word, as with `--help`, the commands are listed.

    Args:
        args: the words after `prog`.
        commands: what there is to run.
        prog: the words before.
        kind: what errors call the commands.
        about: what they are for, a sentence.
        examples: lines of the help.

    Raises:
        UsageError: no command has that name.
    """
    name, *rest = args or ["--help"]
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {name:<10}{text}" for name, (_, text) in commands.items())
        say(
            f"usage: {prog} COMMAND ...\n\n{about}\n\ncommands:\n{lines}\n\n"
            f"examples:\n{examples}\n\n`{prog} COMMAND --help` describes a command."
        )
        return 0
    require(kind, name, commands)
    return commands[name][0](rest)


def named_recipe(
    args: Sequence[str], recipes: Collection[str], kind: str
) -> tuple[str | None, Sequence[str]]:
    """The recipe that the first word names, None where that is an option, and the other words.

    Raises:
        UsageError: no recipe has that name; `kind` is what the error calls recipes.
    """
    if not args or args[0].startswith("-"):
        return None, args
    require(kind, args[0], recipes)
    return args[0], args[1:]


def parse(
    options: type[Options],
    args: Sequence[str],
    *,
    command: str,
    description: str,
    default: Options | None = None,
    flags: bool = False,
    program: str = "nsim",
) -> Options:
    """Fill the dataclass `options` from the command line, or exit with 2 and the nearest names.

    Args:
        options: a dataclass; its field docstrings become the help.
        args: words after the command.
        command: name of the command.
        description: text of `--help`, examples included.
        default: values of the options that are not given.
        program: the words before `command`.
        flags: whether `--yes` alone is enough; else it takes a value, as a recipe's fields do.
    """
    form = tyro.conf.FlagCreatePairsOff if flags else tyro.conf.FlagConversionOff
    try:
        parsed = tyro.cli(
            options,
            prog=f"{program} {command}",
            args=args,
            default=default,
            description=description,
            registry=REGISTRY,
            config=(form,),
        )
        return cast(Options, parsed)
    except ValueError as error:
        raise UsageError(str(error)) from error


def listed(kind: Callable[[str], Item], metavar: str) -> tyro.constructors.PrimitiveConstructorSpec:
    """A tuple in one word, its items between commas."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: tuple(kind(word) for word in words[0].split(",")),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda items: [",".join(map(str, items))],
    )


def integer(word: str) -> int:
    """The integer that a word is.

    Raises:
        ValueError: it is none.
    """
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"items must be integers between commas, got {word!r}") from None


def require(kind: str, name: str, names: Collection[str]) -> None:
    """Refuse a `name` that is none of `names`.

    Raises:
        UsageError: it tells the nearest name, or all where none is near.
    """
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"no {kind} is named {name!r}; {hint}")


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds of runs of which two are the same, or that no run can have."""
    if len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**63 for seed in seeds):
        raise ValueError(f"`seeds` must differ, not be negative and be below 2**63, got {seeds}")


def check_folders(**folders: Path) -> None:
    """Refuse paths of folders, by option, at which there is something else."""
    for option, path in folders.items():
        if path.exists() and not path.is_dir():
            raise ValueError(f"`{option}` must be a folder, got the file {path}")


def agreed(yes: bool) -> bool:
    """Whether to start: where `yes` does not say so, whoever sits before the terminal is asked."""
    if yes or not sys.stdin.isatty():
        return True
    sys.stderr.write("Start? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("Nothing was started.")
    return False


def require_only(allowed: Sequence[str], name: str | None, args: Sequence[str]) -> None:
    """Refuse what would change the run that is to be continued or repeated.

    Args:
        allowed: the option that names the run, then those that may stand beside it.
        name: a recipe that was named.
        args: the other words of the command line.
    """
    flags = (arg.partition("=")[0] for arg in args if arg.startswith("--"))
    for word in (*([name] if name else []), *flags):
        if word not in allowed:
            raise UsageError(
                f"{word} cannot be given with {allowed[0]}, which takes every setting from the "
                f"run folder; only {', '.join(allowed[1:])} may"
            )


def say(line: str) -> None:
    """Print a line, or several."""
    sys.stdout.write(line + "\n")
