"""Surgery on any network: put similarities in, take them out, fold them."""

from neural_similarity.choices import public_names as _public_names
from neural_similarity.conversion.adapter_file import check_finite as check_finite
from neural_similarity.conversion.adapter_saving import save_adapter as save_adapter
from neural_similarity.conversion.adapter_switching import Adapters as Adapters
from neural_similarity.conversion.adapter_switching import adapters as adapters
from neural_similarity.conversion.adapter_switching import load_adapter as load_adapter
from neural_similarity.conversion.freezing import freeze_backbone as freeze_backbone
from neural_similarity.conversion.freezing import head_name as head_name
from neural_similarity.conversion.freezing import parts_of_word as parts_of_word
from neural_similarity.conversion.freezing import similarities_of as similarities_of
from neural_similarity.conversion.freezing import unfreeze_backbone as unfreeze_backbone
from neural_similarity.conversion.planning import plan as plan
from neural_similarity.conversion.surgery import convert as convert
from neural_similarity.conversion.surgery import fold as fold
from neural_similarity.conversion.surgery import max_difference as max_difference
from neural_similarity.conversion.surgery import unconvert as unconvert

__dir__ = _public_names(__name__)
