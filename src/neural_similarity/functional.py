"""The operators as functions of tensors."""

from neural_similarity.choices import public_names as _public_names
from neural_similarity.ops import fold_kernel as fold_kernel
from neural_similarity.ops import global_attention as global_attention
from neural_similarity.ops import global_similarity as global_similarity
from neural_similarity.ops import patch_norm as patch_norm
from neural_similarity.ops import similarity_conv1d as similarity_conv1d
from neural_similarity.ops import similarity_conv2d as similarity_conv2d
from neural_similarity.ops import similarity_conv3d as similarity_conv3d
from neural_similarity.ops import sphere_conv2d as sphere_conv2d

__dir__ = _public_names(__name__)
