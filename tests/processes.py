"""Tests that need a process of their own."""

import os
import subprocess
import sys
from pathlib import Path


def run_tests(file, environment, *options):
    """Run the tests of a file, which read the environment when they are imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [*command, *options, str(Path(__file__).parent / file)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout, result.stdout
