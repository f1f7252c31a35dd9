"""Pickles of data: arrays of plain numbers are read, nothing else can be made or called."""

import pickle

import numpy as np
import pytest

from neural_similarity.lab.data.unpickling import unpickle_arrays

RECONSTRUCT = np.empty(0).__reduce__()[0]
FIELDS = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
"""A state of `numpy.dtype`: one object in 8 bytes, with flags that deny it."""


class Made:
    """Pickles as a call, with a state."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def array(dtype, data=b"A" * 8, shape=(1,), version=1):
    """An array of a made-up type or state."""
    state = (version, shape, dtype, False, data)
    return Made(RECONSTRUCT, (np.ndarray, (0,), b"b"), state)


def read(tmp_path, content):
    path = tmp_path / "some.pkl"
    path.write_bytes(content)
    return unpickle_arrays(path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["?", "i1", "<i8", ">i4", ">u2", "<f4", ">f8", "f2", "u1"])
def test_arrays_of_numbers(tmp_path, kind, protocol):
    values = np.arange(12).reshape(3, 4).astype(kind)
    value = {"c": values, "f": np.asfortranarray(values), "same": [values, values.dtype.name]}
    found = read(tmp_path, pickle.dumps(value, protocol))
    for name in ("c", "f"):
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)
    assert np.array_equal(found["same"][0], values)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values(tmp_path, protocol):
    value = {"a": [1, -(2**40), 0.5, None, True, False], "b": {"c": ("x", "ä", ())}, "d": [[]] * 3}
    value["e"] = {str(i): list(range(i)) for i in range(300)}
    value["f"] = tuple("abcdef"), [1], "text" * 100
    if protocol > 2:
        value["g"] = b"bytes", b"more" * 100
    assert read(tmp_path, pickle.dumps(value, protocol)) == value


HOSTILE = {
    "hidden object": {"a": array(Made(np.dtype, ("V8",), FIELDS))},
    "object": {"a": array(np.dtype("O"), [1])},
    "objects in a buffer": {"a": array(np.dtype("O"))},
    "text": {"a": array(np.dtype("S8"))},
    "dates": {"a": array(np.dtype("M8[s]"))},
    "too few bytes": {"a": array(np.dtype("u1"), b"A" * 7, (8,))},
    "negative": {"a": array(np.dtype("u1"), b"", (-1,))},
    "shape of floats": {"a": array(np.dtype("u1"), b"A", (1.0,))},
    "huge shape": {"a": array(np.dtype("u1"), b"", (2**62, 2**62, 0))},
    "state of a type": Made(np.dtype, ("u1",), (3, "|", ("u1", (9,)), None, None, -1, -1, 0)),
    "call of an array": Made(np.ndarray, ((4,), "O")),
    "key that is no text": {(1, 2): 3},
    "integer of 80 bits": {"a": 1 << 80},
    "set": {"a": {1, 2}},
}
BYTES = {
    "deep key": b"()" + b"\x85" * 200_000 + b"K\x01d.",
    "deep list": b"]" * 200_000 + b"a" * 199_999 + b".",
    "length of bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "length of an integer": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
    "items of a type": b"cnumpy\ndtype\n(S'a'\nK\x01u.",
    "state of a function": b"c_codecs\nencode\n(NS'x'\ndb.",
    "persistent": b"Pid\n.",
    "class": b"(icollections\nOrderedDict\n.",
    "call of the system": b"cos\nsystem\n(S'true'\ntR.",
    "another function of numpy": b"cnumpy\nload\n(S'x'\ntR.",
    "attribute of an array": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.",
    "codec": b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
    "extension": b"\x82\x01.",
    "instructions": b"]" + b"Na" * 500_001 + b".",
    "text again": b"c_codecs\nencode\nq\0V"
    + b"A" * 9_999
    + b"\nq\1"
    + b"h\0(h\1Vlatin1\ntR" * 99
    + b"d.",
    "shape without end": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\ntR(K\1("
    + b"J\xff\xff\xff\x7f" * 200_000
    + b"tcnumpy\ndtype\n(Vu1\ntRI00\nVA\ntb.",
    "no stop": b"}",
    "nothing": b"",
    "mark": b"(.",
    "stack": b"\x85.",
}


@pytest.mark.parametrize("name", [*HOSTILE, *BYTES])
def test_anything_else_is_refused(tmp_path, name):
    contents = [BYTES[name]] if name in BYTES else [pickle.dumps(HOSTILE[name], p) for p in (2, 4)]
    for content in contents:
        with pytest.raises(ValueError, match=r"some\.pkl must (be a pickle of|hold a dictionary)"):
            read(tmp_path, content)


def test_a_place_in_the_memo_costs_nothing(tmp_path):
    """`pickle` makes room for all places below, 64 GiB of them."""
    assert read(tmp_path, b"\x80\x02}r\xff\xff\xff\xff.") == {}
