"""A pytest plugin for `scripts/shapes.sh`: how annotations are checked at every call."""

from contextlib import contextmanager
from typing import Annotated, Any, Self

import pytest
import torch
from beartype import BeartypeConf, FrozenDict, beartype
from beartype.vale import Is
from jaxtyping import TypeCheckError

Size = int | torch.SymInt | Annotated[torch.Tensor, Is[lambda _: torch.jit.is_tracing()]]
"""What a size is: a symbol to exporters, a tensor to `torch.jit.trace`."""
MEANINGS = {int: Size, float: float | Size, Self: Any}
"""Self is left to pyright: methods are checked one by one, outside their class."""

checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict(MEANINGS)))
raises = pytest.raises


@contextmanager
def refused(error, **options):
    """`pytest.raises` that skips the rest of a test where an annotation refuses first."""
    with raises(error, **options) as info:
        try:
            yield info
        except (TypeError, ValueError) as came:
            if any(isinstance(e, TypeCheckError) for e in (came, came.__context__)):
                pytest.skip("an annotation refuses it first")
            raise


@pytest.fixture(autouse=True)
def _where_checks_stand_in_the_way(monkeypatch):
    monkeypatch.setattr(pytest, "raises", refused)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.skip("compilers see the checks"))
