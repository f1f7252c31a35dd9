from neural_similarity.peft.config import NslConfig as NslConfig
from neural_similarity.peft.files import export_adapter as export_adapter
from neural_similarity.peft.files import import_adapter as import_adapter
from neural_similarity.peft.nsl_layer import NslLayer as NslLayer
from neural_similarity.peft.tuner import NslModel as NslModel
