import pytest
import torch

from neural_similarity.train import runtime
from neural_similarity.train.runtime import choose_runtime


def test_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`device` must be present, got 'cuda'"):
        choose_runtime("cuda")


def test_unknown_device_is_an_error():
    with pytest.raises(ValueError, match="`device` must be auto, cpu or cuda, got 'cud'"):
        choose_runtime("cud")


@pytest.mark.parametrize(
    ("supported", "bf16_seconds", "chosen"),
    [(True, 0.5, "bf16"), (True, 0.9, "fp32"), (True, 2.0, "fp32"), (False, 0.5, "fp32")],
)
def test_auto_precision_is_the_faster_one(monkeypatch, supported, bf16_seconds, chosen):
    seconds = {torch.bfloat16: bf16_seconds, torch.float32: 1.0}
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(runtime, "_convolution_seconds", seconds.__getitem__)
    assert choose_runtime("cpu").precision == chosen
    assert choose_runtime("cpu", "bf16").precision == "bf16"


def test_a_convolution_is_timed_in_both_precisions():
    assert all(runtime._convolution_seconds(d) > 0 for d in (torch.bfloat16, torch.float32))
