"""Functions that build networks, with or without M.

All of them share these arguments:

| argument | meaning |
|---|---|
| `num_classes` | number of outputs |
| `in_channels` | channels of the images |
| `image_size` | height and width of the images in pixels; ResNets take images of every size |
| `width` | factor on every number of channels |
| `similarity` | as in `ns.Conv2d`; not of 1×1 convolutions and SphereNets |

Each is a `torch.nn.Sequential` from (n, in_channels, image_size, image_size) to (n, num_classes).
Its last layer is the classifier, so that `network[:-1]` is the embedding and shares its parameters
(except in the "released" CNN-9, which ends in its scores). Each raises a `ValueError` if an
argument is out of range.
"""

from neural_similarity.choices import public_names as _public_names
from neural_similarity.models.building import MOST_WIDTH as MOST_WIDTH
from neural_similarity.models.building import ConvBlock as ConvBlock
from neural_similarity.models.building import conv_block as conv_block
from neural_similarity.models.building import has_pool as has_pool
from neural_similarity.models.building import set_norms as set_norms
from neural_similarity.models.building import without_pool as without_pool
from neural_similarity.models.catalogue import CIFAR_CLASSES as CIFAR_CLASSES
from neural_similarity.models.catalogue import MODELS as MODELS
from neural_similarity.models.catalogue import SPHERENETS as SPHERENETS
from neural_similarity.models.catalogue import WITHOUT_SIMILARITY as WITHOUT_SIMILARITY
from neural_similarity.models.catalogue import build as build
from neural_similarity.models.catalogue import options as options
from neural_similarity.models.catalogue import usual_sizes as usual_sizes
from neural_similarity.models.counts import macs as macs
from neural_similarity.models.counts import parameters as parameters
from neural_similarity.models.few_shot import resnet12 as resnet12
from neural_similarity.models.few_shot import wrn28_10 as wrn28_10
from neural_similarity.models.plain import cnn9 as cnn9
from neural_similarity.models.plain import cnn9_plus as cnn9_plus
from neural_similarity.models.plain import cnn9_wide as cnn9_wide
from neural_similarity.models.plain import cnn10 as cnn10
from neural_similarity.models.plain import cnn10_plus as cnn10_plus
from neural_similarity.models.plain import convnet4 as convnet4
from neural_similarity.models.resnet import resnet18 as resnet18
from neural_similarity.models.resnet import resnet34 as resnet34
from neural_similarity.models.resnet import resnet50 as resnet50
from neural_similarity.models.resnet_cifar import resnet20 as resnet20
from neural_similarity.models.resnet_cifar import resnet56 as resnet56
from neural_similarity.models.spherenet import spherenet9 as spherenet9

__dir__ = _public_names(__name__)
