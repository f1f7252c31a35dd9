"""`save_pretrained`, `from_pretrained` and `push_to_hub` of Hugging Face, by `huggingface_hub`."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from neural_similarity.choices import missing_module, public_names
from neural_similarity.conversion import (
    check_finite,
    load_adapter,
    save_adapter,
    similarities_of,
)
from neural_similarity.conversion.adapter_saving import ADAPTER as ADAPTER
from neural_similarity.conversion.where import Parts
from neural_similarity.models import build
from neural_similarity.nn import Similarity, SimilarityName, format_similarity
from neural_similarity.nn.text import resolve_similarity

try:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
except ModuleNotFoundError as error:
    raise missing_module(error, "ns.hub needs huggingface_hub", "hub") from None

__all__ = ["ADAPTER", "Adapted", "Network"]
__dir__ = public_names(__name__)
_CARD = """---
{{ card_data }}
---

Convolutions of this network have a learned similarity M between kernel and patch, y = Wᵀ M x
([paper]({{ paper_url }})). Its similarities: {{ similarities }}; {{ scalars }} numbers.

```python
import neural_similarity as ns
{{ backbone }}
model = ns.hub.{{ call }}
```
"""


class _OnHub(
    PyTorchModelHubMixin,
    library_name="neural-similarity",
    paper_url="https://arxiv.org/abs/1910.13003",
    model_card_template=_CARD,
):
    """The hub's methods, with a card that says what M is and how to load it."""

    CALL: ClassVar[str]
    base_model: str | None = None

    def backbone_code(self) -> str:
        """The lines of the card that make what `CALL` needs."""
        return ""

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        parts = similarities_of(self)  # pyright: ignore[reportArgumentType]
        counts = Counter(repr(getattr(part, "spec", part)) for part in parts)
        facts = {
            "similarities": ", ".join(f"{n} × `{spec}`" for spec, n in counts.items()) or "none",
            "scalars": f"{sum(p.numel() for part in parts for p in part.parameters()):,}",
            "backbone": self.backbone_code(),
            "call": self.CALL,
        }
        card = super().generate_model_card(*args, **facts | kwargs)
        card.data["base_model"] = self.base_model
        return card


class Network(nn.Module, _OnHub):
    """A network of `ns.models` with the hub's methods; its folder holds all weights.

    Args:
        name: Name of the network, as in `ns.models.MODELS`.
        num_classes: Number of outputs.
        similarity: A name or spec made of the library's own parts.
        options: Other options of the network, such as `width`.

    Raises:
        ValueError: there is no such network or option; when loaded, a weight is not finite.
        RuntimeError: when loaded, weights are missing, or of another network.
    """

    CALL = 'Network.from_pretrained("OWNER/NAME")  # or a folder'

    def __init__(
        self,
        name: str,
        num_classes: int,
        similarity: Similarity | SimilarityName | None = None,
        **options: Any,
    ):
        super().__init__()
        self.network = build(name, num_classes, similarity=similarity, **options)
        text = format_similarity(resolve_similarity(similarity), complete=True)  # pyright: ignore[reportArgumentType]
        named = {"name": name, "num_classes": num_classes, "similarity": text}
        self._hub_mixin_config = named | options

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)

    @classmethod
    def _from_pretrained(cls, *, strict: bool = True, **options: Any) -> Self:
        loaded = super()._from_pretrained(strict=strict, **options)
        for name, tensor in loaded.state_dict().items():
            check_finite(name, tensor)
        return loaded


class Adapted(nn.Module, _OnHub):
    """A converted network with the hub's methods; its folder holds an adapter, see `save_adapter`.

    `Adapted.from_pretrained(folder_or_repository, backbone=model)` puts it on its backbone.

    Args:
        network: A converted network.
        extra: Names or globs of what to save besides similarities.
        base_model: The backbone's name on the hub, such as "timm/resnet18.a1_in1k", for the card.

    Raises:
        ValueError: as `save_adapter` when saved, as `load_adapter` when loaded.
    """

    CALL = 'Adapted.from_pretrained("OWNER/NAME", backbone=backbone)  # or a folder'

    def __init__(self, network: nn.Module, extra: Parts = (), base_model: str | None = None):
        super().__init__()
        self.network = network
        self.extra = extra
        self.base_model = base_model

    def backbone_code(self) -> str:
        """The lines of the card that make the backbone, as far as `base_model` says how."""
        name = self.base_model or "the network"
        if not name.startswith("timm/"):
            return f"\nbackbone = ...  # {name}, as it was before the conversion"
        return f'import timm\n\nbackbone = timm.create_model("hf-hub:{name}", pretrained=True)'

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_adapter(self.network, save_directory / ADAPTER, self.extra)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        backbone: nn.Module,
        extra: Parts = (),
        base_model: str | None = None,
        **where: Any,
    ) -> Self:
        if Path(model_id).is_dir():
            file = Path(model_id, ADAPTER)
        else:
            file = Path(hf_hub_download(model_id, ADAPTER, **where))
        return cls(load_adapter(backbone, file), extra, base_model)
