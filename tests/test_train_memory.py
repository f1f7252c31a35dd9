import subprocess
import sys

import pytest

from neural_similarity.train.memory import keep_freed_memory

COUNT_FAULTS = """
import resource, sys, torch
from neural_similarity.train.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not here")

def work():
    for _ in range(4):
        torch.empty(2**24).fill_(1)

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(how: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, how]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"malloc cannot be told here: {result.stderr.strip()}")
    return int(result.stdout)


def test_freed_memory_is_used_again_without_new_pages():
    assert new_pages("keep") < 100 < new_pages("leave")


@pytest.mark.skipif(sys.platform == "linux", reason="Linux may have glibc")
def test_other_systems_are_left_alone():
    assert not keep_freed_memory()
