"""The compiled operators on 64-bit Arm: cross-compiled, their tests run by an emulator."""

import shlex
import shutil

import pytest
from emulated import compile_for
from processes import run_tests

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: gcc-aarch64-linux-gnu, qemu-user)",
)
@pytest.mark.parametrize("march", ["armv8-a", "armv8.4-a+sve+bf16"])
def test_laws_hold(march, tmp_path):
    program = tmp_path / "operators"
    compile_for(COMPILER, [f"-march={march}"], program)
    run_tests(
        "ops/test_native.py", {"EMULATED": shlex.join([EMULATOR, str(program)])}, "-p", "emulated"
    )
