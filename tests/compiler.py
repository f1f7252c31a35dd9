"""What a test needs of a machine: a C compiler."""

import pytest
import torch

from neural_similarity.ops import native

MISSING = native.declines_native(torch.zeros(1), 1)
in_c = pytest.mark.skipif(MISSING is not None, reason=f"the operator is only in C: {MISSING}")
