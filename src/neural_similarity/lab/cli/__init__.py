"""The command `nsim`.

Exit codes: 0 done, 1 failed while running, 2 wrong command line, 141 nobody reads the output.
"""

import logging
import os
import re
import select
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version

from neural_similarity import __version__
from neural_similarity.choices import extra_needed, require_installed
from neural_similarity.lab.cli.commands import Command, Commands, dispatch_command, print_line
from neural_similarity.lab.cli.help_pages import print_page
from neural_similarity.lab.errors import Interrupted, PeerDied, RunError, UsageError
from neural_similarity.lab.plugins import installed_entries
from neural_similarity.lab.terminal import one_line, plain_output


def _load_late(module: str, name: str) -> Command:
    """A command whose module is imported when it runs: `nsim --help` needs no torch."""

    def run(args: Sequence[str]) -> int:
        return getattr(import_module(f"{__name__}.{module}"), name)(args)

    return run


def _load_from_clone(name: str) -> Command:
    """A command of the paper's house, which only a clone has."""

    def run(args: Sequence[str]) -> int:
        for entry in installed_entries("commands"):
            if entry.name == name:
                return entry.load()(args)
        raise UsageError(
            f"nsim {name} needs a clone of the repository, installed by `uv sync` or `pip install "
            "-e .`: it works on the records that lie there"
        )

    return run


COMMANDS: Commands = {
    "train": (_load_late("train", "train"), "train a network, or continue a run with --resume"),
    "evaluate": (_load_late("runs", "evaluate"), "score a run on test images or tasks"),
    "predict": (_load_late("runs", "predict"), "name the classes of images"),
    "export": (
        _load_late("export", "export"),
        "write a network as ONNX or torch.export, also in int8",
    ),
    "inspect": (_load_late("runs", "inspect"), "draw the similarities that a run learned"),
    "report": (_load_late("report", "report"), "compare runs in one HTML file"),
    "reproduce": (_load_from_clone("reproduce"), "run what a table of the paper lacks"),
    "table": (_load_from_clone("table"), "show a table of the paper with our runs"),
    "record": (_load_from_clone("record"), "write the records of finished runs"),
    "theory": (_load_from_clone("theory"), "test what section 5 of the paper says"),
    "recipes": (_load_late("recipes", "recipes"), "list the named recipes"),
    "models": (_load_late("catalogue", "models"), "list the networks, their parameters and MACs"),
    "data": (_load_late("catalogue", "data"), "download or verify a data set"),
    "completion": (_load_late("completion", "completion"), "print completions for bash or zsh"),
}
EXAMPLES = """\
  nsim train                                          a few minutes on a laptop
  nsim train cifar10-dynamic-dns --data data --seed 1
  nsim train --resume runs/cifar10-dynamic-dns-seed1
  nsim predict runs/quickstart-seed0 shoe.png
  nsim train fewshot-quickstart                       few-shot learning in a minute"""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command, by default the words of the process, and return its exit code."""
    _warn_once()
    return exit_code(lambda: _run_command(sys.argv[1:] if args is None else args))


def _run_command(args: Sequence[str]) -> int:
    if list(args) == ["--version"]:
        print_line(f"neural-similarity {__version__}, torch {version('torch')}")
        return 0
    if print_page(args):
        return 0
    for word in args:  # before torch is imported, which takes seconds
        library, _, name = word.rpartition("=")[2].partition(":")
        if name and library in ("timm", "torchvision"):
            require_installed(library, f"{library}:{name}", "adapt")
    return dispatch_command(
        args,
        COMMANDS,
        prog="nsim",
        noun="command",
        about="Neural Similarity Learning: convolutions with a learned similarity.",
        examples=EXAMPLES,
    )


def exit_code(run: Callable[[], int]) -> int:
    """What `run` returns, or the code of the error that it raises, which goes to stderr."""
    with plain_output():
        return _code_of(run)


def _code_of(run: Callable[[], int]) -> int:
    try:
        code = run()
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        return _report_error(extra_needed(error, "nsim"), 1)
    except UsageError as error:
        return _report_error(error, 2)
    except Interrupted as stop:
        return _report_error(stop, stop.exit_code)
    except BrokenPipeError as error:
        return 141 if _output_closed() else _report_error(error, 1)
    except (RunError, OSError, ValueError, NotImplementedError) as error:
        # torch raises the last for an operation that a device does not have.
        return _report_error(error, 1)
    except MemoryError as error:
        return _report_error(MemoryError(f"out of memory {error}".strip()), 1)
    except RuntimeError as error:  # torch's own lack of memory, of whichever device
        if not re.search("allocate memory|out of memory|Storage size", str(error)):
            raise
        return _report_error(MemoryError(f"out of memory: {str(error).splitlines()[0]}"), 1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0


def _output_closed() -> bool:
    """Whether the reader of our output has closed it, as `head` does; shells then expect 141."""
    if not hasattr(select, "poll"):  # On Windows.
        return False
    output = select.poll()
    output.register(sys.stdout, 0)  # errors alone, which poll always reports
    if not output.poll(0):
        return False
    # What is left of the output must not fail once more at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _report_error(error: Exception, code: int) -> int:
    """Write the error, once if several processes raise the same one, and return `code`."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from neural_similarity.lab.train.distributed import claim_message

        # Of a death every process knows as much as it has seen when it looks.
        if not claim_message("death" if isinstance(error, PeerDied) else str(error)):
            return code
    sys.stderr.write(f"nsim: {one_line(str(error))}\n")
    return code


def _warn_once() -> None:
    """Let only the first process of torchrun warn: all would say the same."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ["RANK"] != "0":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # Torch reads it when imported.
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
