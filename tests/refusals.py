"""Tables of calls that are refused, and the words of their errors."""

import pytest


def refusals(*rows, call=lambda make: make(), error=ValueError):
    """A test of every row: what `call` is given (by default a function), and the words."""

    @pytest.mark.parametrize("row", rows, ids=lambda row: row[-1])
    def refused(row):
        with pytest.raises(error, match=row[-1]):
            call(*row[:-1])

    return refused
