"""All that a script can see of how it was started; with `torch`, also after training steps."""

import os
import random
import signal
import sys


def show() -> None:
    print("path", sys.path)
    print("argv", sys.argv, sys.orig_argv[1:])
    print("name", __name__)
    print("file", globals().get("__file__"))
    print("spec", __spec__ and __spec__.name)
    print("cwd", os.getcwd())
    print("flags", sys.flags)
    print("hooks", sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile())
    print("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, []))
    print("handlers", [signal.getsignal(n) for n in sorted(signal.valid_signals())])
    print("umask", oct(os.umask(0o22)))
    print("random", hash(random.getstate()) and random.seed(0))
    print("site", getattr(sys, "site_was_here", None))
    print("sitecustomize", getattr(sys.modules.get("sitecustomize"), "OWNER", None))
    print("stdin", sys.stdin.isatty(), sys.stdin.encoding)


def train() -> None:
    import torch

    print("seed", torch.initial_seed() == torch.default_generator.initial_seed())
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    print("generator", torch.get_rng_state().sum().item())
    print("hooks", len(model._forward_hooks), len(model._backward_hooks))
    print("state", list(model.state_dict()), model)
    print("qualname", type(model).__call__.__qualname__, torch.nn.Module.__call__.__module__)


show()
if "torch" in sys.argv:
    train()
    show()
