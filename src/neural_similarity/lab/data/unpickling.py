"""A safe unpickler of arrays and plain values: it calls nothing that a file names.

`pickle.Unpickler` cannot be made safe by refusing globals: numpy's `dtype.__setstate__` takes bytes
for live objects, the hash of a deep tuple overflows the stack, and one index of the memo can ask
for any amount of memory.
"""

import pickletools
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from neural_similarity.files import read_bytes

GLOBALS = {
    "_codecs.encode",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer",
}
NUMBERS = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
MOST = 1_000_000
"""Instructions of a pickle, some seconds; Mini-ImageNet's have some 100,000."""
MOST_AXES = 32
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
LITERALS = set(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8"
    "".split()
)


def unpickle_arrays(path: Path) -> dict[str, Any]:
    """The dictionary of a pickle that holds arrays of numbers and plain values only.

    Raises:
        ValueError: it holds anything else, or is damaged.
    """
    content = read_bytes(path)
    try:
        value = _Machine().run_opcodes(content)
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to ask for
        reason = str(error)[:200]
        raise ValueError(f"{path} must be a pickle of arrays and lists: {reason}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(value)}")
    return value


@dataclass(frozen=True, eq=False)
class _Global:
    name: str


@dataclass(eq=False)
class _DType:
    """A type of plain numbers; a file gives its byte order after its name."""

    name: str
    order: str = "|"


@dataclass(eq=False)
class _Unbuilt:
    """An array before its state has come, and where the memo holds it."""

    places: list[int] = field(default_factory=list)


class _Machine:
    """An interpreter of the pickle instructions that make plain values."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._left = 0

    def run_opcodes(self, content: bytes) -> Any:
        self._left = len(content)
        for count, (code, argument, _) in enumerate(pickletools.genops(content)):
            if count > MOST:
                raise ValueError(f"more than {MOST:,} instructions are refused")
            if code.name == "STOP":
                break
            if code.name in LITERALS:
                if isinstance(argument, int) and argument.bit_length() > 63:
                    raise ValueError("integers of more than 64 bits are refused")
                self._stack.append(argument)
            elif code.name in CONSTANTS:
                self._stack.append(CONSTANTS[code.name])
            elif code.name not in ("PROTO", "FRAME"):
                self._run_instruction(code.name, argument)
        return self._stack.pop()

    def _run_instruction(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memoize_top(len(self._memo) if argument is None else argument)
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "MARK":
                self._below.append(stack)
                self._stack = []
            case "EMPTY_LIST" | "EMPTY_DICT":
                stack.append([] if name == "EMPTY_LIST" else {})
            case "LIST" | "TUPLE" | "DICT":
                items = self._to_mark()
                made = {"LIST": list, "TUPLE": tuple, "DICT": lambda i: _add_items({}, i)}[name]
                self._stack.append(made(items))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
            case "APPENDS" | "SETITEMS":
                items = self._to_mark()
                _add_items(self._stack[-1], items)
            case "APPEND" | "SETITEM":
                items = [stack.pop() for _ in range(1 + (name == "SETITEM"))][::-1]
                _add_items(stack[-1], items)
            case "GLOBAL" | "STACK_GLOBAL":
                words = [stack.pop(), stack.pop()][::-1] if argument is None else argument.split()
                stack.append(_find_global(".".join(words)))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(self._call_global(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                self._build_state(stack.pop(), state)
            case _:
                raise ValueError(f"the instruction {name} is refused")

    def _to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _memoize_top(self, place: int) -> None:
        self._memo[place] = self._stack[-1]
        if isinstance(self._stack[-1], _Unbuilt):
            self._stack[-1].places.append(place)

    def _build_state(self, target: Any, state: Any) -> None:
        match target, state:
            case _DType(), (int(), str(order), None, None, None, *_):
                target.order = order
            case _Unbuilt(), (int(), tuple(shape), _DType() as kind, int(by_column), data):
                places, order = target.places, "F" if by_column else "C"
                target = _make_array(self._encode_text(data), kind, shape, order)
                self._memo |= dict.fromkeys(places, target)
            case _:
                raise ValueError(f"a state of {type(target).__name__} is refused")
        self._stack.append(target)

    def _call_global(self, function: Any, arguments: Any) -> Any:
        """The value of a call of one of `GLOBALS`."""
        match function.name if isinstance(function, _Global) else None, arguments:
            case "_codecs.encode", (str(text), "latin1"):
                return self._encode_text(text)
            case "_codecs.encode", (_, encoding):  # other codecs could inflate or import
                raise ValueError(f"the encoding {encoding!r} is refused")
            case "numpy.dtype", (str(name), *_):
                return _DType(name)
            case "numpy._core.multiarray._reconstruct", (_Global(), *_):
                return _Unbuilt()
            case "numpy._core.numeric._frombuffer", (data, _DType() as kind, tuple(shape), order):
                return _make_array(data, kind, shape, order)
        raise ValueError(f"a call of {type(function).__name__} with such arguments is refused")

    def _encode_text(self, data: Any) -> Any:
        """Python 2 wrote bytes as text; once each, so they are no more than the file holds."""
        if not isinstance(data, str):
            return data
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("text that is encoded again and again is refused")
        return data.encode("latin1")


def _add_items(target: Any, items: list[Any]) -> Any:
    """A list with more items, or a dictionary with more pairs; keys are text alone."""
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, dict) and all(isinstance(key, str) for key in items[::2]):
        target.update(zip(items[::2], items[1::2], strict=True))
    else:
        raise ValueError(
            f"items for {type(target).__name__}, or keys that are no text, are refused"
        )
    return target


def _find_global(name: str) -> _Global:
    name = name.replace("numpy.core.", "numpy._core.", 1)
    if name not in GLOBALS:
        raise ValueError(f"the global {name} is refused")
    return _Global(name)


def _make_array(data: Any, given: _DType, shape: tuple[Any, ...], order: Any) -> np.ndarray:
    """An array of plain numbers."""
    if given.name not in NUMBERS or given.order not in ("<", ">", "|", "="):
        raise ValueError(f"arrays of {given.order}{given.name} are refused")
    dtype = np.dtype(given.order + given.name)
    sizes = all(isinstance(size, int) and size >= 0 for size in shape) and len(shape) <= MOST_AXES
    if not sizes or not isinstance(data, bytes | bytearray) or order not in ("C", "F"):
        raise ValueError("an array must be bytes in a shape and an order")
    if prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of {len(data):,} bytes must not have the shape {shape}")
    return np.ndarray(shape, dtype, data, order=order)
