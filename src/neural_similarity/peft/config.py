"""The configuration of a similarity as a PEFT adapter, and its place in PEFT's enum."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from peft import PeftConfig
from peft.utils.peft_types import PeftType

from neural_similarity.conversion.freezing import check_words
from neural_similarity.conversion.planning import identity_start
from neural_similarity.files import read_text, write_text
from neural_similarity.nn import Similarity, format_similarity


def _tuner_type(name: str) -> PeftType:
    """The member of PEFT's enum of tuners with this name, added where it is missing.

    PEFT registers tuners of others, but only under a name in its enum, which Python closes.
    """
    if name not in PeftType.__members__:
        member = str.__new__(PeftType, name)
        member._name_ = member._value_ = name
        kind = cast(Any, PeftType)
        kind._member_names_.append(name)
        kind._member_map_[name] = kind._value2member_map_[name] = member
        type.__setattr__(PeftType, name, member)
    return PeftType[name]


def require_all(conditions: Mapping[str, bool]) -> None:
    """Raise a `ValueError` with the first message whose condition does not hold."""
    for message in (message for message, holds in conditions.items() if not holds):
        raise ValueError(message)


NSL = _tuner_type("NSL")
_LOADING = """
## Load it

```python
import neural_similarity.peft  # PEFT knows the tuner NSL by it
from peft import PeftModel

model = PeftModel.from_pretrained(backbone, "OWNER/NAME")  # or a folder
```
"""
"""What a card says."""


@dataclass
class NslConfig(PeftConfig):
    """The configuration of a similarity as a PEFT adapter.

    Attributes:
        target_modules: Names or ends of names of layers, or a regular expression of whole names, as
            PEFT reads them, before the network was compiled or checkpointed; by default what
            `ns.convert` converts, or for a further adapter the layers that have one.
        similarity: A name or spec that starts at the identity, see `ns.convert`, made of the
            library's own parts. It is kept as its complete text.
        train: What trains with M, in the words of `ns.freeze_backbone`: "M+head", "M+norm",
            "M+bias", "M+all". The layers are copied for the adapter, as those of `modules_to_save`
            are, but by exact names, and with M; merging folds it into the copy's kernel.
        exclude_modules: Layers that `target_modules` names and M must not go to, in the same form.
        modules_to_save: Names of modules that train and are saved whole, such as a new head.
        bias: "none", "all" or "nsl_only": biases that train, too.
        init_weights: False starts M at random, for tests.

    Raises:
        ValueError: `similarity` is not such a similarity, `train` has other words or not M, or
            `bias` contradicts it.
    """

    target_modules: list[str] | set[str] | str | None = None
    similarity: Similarity | str = "static-full"
    train: str = "M"
    exclude_modules: list[str] | set[str] | str | None = None
    modules_to_save: list[str] | None = None
    bias: str = "none"
    init_weights: bool = True

    def __post_init__(self):
        super().__post_init__()
        self.peft_type = NSL
        for name in ("target_modules", "exclude_modules"):
            if isinstance(names := getattr(self, name), list):
                setattr(self, name, set(names))
        self.similarity = format_similarity(self.spec, complete=True)
        if "M" not in check_words(self.words):
            raise ValueError(f"`train` must name M, got {self.train!r}")
        if "bias" in self.words:
            if self.bias not in ("none", "all"):
                raise ValueError(
                    f"`bias` must be none or all where `train` names bias, got {self.bias!r}"
                )
            self.bias = "all"
        # No field, so that it is not saved: the tuner finds the layers that `train` names.
        self.trained: set[str] = set()

    @property
    def words(self) -> list[str]:
        """The words of `train`."""
        return self.train.split("+")

    def save_pretrained(self, save_directory: str, **kwargs: Any) -> None:
        """As PEFT's; the card of the network, beside or above, then says how to load it."""
        super().save_pretrained(save_directory, **kwargs)
        folder = Path(save_directory)
        for card in (folder / "README.md", folder.parent / "README.md"):
            text = read_text(card) if card.is_file() else ""
            if "library_name: peft" in text and _LOADING.strip() not in text:
                write_text(card, f"{text.rstrip()}\n{_LOADING}")

    @property
    def spec(self) -> Similarity:
        """The similarity as a spec."""
        return identity_start(self.similarity)
