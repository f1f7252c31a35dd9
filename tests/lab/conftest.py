"""What many tests of the laboratory share."""

import pytest
from tiny_classes import tiny_classes as tiny_classes
from tiny_images import tiny as tiny

from neural_similarity.lab import cli


@pytest.fixture
def nsim(capsys):
    """Calls a command line, whose last words may hold spaces; what it prints, by out and err.

    What fails with 1 says so in its last line.
    """

    def call(line, *words, code=0):
        capsys.readouterr()
        exit_code = cli.main([*line.split(), *map(str, words)])
        told = capsys.readouterr()
        assert exit_code == code, told.err
        assert code != 1 or told.err.splitlines()[-1].startswith("nsim: "), told.err
        return told

    return call
