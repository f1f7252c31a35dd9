"""The laws that a layer with a similarity must obey, for new structures, predictors and layers.

```python
@pytest.mark.parametrize("law", [law for law in ns.testing.LAWS if law != "text"])
@pytest.mark.parametrize("case", ns.testing.cases(MyStructure()), ids=str)
def test_my_structure(law, case):
    if reason := ns.testing.check(law, case):
        pytest.skip(reason)
```

"text" applies only to the library's own specs, which can be written on a command line.
"""

from neural_similarity.choices import public_names as _public_names
from neural_similarity.testing.laws import LAWS as LAWS
from neural_similarity.testing.laws import QUICK as QUICK
from neural_similarity.testing.laws import SCALES as SCALES
from neural_similarity.testing.laws import Law as Law
from neural_similarity.testing.laws import check as check
from neural_similarity.testing.laws import torch_autocasts_lstm as torch_autocasts_lstm
from neural_similarity.testing.layer_cases import LAYERS as LAYERS
from neural_similarity.testing.layer_cases import STRUCTURES as STRUCTURES
from neural_similarity.testing.layer_cases import Case as Case
from neural_similarity.testing.layer_cases import Make as Make
from neural_similarity.testing.layer_cases import NotApplicableError as NotApplicableError
from neural_similarity.testing.layer_cases import cases as cases

__dir__ = _public_names(__name__)
