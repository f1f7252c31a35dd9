"""What shells complete."""

import shutil
import subprocess

import pytest

from neural_similarity.lab import cli


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    path = tmp_path_factory.mktemp("shell") / "nsim"
    with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert cli.main(["completion", "bash"]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tab", "table"),
        ("train fewshot-quick", "fewshot-quickstart"),
        ("train quickstart --batch-s", "--batch-size"),
        ("train adapt --backb", "--backbone"),
        ("train rotation-90-tu", "rotation-90-turn"),
        ("report --o", "--out"),
    ],
)
def test_bash_completes(script, words, completed):
    typed = ["nsim", *words.split()]
    ask = f"source {script}; COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; _nsim"
    command = ["bash", "-c", f'{ask}; echo "${{COMPREPLY[@]}}"']
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == [completed]


def test_other_shells_are_told_what_there_is(capsys):
    assert cli.main(["completion", "cmd"]) == 2
    assert "no shell is named 'cmd'; there are bash, zsh" in capsys.readouterr().err
