"""The library and the laboratory open, create, replace and remove files by `files.py` alone."""

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "neural_similarity"
METHODS = {
    *("open", "read_bytes", "read_text", "write_bytes", "write_text", "touch", "savefig", "tofile"),
    *("unlink", "rename", "rmdir", "hardlink_to", "symlink_to", "extractall", "SummaryWriter"),
}
"""Of paths, figures, arrays and archives, whatever the variable is called."""
FUNCTIONS = {
    *("open", "io.open", "gzip.open", "lzma.open", "bz2.open", "tarfile.open", "PIL.Image.open"),
    *("zipfile.ZipFile", "gzip.GzipFile", "torch.save", "torch.load", "torch.from_file"),
    *(f"os.{name}" for name in ("open", "fdopen", "replace", "rename", "renames", "remove")),
    *(f"os.{name}" for name in ("unlink", "link", "symlink", "rmdir", "truncate", "mkfifo")),
    *(f"numpy.{name}" for name in ("load", "save", "savez", "memmap", "fromfile", "loadtxt")),
    *(f"safetensors.{name}" for name in ("safe_open", "serialize_file")),
    *(f"safetensors.torch.{n}" for n in ("load_file", "save_file", "load_model", "save_model")),
    *(f"shutil.{name}" for name in ("rmtree", "copy", "copy2", "copyfile", "copytree", "move")),
    *(f"tempfile.{name}" for name in ("NamedTemporaryFile", "TemporaryDirectory", "mkstemp")),
    "tempfile.mkdtemp",
}
ENDS = METHODS | {name.rpartition(".")[2] for name in FUNCTIONS}
GIVERS = {"new_file", "open_file", "hold_lock", "regular_file", "TemporaryFile", "BytesIO"}
"""What opens or checks a file by the laws, or makes one without a name."""
OPENED = {"BinaryIO", "IO[bytes]"}
"""Annotations of parameters that are open files."""
LAWFUL = {"files.py", "hidden.py", "lab/folders.py"}
"""The writer and the reader themselves."""
ALLOWED = {
    ("choices.py", "read_text"): "the metadata of the installed package",
    ("ops/native/compiling.py", "unlink"): "a library of its cache that does not load",
    ("ops/native/compiling.py", "replace"): "the compiled library takes the name of its digest",
    ("ops/native/compiling.py", "tempfile.mkdtemp"): "the cache where the user's is of no use",
    ("lab/cli/__init__.py", "os.open"): "the null device, where nobody reads the output",
    ("lab/data/fashion_mnist.py", "read_bytes"): "the package's own data, perhaps in an archive",
    ("lab/data/imagenet.py", "os.link"): "images, into the hidden folder of a layout",
    ("lab/terminal.py", "open"): "the null device, for streams that the shell closed",
    ("lab/train/journal.py", "SummaryWriter"): "TensorBoard writes its own folder",
}


def imported_names(tree):
    """The full name of every imported module and function, by its name in the file."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {n.asname or n.name.partition(".")[0]: n.asname and n.name for n in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {n.asname or n.name: f"{node.module}.{n.name}" for n in node.names}
    return {name: full or name for name, full in names.items()}


def file_call(call, names):
    """How a call opens, creates, replaces or removes a file; None where it does not."""
    method = getattr(call.func, "attr", None)
    if method is not None and method not in ENDS:
        return None
    first, _, rest = ast.unparse(call.func).partition(".")
    full = ".".join(filter(None, (names.get(first, first), rest)))
    replaced = method == "replace" and len(call.args) == 1 and not call.keywords
    return full if full in FUNCTIONS else method if method in METHODS or replaced else None


def last_name(call):
    return getattr(call.func, "attr", getattr(call.func, "id", None))


def gives_file(node):
    return isinstance(node, ast.Call) and last_name(node) in GIVERS


def open_files(function):
    """The names of open files in a function: its parameters, and what it opened by the laws."""
    arguments = function.args
    found = {a.arg for a in arguments.args if a.annotation and ast.unparse(a.annotation) in OPENED}
    for node in ast.walk(function):
        if isinstance(node, ast.withitem) and gives_file(node.context_expr) and node.optional_vars:
            found.add(ast.unparse(node.optional_vars))
        if isinstance(node, ast.Assign) and gives_file(node.value):
            found |= {ast.unparse(target) for target in node.targets}
    return found


def is_lawful(call, opened):
    """Whether a call gets an open file, or a name that was checked."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if gives_file(node) or (isinstance(node, ast.Name) and node.id in opened):
                return True
    return False


def other_ways(text):
    """How a source opens files beside the laws, each with its line."""
    tree, opened = ast.parse(text), {}
    names = imported_names(tree)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            inside = open_files(function)
            for node in ast.walk(function) if inside else ():
                opened[node] = opened.get(node, set()) | inside
    return {
        (way, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (way := file_call(node, names))
        if not is_lawful(node, opened.get(node, set()))
    }


def test_files_are_opened_by_one_writer_and_one_reader():
    found, used = [], set()
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        for way, line in sorted(other_ways(path.read_text())) if name not in LAWFUL else ():
            used.add((name, way))
            if (name, way) not in ALLOWED:
                found.append(f"{name}:{line}: {way}")
    assert not found
    assert not ALLOWED.keys() - used, "entries that nothing needs any more"


def test_every_other_way_is_seen():
    text = """
import gzip, os, shutil, numpy as np, torch, io
from shutil import rmtree
from pathlib import Path
from PIL import Image
from safetensors.torch import load_file as read
def f(path, figure, file: BinaryIO):
    open(path)
    path.open(); path.read_text(); path.replace(path); Path(path).unlink()
    os.open(path, 0); torch.load(path); torch.save({}, path); read(path); Image.open(path)
    figure.savefig(path); np.load(path); gzip.open(path); shutil.move(path, path); rmtree(path)
def g(path, figure, file: BinaryIO):
    buffer = io.BytesIO()
    torch.save({}, buffer); torch.load(file); read(regular_file(path)); "a".replace("b", "c")
    with open_file(path) as it, Image.open(it) as image:
        gzip.open(it)
"""
    found = other_ways(text)
    assert {line for _, line in found} == {8, 9, 10, 11}
    assert len(found) == 15
