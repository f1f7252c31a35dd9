"""The README's first code block does what its comments say."""

import re
from pathlib import Path

import neural_similarity as ns

README = Path(__file__).parents[1] / "README.md"


def test_the_eight_lines(capsys):
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["y"].shape == (8, 128, 32, 32)
    assert not [m for m in names["plain"].modules() if isinstance(m, ns.Conv2d)]
    assert float(capsys.readouterr().out) < 1e-5
