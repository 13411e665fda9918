"""CUDA graphs of models of transformers, timm and torchvision, called as their users do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json
import timm
import torch
import torchvision
import transformers
from torch.nn import functional as F

N_STEPS = 12
kept = []


def losses_of(model, loss_of):
    model = model.cuda().train()
    kept.append(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(N_STEPS):
        torch.manual_seed(step)
        loss = loss_of(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def of_tokens(model):
    batch = {"input_ids": torch.randint(100, (4, 32), device="cuda")}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    return model(**batch, labels=batch["input_ids"]).loss


def of_images(model):
    images, labels = torch.randn(8, 3, 64, 64, device="cuda"), torch.arange(8, device="cuda")
    return F.cross_entropy(model(images), labels)


def gpt2():
    sizes = dict(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=64)
    dropouts = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config = transformers.GPT2Config(**sizes, **dropouts)
    return losses_of(transformers.GPT2LMHeadModel(config), of_tokens)


def llama():
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=100)
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    return losses_of(transformers.LlamaForCausalLM(config), of_tokens)


def bert():
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=100)
    dropouts = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = transformers.BertConfig(**sizes, **dropouts, num_attention_heads=2)
    return losses_of(transformers.BertForMaskedLM(config), of_tokens)


def timm_resnet18():
    return losses_of(timm.create_model("resnet18", num_classes=10), of_images)


def timm_vit():
    options = dict(img_size=64, num_classes=10, depth=2)
    return losses_of(timm.create_model("vit_tiny_patch16_224", **options), of_images)


def timm_convnext():
    return losses_of(timm.create_model("convnext_atto", num_classes=10), of_images)


def torchvision_resnet18():
    return losses_of(torchvision.models.resnet18(num_classes=10), of_images)


def torchvision_mobilenet():
    return losses_of(torchvision.models.mobilenet_v2(num_classes=10, dropout=0.0), of_images)


torch.backends.cudnn.deterministic = True
for name in NAMES:
    torch.manual_seed(0)
    print(json.dumps([name, globals()[name]()]), flush=True)
"""
NAMES = (
    *("gpt2", "llama", "bert", "timm_resnet18", "timm_vit", "timm_convnext"),
    *("torchvision_resnet18", "torchvision_mobilenet"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses by model without the lever, twice, and with it; what the lever told."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "train.py").write_text(f"NAMES = {NAMES!r}\n{SCRIPT}")
    lever = ("-m", "hotlap", "run", "--levers", "cuda_graphs=on")
    found = []
    for words in (("train.py",), ("train.py",), (*lever, "train.py")):
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith('["')]
        found.append(dict(lines))
        assert tuple(found[-1]) == NAMES
    events = [
        json.loads(line)
        for path in Path(folder).rglob("*.levers")
        for line in path.read_text().splitlines()
    ]
    print([event for event in events if "cuda_graphs" in event.values()])
    return *found, events


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_it_does(results: Any, name: str) -> None:
    """To the last bit, where the model itself does so from one run to the next."""
    plain, again, changed, _ = results
    if plain[name] == again[name]:
        assert changed[name] == plain[name]
    else:
        assert changed[name] == pytest.approx(plain[name], rel=1e-2)


def test_most_are_replayed(results: Any) -> None:
    done = [event["what"] for event in results[3] if event.get("done") == "cuda_graphs"]
    assert len(done) >= len(NAMES) - 2
