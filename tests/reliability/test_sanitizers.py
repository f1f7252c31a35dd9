"""The C code under the sanitizers of addresses and of undefined behaviour, beside float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compiler import in_c
from reliability.counts import record

CALLS = int(os.environ.get("RELIABILITY_CALLS", "600"))
SCRIPT = Path(__file__).parents[2] / "scripts" / "sanitize.py"


@in_c
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers' libraries are loaded first")
def test_the_c_code_runs_clean():
    command = [sys.executable, str(SCRIPT), "--calls", str(CALLS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    clean = result.returncode == 0 and result.stdout.startswith(f"clean: {CALLS} calls")
    record("calls of the C code under ASan and UBSan", tried=CALLS, errors=int(not clean))
    assert clean, result.stderr[-4000:]
