"""From settings to a model: what is taken, what is refused, and a user's own factory."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from hotlap.errors import UsageError
from hotlap.models.build import build_model
from hotlap.models.gpt import GPT
from hotlap.models.resnet import ResNet
from hotlap.models.settings import ModelSettings
from hotlap.models.vit import ViT
from hotlap.records.codec import from_json, to_json

FACTORIES = """
from torch import nn

SIZE = 3

def linear(n_in, n_out=2):
    return nn.Linear(n_in, n_out)

def words():
    return "no model"

def broken():
    return nn.Linear(2, 2, tilt=1)
"""


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_factories.py").write_text(FACTORIES)
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_missing")
    (tmp_path / "needs_a_name.py").write_text("from own_factories import missing")
    monkeypatch.syspath_prepend(tmp_path)


def test_settings_reach_the_model() -> None:
    resnet = build_model(
        ModelSettings(
            name="resnet18", n_classes=7, n_channels=1, small_stem=True, zero_init_residual=True
        )
    )
    assert isinstance(resnet, ResNet)
    assert (resnet.fc.out_features, resnet.conv1.weight.shape) == (7, (64, 1, 3, 3))
    assert not resnet.layer1[0].bn2.weight.any()
    vit = build_model(ModelSettings(name="vit-tiny", n_classes=7, n_channels=4, image_size=32))
    assert isinstance(vit, ViT)
    assert (vit.head.out_features, vit.patches.in_channels) == (7, 4)
    assert vit.positions.shape == (1, 5, 192)
    gpt = build_model(
        ModelSettings(
            name="gpt",
            n_layers=2,
            n_heads=4,
            width=16,
            vocab_size=60,
            vocab_multiple=64,
            context=8,
            tied=False,
            dropout=0.25,
        )
    )
    assert isinstance(gpt, GPT)
    assert (len(gpt.blocks()), gpt.blocks()[0].attention.head_width) == (2, 4)
    assert (gpt.tokens.weight.shape, gpt.positions.weight.shape) == ((64, 16), (8, 16))
    assert (gpt.is_tied, gpt.dropout.p, gpt.blocks()[1].attention.dropout) == (False, 0.25, 0.25)


def test_the_default_is_resnet50() -> None:
    model = build_model(ModelSettings())
    assert isinstance(model, ResNet)
    assert len(model.blocks()) == 16


def test_settings_survive_being_written_and_read() -> None:
    settings = ModelSettings(factory="a.b:c", arguments={"n": 3, "names": ["x"]})
    assert from_json(ModelSettings, to_json(settings), "model") == settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet51"}, "model.name is 'resnet51'; there are resnet18, .*model.factory"),
        ({"name": "resnet18", "dropout": 0.1}, "model.dropout is 0.1, but resnet18 does not take"),
        ({"name": "vit-tiny", "small_stem": True}, "model.small_stem is True, but vit-tiny does"),
        ({"name": "gpt2-124m", "n_classes": 10}, "model.n_classes is 10, but gpt2-124m does not"),
        ({"name": "gpt2-124m", "n_layers": 6}, "model.n_layers is 6, but gpt2-124m does not"),
        ({"name": "resnet18", "arguments": {"a": 1}}, "model.arguments is .* does not take it"),
        ({"name": "gpt", "n_layers": 2, "width": 8}, "model.n_heads is not set; gpt has no size"),
        ({"name": "vit-tiny", "image_size": 225}, "image_size is 225; a ViT takes multiples"),
        ({"factory": "own_factories:linear", "n_classes": 5}, "n_classes is 5, but a factory's"),
        ({"factory": "own_factories:linear", "name": "resnet18"}, "model.name is 'resnet18', but"),
        ({"factory": "own_factories"}, "model.factory is 'own_factories'; it is written package"),
        ({"factory": "own_factories:"}, "it is written package.module:factory"),
        ({"factory": ".own_factories:linear"}, "it is written package.module:factory"),
        ({"factory": "not_there:linear"}, "model.factory: there is no module 'not_there'"),
        ({"factory": "own_factories.more:linear"}, "there is no module 'own_factories.more'"),
        ({"factory": "needs_more:make"}, "needs_more needs a module: .*a_module_that_is_missing"),
        ({"factory": "needs_a_name:make"}, "needs_a_name cannot be imported: .*'missing'"),
        ({"factory": "own_factories:liner"}, "the module own_factories has no 'liner'"),
        (
            {"factory": "own_factories:SIZE"},
            "own_factories:SIZE is of type int; it has to be callable",
        ),
        ({"factory": "own_factories:words"}, "own_factories:words returned str; it has to return"),
        ({"factory": "own_factories:linear"}, "model.arguments does not fit .*missing .*'n_in'"),
        (
            {"factory": "own_factories:linear", "arguments": {"n_in": 1, "wide": 2}},
            r"does not fit own_factories:linear\(n_in, n_out=2\): got .* 'wide'",
        ),
    ],
)
def test_settings_that_make_no_model_are_one_sentence(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_model(ModelSettings(**settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_classes": 0}, "model.n_classes is 0; it has to be at least 1"),
        ({"context": 0}, "model.context is 0; it has to be at least 1"),
        ({"vocab_multiple": 0}, "model.vocab_multiple is 0; it has to be at least 1"),
        ({"n_layers": -1}, "model.n_layers is -1; it has to be at least 0"),
        ({"dropout": 1.0}, "model.dropout is 1.0; it has to be at least 0 and less than 1"),
    ],
)
def test_a_value_that_fits_no_model_is_refused_when_it_is_read(
    settings: dict[str, float], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ModelSettings(**settings)


def test_a_factory_of_the_users_own_is_called_with_the_arguments() -> None:
    settings = ModelSettings(factory="own_factories:linear", arguments={"n_in": 5})
    model = build_model(settings)
    assert isinstance(model, nn.Linear)
    assert model.weight.shape == (2, 5)


def test_an_error_inside_a_factory_is_the_users_to_see() -> None:
    with pytest.raises(TypeError, match="tilt"):
        build_model(ModelSettings(factory="own_factories:broken"))


def test_image_size_may_stand_beside_any_model() -> None:
    settings = ModelSettings(name="resnet18", image_size=160)
    assert isinstance(build_model(settings), ResNet)
