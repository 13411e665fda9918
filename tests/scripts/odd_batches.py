"""A loader whose batches are mappings that cannot be looked through."""

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Odd(dict[str, Tensor]):
    def values(self) -> Any:
        raise RuntimeError("planted in values()")


def collate(items: list[Tensor]) -> Odd:
    return Odd(x=torch.stack(items))


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for batch in DataLoader(torch.randn(48, 4), batch_size=4, collate_fn=collate):
    optimizer.zero_grad()
    loss = model(batch["x"]).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    steps += 1
print(json.dumps({"steps": steps, "samples": 48, "validations": 0, "val_batches": 0}))
