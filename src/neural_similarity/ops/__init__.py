"""Functions on tensors: what the operators mean, and how they are computed. Imports torch only."""

from neural_similarity.choices import public_names as _public_names
from neural_similarity.ops import flops as flops
from neural_similarity.ops.backend import BACKENDS as BACKENDS
from neural_similarity.ops.backend import Backend as Backend
from neural_similarity.ops.backend import declines as declines
from neural_similarity.ops.kernel import fold_kernel as fold_kernel
from neural_similarity.ops.similarity import similarity_conv as similarity_conv
from neural_similarity.ops.similarity import similarity_conv1d as similarity_conv1d
from neural_similarity.ops.similarity import similarity_conv2d as similarity_conv2d
from neural_similarity.ops.similarity import similarity_conv3d as similarity_conv3d
from neural_similarity.ops.sphere import patch_norm as patch_norm
from neural_similarity.ops.sphere import sphere_conv2d as sphere_conv2d
from neural_similarity.ops.whole_map import attention_matrix as attention_matrix
from neural_similarity.ops.whole_map import global_attention as global_attention
from neural_similarity.ops.whole_map import global_similarity as global_similarity
from neural_similarity.ops.window import promote_dtype as promote_dtype
from neural_similarity.ops.window import require_tensors as require_tensors
from neural_similarity.ops.window import unit_vectors as unit_vectors
from neural_similarity.ops.window import without_autocast as without_autocast

__dir__ = _public_names(__name__)
