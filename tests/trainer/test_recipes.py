"""Recipes: what can be written, and what is said of what cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.errors import UsageError
from hotlap.trainer.recipe import keys, recipes, resolve, show


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_described_and_shows_what_gives_it_again(name: str, tmp_path: Path) -> None:
    assert len(recipes()[name].split()) >= 4
    settings = resolve(name)
    file = tmp_path / "again.toml"
    file.write_text(show(settings))
    assert resolve(str(file)) == settings


def test_a_setting_is_changed_by_its_name_or_its_table_and_name() -> None:
    settings = resolve("gpt2-124m", ["lr=0.5", "loop.batch=7", "betas=[0.8, 0.9]", "fused=true"])
    assert settings.optimizer.lr == 0.5
    assert settings.loop.batch == 7
    assert settings.optimizer.betas == (0.8, 0.9)
    assert settings.optimizer.fused is True
    assert resolve("gpt2-124m", ["output.folder=my runs"]).output.folder == "my runs"


def test_a_mesh_is_one_setting_or_several() -> None:
    for changes in (["mesh=dp=4 shard=2 tp=2"], ["dp=4", "shard=2", "mesh.tp=2"]):
        mesh = resolve("gpt2-124m", changes).mesh
        assert (mesh.pp, mesh.dp, mesh.shard, mesh.tp) == (1, 4, 2, 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["lrr=0.1"], "there is no setting 'lrr'; did you mean optimizer.lr?"),
        (["optimizer.rate=1"], "there is no setting 'optimizer.rate'"),
        (["batch=x"], "key 'loop.batch' is 'x'; a whole number is expected"),
        (["batch=2.5"], "key 'loop.batch' is 2.5; a whole number is expected"),
        (["batch=true"], "key 'loop.batch' is True; a whole number is expected"),
        (["batch=0"], "loop.batch is 0; it has to be at least 1"),
        (["precision=fp4"], "key 'compute.precision' is 'fp4'; one of 'fp32'"),
        (["label_smoothing=1"], "loop.label_smoothing is 1.0; it has to be at least 0"),
        (["context=3"], "'context' could be model.context or data.context: write which"),
        (["quick"], "'quick' is no setting; one is written key=value"),
        (["=3"], "'=3' is no setting"),
        (["mesh=dp=0"], "mesh: 'dp=0' was found"),
        (["mesh=ep=2"], "mesh: 'ep=2' was found"),
        (["channels_last=true"], "compute.channels_last and loop.phases are for images"),
        (["optimizer.name=adam"], "key 'optimizer.name' is 'adam'; one of 'sgd'"),
        (["optimizer=3"], "there is no setting 'optimizer'"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(changes: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("gpt2-124m", changes)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'resnet' is no recipe; there are gpt"):
        resolve("resnet")
    with pytest.raises(UsageError, match=r"the recipe .*missing\.toml does not exist"):
        resolve(str(tmp_path / "missing.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[loop\nbatch = 3")
    with pytest.raises(UsageError, match=r"the recipe .*broken\.toml cannot be read"):
        resolve(str(broken))
    unknown = tmp_path / "unknown.toml"
    unknown.write_text("[loop]\nbatches = 3")
    with pytest.raises(
        UsageError, match=r"there is no setting 'loop\.batches'; did you mean loop\.batch"
    ):
        resolve(str(unknown))


def test_no_two_tables_hide_a_setting_of_the_mesh() -> None:
    """`dp=2` is taken for the mesh without asking: no other table may have that name."""
    assert not [key for key in keys() if key.rpartition(".")[2] in ("pp", "dp", "shard", "tp")
                and not key.startswith("mesh.")]  # fmt: skip


def run_hotlap(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotlap", "train", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_lists_shows_and_refuses() -> None:
    listed = run_hotlap("--list")
    assert listed.returncode == 0
    assert {line.split()[0] for line in listed.stdout.splitlines()} == set(recipes())
    shown = run_hotlap("gpt2-124m", "--show", "lr=0.25")
    assert "lr = 0.25" in shown.stdout
    for words in ((), ("nothing",), ("gpt2-124m", "lrr=1")):
        refused = run_hotlap(*words)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
