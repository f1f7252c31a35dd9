"""Trainers of others: convert, train, save, go on, reload, fold. Each skips where it is missing."""

import re
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import neural_similarity as ns


def network():
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)).eval()


@pytest.fixture
def backbone():
    return network()


@pytest.fixture
def x():
    return torch.randn(4, 3, 16, 16)


def images():
    torch.manual_seed(1)
    return [(torch.randn(3, 16, 16), index % 3) for index in range(16)]


def converted(backbone):
    return ns.freeze_backbone(ns.convert(backbone, "static-full"), train="6")


def check_shipping(model, backbone, x, tmp_path):
    """M has moved; adapter and fold compute what the network does."""
    model.eval()
    assert ns.max_difference(model, backbone, x) > 1e-3
    raw = [p for name, p in model.named_parameters() if name.endswith("similarity.raw")]
    assert len(raw) == 2
    assert all(p.any() for p in raw)
    file = ns.save_adapter(model, tmp_path / "adapter")
    assert ns.max_difference(ns.load_adapter(backbone, file), model, x) == 0
    folded = ns.fold(model)
    assert not any(isinstance(part, ns.nn.SimilarityLayer) for part in folded.modules())
    assert ns.max_difference(folded, model, x) < 1e-5


def test_accelerate(backbone, x, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(images(), batch_size=4)
    model = converted(backbone)
    learned = [p for p in model.parameters() if p.requires_grad]
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(learned, lr=0.5), loader)
    for batch, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model.train()(batch), labels))
        optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    nn.init.zeros_(next(p for n, p in model.named_parameters() if n.endswith("similarity.raw")))
    accelerator.load_state(str(tmp_path / "state"))
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    check_shipping(accelerator.unwrap_model(model), backbone, x, tmp_path)


def test_hooks_of_accelerate_are_seen(backbone, x):
    """They replace `forward` before or after a conversion; what would skip M is refused."""
    hooks = pytest.importorskip("accelerate.hooks")
    model = ns.convert(backbone, "static-full")
    nn.init.normal_(model[0].similarity.raw)
    y = model(x)
    hooks.add_hook_to_module(model[0], hooks.ModelHook())
    assert torch.equal(model(x), y)
    for surgery in (ns.fold, ns.unconvert):
        with pytest.raises(ValueError, match=r"layer '0': .* its class's own `forward`"):
            surgery(model)
    hooks.remove_hook_from_module(model[0])
    assert (ns.fold(model)(x) - y).abs().max() < 1e-5
    assert torch.equal(ns.unconvert(model)(x), backbone(x))
    hooks.add_hook_to_module(backbone[0], hooks.ModelHook())
    with pytest.raises(ValueError, match="a replaced `forward`"):
        ns.convert(backbone, "static-full", "0")


def adapted(model):
    """A module of Lightning that trains what is not frozen."""

    class Adapted(pytest.importorskip("lightning").LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.5)

    return Adapted()


def fit(module, epochs, *callbacks, checkpoint=None):
    """Lightning's trainer at the end."""
    trainer = pytest.importorskip("lightning").Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[*callbacks],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(images(), batch_size=4)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer


def shown(start):
    """The lines of docs/how-to/timm.md that begin so."""
    page = (Path(__file__).parents[2] / "docs/how-to/timm.md").read_text("utf-8")
    (block,) = re.findall(rf"```py\n({start}.*?)```", page, re.DOTALL)
    return block


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_lightning(backbone, x, tmp_path):
    module, resumed = (adapted(converted(network())) for _ in range(2))
    fit(module, 1).save_checkpoint(tmp_path / "half")
    fit(resumed, 2, checkpoint=tmp_path / "half")
    assert resumed.model.state_dict().keys() == module.model.state_dict().keys()
    assert ns.max_difference(resumed.model, module.model, x) > 1e-5
    check_shipping(resumed.model, backbone, x, tmp_path)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_adapter_of_an_average(backbone, x, tmp_path, monkeypatch):
    """Of Lightning's average and of timm's."""
    callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    module = adapted(converted(network()))
    module.average = pytest.importorskip("timm").utils.ModelEmaV3(module.model, decay=0.7)
    last = []

    class Noted(callbacks.Callback):
        def on_before_zero_grad(self, *_):
            module.average.update(module.model)

        def on_train_batch_end(self, *_):
            last[:] = [module.model[0].similarity.raw.detach().clone()]

    fit(module, 2, Noted(), callbacks.EMAWeightAveraging(decay=0.7))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"not as ns\.freeze_backbone saw them: model\.0\.weight"):
        ns.save_adapter(module, "rounded")
    for average in (module.model, module.average.module):
        raw = average[0].similarity.raw.clone()
        assert (raw - last[0]).abs().max() > 1e-3
        names = {"model": module.model, "average": average, "backbone": backbone, "ns": ns}
        exec(shown("learned = "), names)
        loaded = ns.load_adapter(backbone, "mine.safetensors")
        assert torch.equal(loaded[0].similarity.raw, raw)
        assert ns.max_difference(loaded, average, x) == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_lightning_averages_a_frozen_network(backbone, x, tmp_path):
    names = {"lightning": pytest.importorskip("lightning")}
    exec(shown("class FrozenAverage"), names)
    module = adapted(converted(backbone))
    fit(module, 4, names["FrozenAverage"](swa_lrs=0.1, swa_epoch_start=2))
    check_shipping(module.model, backbone, x, tmp_path)
    file = ns.save_adapter(module, tmp_path / "module")
    assert ns.max_difference(ns.load_adapter(backbone, file), module.model, x) == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("train", ["M+head", "M+norm+head", "head", "6"])
def test_lightning_trains_parts_first_then_all(backbone, train):
    lightning = pytest.importorskip("lightning")
    names, kernels, with_m = {"lightning": lightning, "ns": ns}, [], "M" in train
    exec(shown("class PartsThenAll"), names)
    module = adapted(ns.convert(backbone, "static-full") if with_m else deepcopy(backbone))

    class Noted(lightning.Callback):
        def on_train_epoch_end(self, *_):
            kernels.append(module.model[0].weight.detach().clone())

    fit(module, 3, names["PartsThenAll"](train, 2), Noted())
    assert all(torch.equal(kernel, backbone[0].weight) for kernel in kernels[:2])
    assert not torch.equal(kernels[2], backbone[0].weight)
    assert not torch.equal(module.model[6].weight, backbone[6].weight)
    assert not with_m or module.model[0].similarity.raw.any()


def resnet_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = transformers.ResNetConfig(num_labels=3, layer_type="basic", **sizes)
    return transformers.ResNetForImageClassification(config).eval()


def train_by_transformers(folder, model, steps, resume=None):
    """The Trainer; the model is in evaluation mode afterwards."""
    transformers = pytest.importorskip("transformers")
    torch.use_deterministic_algorithms(False)
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, save_steps=2, per_device_train_batch_size=4,
        learning_rate=1e-2, report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
    )  # fmt: skip
    data = [{"pixel_values": image, "labels": label} for image, label in images()]
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    model.eval()
    return trainer


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_transformers(x, tmp_path, caplog):
    """`save_pretrained` and Trainer; a Trainer goes on, and what it saved has M."""
    transformers = pytest.importorskip("transformers")
    backbone = resnet_of_transformers()
    train = partial(train_by_transformers, tmp_path / "run")

    def fresh():
        return ns.freeze_backbone(ns.convert(backbone, "static-full"), train="classifier")

    model, again = fresh(), fresh()
    train(model, 4)
    assert "from_pretrained" in caplog.text
    whole = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    train(again, 4, str(tmp_path / "run" / "checkpoint-2"))
    assert all(torch.equal(whole[key], tensor) for key, tensor in again.state_dict().items())
    train(model, 6, True).save_model(str(tmp_path / "end"))
    kind = transformers.AutoModelForImageClassification
    for folder in ("end", "run/checkpoint-6"):
        plain = kind.from_pretrained(str(tmp_path / folder)).eval()
        assert ns.max_difference(plain, model, x) > 1e-3  # It has no M, as the page says.
        loaded = ns.load_adapter(plain, tmp_path / folder / "adapter.safetensors")
        assert ns.max_difference(loaded, model, x) == 0
    file = ns.save_adapter(model, tmp_path / "adapter")
    assert ns.max_difference(ns.load_adapter(backbone, file), model, x) == 0
    folded = ns.fold(model)
    folded.save_pretrained(str(tmp_path / "folded"))
    assert not (tmp_path / "folded" / "adapter.safetensors").exists()
    reloaded = kind.from_pretrained(str(tmp_path / "folded")).eval()
    assert ns.max_difference(reloaded, model, x) < 1e-4


def test_strict_loaders_get_m_as_the_warning_says(x, tmp_path, caplog):
    hub = pytest.importorskip("huggingface_hub")

    class Network(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return self.body(x)

    load, model = Network.from_pretrained, ns.convert(Network().eval(), "static-full")
    nn.init.normal_(model.body[0].similarity.raw)
    model.save_pretrained(tmp_path / "whole")
    assert "unless strict=False; ns.load_adapter(of that" in caplog.text
    with pytest.raises(RuntimeError, match=r"similarity\.raw"):
        load(tmp_path / "whole", strict=True)
    plain = load(tmp_path / "whole", strict=False).eval()
    loaded = ns.load_adapter(plain, tmp_path / "whole" / "adapter.safetensors")
    assert ns.max_difference(loaded, model, x) == 0
    folded = ns.fold(model)
    folded.save_pretrained(tmp_path / "folded")
    assert ns.max_difference(load(tmp_path / "folded", strict=True).eval(), folded, x) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ultralytics_own_trainer_keeps_m(tmp_path, monkeypatch, capsys):
    """The example: trained, trained on, validated, fused, exported; the adapter is of best.pt."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    trainer = pytest.importorskip("ultralytics.engine.trainer", reason="AGPL, in no group")
    # An average that is late after some updates, too, as Ultralytics' own is after thousands.
    monkeypatch.setattr(trainer, "ModelEMA", partial(trainer.ModelEMA, tau=2))
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    torch.use_deterministic_algorithms(False)
    import_module("yolo").main(tmp_path)
    assert "moved; without it the boxes move by" in capsys.readouterr().out
