"""Surgery on any network: put similarities in, take them out, fold them."""

from neural_similarity.convert.comparison import max_difference as max_difference
from neural_similarity.convert.freezing import freeze_backbone as freeze_backbone
from neural_similarity.convert.freezing import unfreeze_backbone as unfreeze_backbone
from neural_similarity.convert.planning import plan as plan
from neural_similarity.convert.surgery import convert as convert
from neural_similarity.convert.surgery import fold as fold
from neural_similarity.convert.surgery import unconvert as unconvert
