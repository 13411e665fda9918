"""A small training as a newcomer writes it: the levers' contract is tested on it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Stripes(Dataset):
    """Images with stripes of one of ten widths, the same ones in every epoch."""

    def __init__(self, n_images):
        self.n_images = n_images

    def __len__(self):
        return self.n_images

    def __getitem__(self, index):
        label = index % 10
        positions = torch.arange(3 * 16 * 16, dtype=torch.float32).reshape(3, 16, 16)
        image = torch.zeros(3, 16, 16)
        for harmonic in range(1, 9):
            image += torch.sin(positions * (label + 1) * harmonic / 10 + index) / harmonic
        return image, label


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, features):
        return features + torch.relu(self.norm(self.convolution(features)))


class Net(nn.Module):
    def __init__(self, width=16, n_blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(n_blocks)])
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        features = self.blocks(self.stem(images))
        return self.head(features.mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Stripes(256), batch_size=32, shuffle=True)

    for epoch in range(arguments.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            output = model(images)
            loss = criterion(output, labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
