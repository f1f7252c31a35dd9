import ctypes
import subprocess
import sys

import pytest

from neural_similarity.lab.train.memory import keep_freed_memory

COUNT_FAULTS = """
import resource, torch
from neural_similarity.lab.train.memory import keep_freed_memory
torch.set_num_threads(1)

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.empty(2**24).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left = new_pages()
assert keep_freed_memory()
new_pages()
print(left, new_pages())
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's")
def test_freed_memory_is_used_again_without_new_pages():
    command = [sys.executable, "-c", COUNT_FAULTS]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    left, kept = map(int, output.split())
    assert 4 * kept < left


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
