"""A language model on a GPU, fed from the host, well tuned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda"
N_WORDS, LENGTH, WIDTH, N_HEADS, BATCH = 8192, 1024, 2048, 16, 16
tokens = torch.randint(1, N_WORDS, (2048, LENGTH))
data = TensorDataset(tokens, tokens.roll(-1, 1))
loader = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True, pin_memory=True)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (N_HEADS, -1)) for part in self.qkv(x).chunk(3, -1))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(N_WORDS, WIDTH)
        self.mix = Attention()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, N_WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        x = x + self.mix(x)
        return self.out(x + self.narrow(torch.relu(self.wide(x))))


model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

for _ in range(4):
    for inputs, targets in loader:
        inputs = inputs.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16):
            logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
