"""The network of the package."""

from torch import Tensor, nn


class Autoencoder(nn.Module):
    def __init__(self, width: int = 784, hidden: int = 512) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 32))
        self.decoder = nn.Sequential(nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))
