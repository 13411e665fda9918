"""A lever's change as an edit of the source: in the text, formatting kept, or not at all."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from hotlap.levers.common.edits import (
    Edit,
    apply_edits,
    can_apply,
    change_arguments,
    describe,
    insert_after_import,
    insert_before,
    read_source,
    set_environment,
    tell,
    unified_diff,
    wrap_block,
    wrap_call,
)
from hotlap.levers.common.workload import Site

FILE = "/somewhere/train.py"
LAST = "{function}({first}.to(memory_format=torch.channels_last){rest})"
CHECKPOINT = "checkpoint({function}, {first}{rest}, use_reentrant=False)"
AMP = 'with torch.autocast("cpu"):'


def plain(text: str) -> str:
    """A source of the table, without the indentation it has there."""
    return dedent(text).lstrip("\n")


def marked(text: str) -> tuple[str, list[Site]]:
    """The source without its marks `#1`, `#2`, …, and the lines that these were on."""
    sites: dict[int, Site] = {}
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        for mark in range(1, 5):
            if line.rstrip("\r").endswith(f"#{mark}"):
                sites[mark] = Site(FILE, number)
                line = line.replace(f"  #{mark}", "")
        lines.append(line)
    return "\n".join(lines), [site for _, site in sorted(sites.items())]


def edited(text: str, *make: Callable[..., Edit]) -> str | None:
    """What becomes of a source with marks; None where no edit fits."""
    source, sites = marked(text)
    edits = [one(*sites) for one in make]
    new = apply_edits(edits, lambda file: source)
    assert [can_apply(edit, lambda file: source) for edit in edits] == [bool(new)] * len(edits)
    for result in new.values():
        ast.parse(result)
    return new.get(FILE)


def arguments(call: str = "DataLoader", **new: str) -> Callable[..., Edit]:
    return lambda *sites: change_arguments(sites[0], call, **new)


def before(text: str) -> Callable[..., Edit]:
    return lambda *sites: insert_before(sites[0], text, sites[1] if len(sites) > 1 else None)


def behind_imports(text: str) -> Callable[..., Edit]:
    return lambda *sites: insert_after_import(sites[0], text)


def call(text: str = LAST) -> Callable[..., Edit]:
    return lambda *sites: wrap_call(sites[0], text)


def block(text: str = AMP) -> Callable[..., Edit]:
    return lambda *sites: wrap_block(sites[0], sites[1], text)


ARGUMENTS = {
    "on one line": (
        "loader = DataLoader(data, batch_size=4)  #1",
        "loader = DataLoader(data, batch_size=4, num_workers=2)",
    ),
    "by its full name": (
        "loader = torch.utils.data.DataLoader(data)  #1",
        "loader = torch.utils.data.DataLoader(data, num_workers=2)",
    ),
    "under another name": (
        "from torch.utils.data import DataLoader as DL\nloader = DL(data)  #1",
        "from torch.utils.data import DataLoader as DL\nloader = DL(data, num_workers=2)",
    ),
    "there already": (
        "loader = DataLoader(data, num_workers = (0), shuffle=True)  #1",
        "loader = DataLoader(data, num_workers = 2, shuffle=True)",
    ),
    "there already by position": (
        "loader = DataLoader(data, 4, True, None, None, 0, None)  #1",
        "loader = DataLoader(data, 4, True, None, None, 2, None)",
    ),
    "no argument yet": ("loader = DataLoader()  #1", "loader = DataLoader(num_workers=2)"),
    "trailing comma on one line": (
        "loader = DataLoader(data, batch_size=4,)  #1",
        "loader = DataLoader(data, batch_size=4, num_workers=2,)",
    ),
    "a line each": (
        """
        loader = DataLoader(  #1
            data,  # of today
            batch_size=4,  # small, on purpose
            # a last word
        )
        """,
        """
        loader = DataLoader(
            data,  # of today
            batch_size=4,  # small, on purpose
            num_workers=2,
            # a last word
        )
        """,
    ),
    "a line each without trailing comma": (
        """
        loader = DataLoader(  #1
            data,
            batch_size=4  # small, on purpose
        )
        """,
        """
        loader = DataLoader(
            data,
            batch_size=4,  # small, on purpose
            num_workers=2
        )
        """,
    ),
    "below the parenthesis": (
        """
        loader = DataLoader(data,
                            batch_size=4)  #1
        """,
        """
        loader = DataLoader(data,
                            batch_size=4,
                            num_workers=2)
        """,
    ),
    "all arguments on the second line": (
        """
        loader = DataLoader(
            data, batch_size=4  #1
        )
        """,
        """
        loader = DataLoader(
            data, batch_size=4, num_workers=2
        )
        """,
    ),
    "line inside the call": (
        """
        loader = DataLoader(
            data,  #1
        )
        """,
        """
        loader = DataLoader(
            data,
            num_workers=2,
        )
        """,
    ),
    "inside another call": (
        "loader = prepare(DataLoader(make(data)), DataLoaderish())  #1",
        "loader = prepare(DataLoader(make(data), num_workers=2), DataLoaderish())",
    ),
    "two on one line": (
        "loaders = [DataLoader(a), DataLoader(b, num_workers=0)]  #1",
        "loaders = [DataLoader(a, num_workers=2), DataLoader(b, num_workers=2)]",
    ),
    "one in the other": (
        "loader = DataLoader(DataLoader(a), shuffle=True)  #1",
        "loader = DataLoader(DataLoader(a, num_workers=2), shuffle=True, num_workers=2)",
    ),
    "a lambda with commas": (
        "loader = DataLoader(data, collate_fn=lambda a, b=(1, 2): {a: b})  #1",
        "loader = DataLoader(data, collate_fn=lambda a, b=(1, 2): {a: b}, num_workers=2)",
    ),
    "strings full of brackets": (
        """loader = DataLoader(f"{x:>{w}}),", '(', "é" * 3)  #1""",
        """loader = DataLoader(f"{x:>{w}}),", '(', "é" * 3, num_workers=2)""",
    ),
    "letters of several bytes before it": (
        "größe, loader = 'ä€𝄞', DataLoader(dätä)  #1",
        "größe, loader = 'ä€𝄞', DataLoader(dätä, num_workers=2)",
    ),
    "options that may hold it": (
        "loader = DataLoader(data, **options)  #1",
        'loader = DataLoader(data, **{**options, "num_workers": 2})',
    ),
    "options of a condition": (
        "loader = DataLoader(data, **a or b, shuffle=True)  #1",
        'loader = DataLoader(data, **{**(a or b), "num_workers": 2}, shuffle=True)',
    ),
    "options and the keyword": (
        "loader = DataLoader(data, num_workers=0, **options)  #1",
        "loader = DataLoader(data, num_workers=2, **options)",
    ),
    "nobody knows how many positions": ("loader = DataLoader(*everything)  #1", None),
    "another call": ("loader = Loader(data)  #1", None),
    "another line": ("loader = DataLoader(data)\nloader = 1  #1", None),
    "only spoken of": ("loader = make  # DataLoader(data)  #1", None),
    "a file that does not parse": ("loader = DataLoader(data  #1", None),
    "in a decorated method": (
        """
        class Data:
            @property
            def loader(self):
                return DataLoader(self.data)  #1
        """,
        """
        class Data:
            @property
            def loader(self):
                return DataLoader(self.data, num_workers=2)
        """,
    ),
    "lines that end as on Windows": (
        "loader = DataLoader(  #1\r\n    data,\r\n)\r\n",
        "loader = DataLoader(\r\n    data,\r\n    num_workers=2,\r\n)\r\n",
    ),
}


@pytest.mark.parametrize(("old", "new"), ARGUMENTS.values(), ids=list(ARGUMENTS))
def test_arguments(old: str, new: str | None) -> None:
    assert edited(plain(old), arguments(num_workers="2")) == (new and plain(new))


def test_one_call_does_not_get_two_values_of_one_argument() -> None:
    """A helper may be called with one batch size for training and another for validation."""
    source = "def make(data, size):\n    return DataLoader(data, batch_size=size)\n"
    one, other = (change_arguments(Site(FILE, 2), "DataLoader", batch_size=n) for n in "48")
    more = change_arguments(Site(FILE, 2), "DataLoader", num_workers="2")
    (text,) = apply_edits([one, more, one], lambda file: source).values()
    assert "DataLoader(data, batch_size=4, num_workers=2)" in text
    # What comes first is made, what does not go with it is left out.
    assert apply_edits([one, other, more], lambda file: source) == {FILE: text}


def test_a_learning_rate_given_by_position() -> None:
    old = "optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)  #1"
    new = "optimizer = optim.SGD(model.parameters(), 0.2, momentum=0.9)"
    assert edited(old, arguments("SGD", lr="0.2")) == new


BEFORE = {
    "a statement": (
        """
        def main():
            # why
            step()  #1
        """,
        "gc.freeze()",
        """
        def main():
            # why
            gc.freeze()
            step()
        """,
    ),
    "a statement over several lines": (
        """
        if True:
            step(
                1,  #1
            )
        """,
        "gc.collect()\ngc.freeze()",
        """
        if True:
            gc.collect()
            gc.freeze()
            step(
                1,
            )
        """,
    ),
    "tabs": (
        "if True:\n\tif x:\n\t\tstep()  #1",
        "if y:\n    z()",
        "if True:\n\tif x:\n\t\tif y:\n\t\t\tz()\n\t\tstep()",
    ),
    "the head of a loop": (
        "for x in loader:  #1\n    step(x)",
        "gc.freeze()",
        "gc.freeze()\nfor x in loader:\n    step(x)",
    ),
    "a loop on one line": (
        "for x in loader: step(x)  #1",
        "gc.freeze()",
        "gc.freeze()\nfor x in loader: step(x)",
    ),
    "the second of one line": (
        "a = 1; step()  #1",
        "gc.freeze()",
        "gc.freeze()\na = 1; step()",
    ),
    "an elif": (
        """
        def main():
            if a:
                pass
            elif step():  #1
                pass
        """,
        "gc.freeze()",
        """
        def main():
            gc.freeze()
            if a:
                pass
            elif step():
                pass
        """,
    ),
    "an else on one line": (
        "if a:\n    pass\nelse: step()  #1",
        "gc.freeze()",
        "gc.freeze()\nif a:\n    pass\nelse: step()",
    ),
    "the handler of an error": (
        "try:\n    a()\nexcept E:\n    step()  #1\nfinally:\n    b()",
        "gc.freeze()",
        "try:\n    a()\nexcept E:\n    gc.freeze()\n    step()\nfinally:\n    b()",
    ),
    "a decorated function": (
        "@decorate  #1\n@again\ndef main():\n    pass",
        "gc.freeze()",
        "gc.freeze()\n@decorate\n@again\ndef main():\n    pass",
    ),
    "a function on one line": ("def main(): step()  #1", "gc.freeze()", None),
    "a comment in a loop": ("for x in y:\n    a()\n    # here  #1\n    b()", "gc.freeze()", None),
    "a line that is not there": ("a()\n\n#1", "gc.freeze()", None),
    "no last newline, Windows": ("a()\r\nstep()  #1", "b()", "a()\r\nb()\r\nstep()"),
    "the model, by name": (
        """
        import torch
        model = Net()
        optimizer = SGD(model.parameters())  #1
        output = model(x)  #2
        """,
        "{model} = torch.compile({model})",
        """
        import torch
        model = Net()
        model = torch.compile(model)
        optimizer = SGD(model.parameters())
        output = model(x)
        """,
    ),
    "the model, inside its loss": (
        """
        net: Module = Net()
        optimizer = SGD(net.parameters())  #1
        loss = criterion(net(x.to(device)), y)  #2
        """,
        "{model}.compile()",
        """
        net: Module = Net()
        net.compile()
        optimizer = SGD(net.parameters())
        loss = criterion(net(x.to(device)), y)
        """,
    ),
    "the model of a class": (
        """
        class Trainer:
            def __init__(self):
                self.model = Net()
                self.optimizer = SGD(self.model.parameters())  #1

            def step(self, x):
                return self.model(x).mean()  #2
        """,
        "{model}.compile()",
        """
        class Trainer:
            def __init__(self):
                self.model = Net()
                self.model.compile()
                self.optimizer = SGD(self.model.parameters())

            def step(self, x):
                return self.model(x).mean()
        """,
    ),
    "the model of another class": (
        """
        class Other:
            def __init__(self):
                self.optimizer = SGD()  #1

        class Trainer:
            def step(self, x):
                return self.model(x)  #2
        """,
        "{model}.compile()",
        None,
    ),
    "a parameter elsewhere of the same name": (
        """
        def train(model, loader):
            for x in loader:
                model(x)  #2

        def main():
            model = Net()
            optimizer = SGD(model.parameters())  #1
            train(model, loader)
        """,
        "{model} = wrap({model})",
        """
        def train(model, loader):
            for x in loader:
                model(x)

        def main():
            model = Net()
            model = wrap(model)
            optimizer = SGD(model.parameters())
            train(model, loader)
        """,
    ),
    "a name that is not there": (
        """
        def train(network):
            network(x)  #2

        def main():
            model = Net()
            optimizer = SGD(model.parameters())  #1
        """,
        "{model}.compile()",
        None,
    ),
    "a name that comes later": (
        """
        def main():
            optimizer = make()  #1
            model = Net()
            model(x)  #2
        """,
        "{model}.compile()",
        None,
    ),
    "a local that has a global's name": (
        """
        model = None
        def main():
            optimizer = make()  #1
            model = Net()
            model(x)  #2
        """,
        "{model}.compile()",
        None,
    ),
    "a global that is only called": (
        """
        model = Net()
        def main():
            optimizer = SGD(model.parameters())  #1
            model(x)  #2
        """,
        "{model}.compile()",
        """
        model = Net()
        def main():
            model.compile()
            optimizer = SGD(model.parameters())
            model(x)
        """,
    ),
    "a global that would become a local": (
        """
        model = Net()
        def main():
            optimizer = SGD(model.parameters())  #1
            model(x)  #2
        """,
        "{model} = wrap({model})",
        None,
    ),
    "no name at all": ("a = 1  #1\nnets[0](x)  #2", "{model}.compile()", None),
    "no line of the model": ("model = 1\na = 1  #1", "{model}.compile()", None),
}


@pytest.mark.parametrize(("old", "text", "new"), BEFORE.values(), ids=list(BEFORE))
def test_before(old: str, text: str, new: str | None) -> None:
    assert edited(plain(old), before(text)) == (new and plain(new))


IMPORTS = {
    "after the last": (
        """
        import os

        import torch
        from torch import nn

        def main():
            model(x)  #1
        """,
        "torch.f()",
        """
        import os

        import torch
        from torch import nn

        torch.f()

        def main():
            model(x)
        """,
    ),
    "code right behind": (
        "import torch\na = 1\nmodel(x)  #1",
        "torch.f()",
        "import torch\ntorch.f()\na = 1\nmodel(x)",
    ),
    "an import over several lines": (
        "from torch import (\n    nn,\n)\nimport torch as torch; b()\nmodel(x)  #1",
        "torch.f()",
        "from torch import (\n    nn,\n)\nimport torch as torch; b()\ntorch.f()\nmodel(x)",
    ),
    "an import that may fail": (
        "try:\n    import torch\nexcept ImportError:\n    torch = None\nmodel(x)  #1",
        "torch.f()",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\ntorch.f()\nmodel(x)",
    ),
    "an import behind the code": (
        "import torch\nmodel(x)  #1\nimport os\n",
        "torch.f()",
        "import torch\ntorch.f()\nmodel(x)\nimport os\n",
    ),
    "torch under another name": (
        "import torch as t\n\nmodel(x)  #1",
        "torch.f()",
        "import torch as t\nimport torch\n\ntorch.f()\n\nmodel(x)",
    ),
    "only a part of torch": (
        '"""Doc."""\nfrom torch import nn\nmodel(x)  #1',
        "torch.f()",
        '"""Doc."""\nfrom torch import nn\nimport torch\ntorch.f()\nmodel(x)',
    ),
    "no import, a docstring": (
        '#!/usr/bin/env python\n"""Doc."""\nmodel(x)  #1',
        "import gc\ngc.freeze()",
        '#!/usr/bin/env python\n"""Doc."""\nimport gc\ngc.freeze()\nmodel(x)',
    ),
    "no import, a comment": (
        "#!/usr/bin/env python\n# coding: utf-8\nmodel(x)  #1",
        "a()",
        "#!/usr/bin/env python\n# coding: utf-8\na()\nmodel(x)",
    ),
    "under the main guard": (
        "import torch\nif __name__ == '__main__':\n    import os\n    model(x)  #1",
        "torch.f()",
        "import torch\ntorch.f()\nif __name__ == '__main__':\n    import os\n    model(x)",
    ),
    "in a function above another import": (
        "import torch\ndef f():\n    model(x)  #1\nf()\nimport gc",
        "torch.f()",
        "import torch\ntorch.f()\ndef f():\n    model(x)\nf()\nimport gc",
    ),
    "in a function of a file that ends in an import": (
        "def f():\n    model(x)  #1\nimport torch",
        "torch.f()",
        "def f():\n    model(x)\nimport torch\n\ntorch.f()\n",
    ),
    "an import": (
        "import torch\n\nmodel(x)  #1",
        "from torch.nn import attention",
        "import torch\nfrom torch.nn import attention\n\nmodel(x)",
    ),
    "Windows": (
        "import torch\r\n\r\nmodel(x)  #1\r\n",
        "torch.f()",
        "import torch\r\n\r\ntorch.f()\r\n\r\nmodel(x)\r\n",
    ),
}


@pytest.mark.parametrize(("old", "text", "new"), IMPORTS.values(), ids=list(IMPORTS))
def test_imports(old: str, text: str, new: str) -> None:
    assert edited(plain(old), behind_imports(text)) == plain(new)


HEAD = "import torch\n"
CALLS = {
    "alone": (
        "output = model(x)  #1",
        LAST,
        "output = model(x.to(memory_format=torch.channels_last))",
    ),
    "inside its loss": (
        "loss = criterion(model(x), y)  #1",
        "{function}({first}.half(){rest})",
        "loss = criterion(model(x.half()), y)",
    ),
    "with a criterion that has no such name": (
        "loss = ce(net(x, mask=m), y)  #1",
        CHECKPOINT,
        "loss = ce(checkpoint(net, x, mask=m, use_reentrant=False), y)",
    ),
    "the functional loss": (
        "loss = F.cross_entropy(student(x), torch.tensor(y))  #1",
        "{function}({first}.half(){rest})",
        "loss = F.cross_entropy(student(x.half()), torch.tensor(y))",
    ),
    "of a class, with a method behind it": (
        "loss = self.loss(self.model(x.to(d)).view(-1), y)  #1",
        "{function}({first}.half(){rest})",
        "loss = self.loss(self.model(x.to(d).half()).view(-1), y)",
    ),
    "with a function of the file inside": (
        "def clean(x): return x\nout = f(clean(x))  #1",
        "{function}({first}.half(){rest})",
        "def clean(x): return x\nout = f(clean(x).half())",
    ),
    "with builtins inside": (
        "out = f(next(it), len(x))  #1",
        "{function}({first}.half(){rest})",
        "out = f(next(it).half(), len(x))",
    ),
    "over several lines": (
        """
        output = model(  #1
            # the batch
            x[0],  # images
            mask,
        )
        """,
        "{function}({first}.half(){rest})",
        """
        output = model(
            # the batch
            x[0].half(),  # images
            mask,
        )
        """,
    ),
    "over several lines, around it": (
        """
        output = model(  #1
            x[0],  # images
            (mask),
        )
        """,
        CHECKPOINT,
        """
        output = checkpoint(model, x[0],  # images
            (mask), use_reentrant=False)
        """,
    ),
    "an argument of several pieces": (
        "out = model(x if a else y)  #1",
        "{function}({first}.half(){rest})",
        "out = model((x if a else y).half())",
    ),
    "an argument in parentheses": (
        "out = model((x + y), *more)  #1",
        "{function}({first}.half(){rest})",
        "out = model((x + y).half(), *more)",
    ),
    "a walrus": (
        "out = model(y := x)  #1",
        "{function}({first}.half(){rest})",
        "out = model((y := x).half())",
    ),
    "an argument inside a function": (
        "out = model(x + y)  #1",
        "{function}(pad({first}){rest})",
        "out = model(pad(x + y))",
    ),
    "braces of its own": (
        'out = model(f"{first}", {"rest": 1})  #1',
        "{function}(pad({first}){rest})",
        'out = model(pad(f"{first}"), {"rest": 1})',
    ),
    "without its first argument": (
        "out = model(**batch)  #1",
        "run({function}{rest})",
        "out = run(model, **batch)",
    ),
    "no first argument": ("out = model(**batch)  #1", LAST, None),
    "a starred first argument": ("out = model(*batch)  #1", LAST, None),
    "only a library's call": ("out = torch.relu(x)  #1", LAST, None),
    "awaited, in an f-string, letters of several bytes": (
        "ö = f'ä{model(x)!r}'  #1",
        "{function}({first}.half(){rest})",
        "ö = f'ä{model(x.half())!r}'",
    ),
}


@pytest.mark.parametrize(("old", "text", "new"), CALLS.values(), ids=list(CALLS))
def test_model_call(old: str, text: str, new: str | None) -> None:
    assert edited(HEAD + plain(old), call(text)) == (new and HEAD + plain(new))


def test_both_edits_of_a_ddp() -> None:
    imported = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    old = f"import torch\n{imported}model = DDP(net or other, [rank])  #1\n"
    to = "(net or other).to(memory_format=torch.channels_last)"
    new = f"import torch\n{imported}model = DDP({to}, [rank], bucket_cap_mb=50)\n"
    kind = "DistributedDataParallel"
    last: Callable[..., Edit] = lambda *sites: wrap_call(sites[0], LAST, kind)  # noqa: E731
    assert edited(old, last, arguments(kind, bucket_cap_mb="50")) == new
    several = "model, other = DistributedDataParallel(a), DistributedDataParallel(b)  #1\n"
    assert edited(several, last) is None


BLOCKS = {
    "two statements": (
        """
        for x in y:
            output = model(x)  #1
            # a word between

            loss = criterion(output, y)
            # a word behind
            loss.backward()  #2
        """,
        """
        for x in y:
            with torch.autocast("cpu"):
                output = model(x)
                # a word between

                loss = criterion(output, y)
            # a word behind
            loss.backward()
        """,
    ),
    "two columns": (
        "if a:\n  o = model(x)  #1\n  o.backward()  #2",
        'if a:\n  with torch.autocast("cpu"):\n    o = model(x)\n  o.backward()',
    ),
    "tabs, Windows, no newline at the end": (
        "if a:\r\n\to = model(x)  #1\r\n\to.backward()  #2",
        'if a:\r\n\twith torch.autocast("cpu"):\r\n\t\to = model(x)\r\n\to.backward()',
    ),
    "at the top level": (
        "o = model(\n    x,  #1\n)\no.backward()  #2\n",
        'with torch.autocast("cpu"):\n    o = model(\n        x,\n    )\no.backward()\n',
    ),
    "a string over several lines": (
        'o = model(x)  #1\ns = """a\nb""" + f"""c\n{d}\n"""\nif s:\n    t = 1\no.backward()  #2\n',
        'with torch.autocast("cpu"):\n    o = model(x)\n    s = """a\nb""" + f"""c\n{d}\n"""\n'
        "    if s:\n        t = 1\no.backward()\n",
    ),
    "one statement": ("model(x).sum().backward()  #1", None),
    "backward in another block": ("o = model(x)  #1\nif a:\n    o.backward()  #2", None),
    "backward in another branch": (
        "if a:\n    o = model(x)  #1\nelse:\n    o.backward()  #2",
        None,
    ),
    "backward in another function": (
        "def f():\n    o = model(x)  #1\ndef g():\n    o.backward()  #2",
        None,
    ),
    "backward before": ("o.backward()  #2\no = model(x)  #1", None),
    "on one line with another": ("o = model(x)  #1\nl = c(o); l.backward()  #2", None),
    "before others on its line": (
        "if a:\n    l = c(model(x)) / 4  #1\n    l.backward(); i += 1  #2\n    i",
        'if a:\n    with torch.autocast("cpu"):\n        l = c(model(x)) / 4\n'
        "    l.backward(); i += 1\n    i",
    ),
    "others behind the call on its line": ("o = model(x); l = c(o)  #1\nl.backward()  #2", None),
    "behind another on its line": ("if a: o = model(x)  #1\no.backward()  #2", None),
}


@pytest.mark.parametrize(("old", "new"), BLOCKS.values(), ids=list(BLOCKS))
def test_block(old: str, new: str | None) -> None:
    head = HEAD.replace("\n", "\r\n") if "\r" in old else HEAD
    source, sites = marked(head + plain(old))
    edit = wrap_block(sites[0], sites[-1], AMP)
    expected = {FILE: head + plain(new)} if new else {}
    assert apply_edits([edit], lambda file: source) == expected
    assert can_apply(edit, lambda file: source) == bool(new)


@pytest.mark.parametrize(("is_of_several", "fits"), [(False, True), (True, False)])
def test_a_function_that_serves_several_models_names_none_of_them(
    is_of_several: bool, fits: bool
) -> None:
    old = "def make(net):\n    return SGD(net)  #1\nd, g = D(), G()\nx = make(d)\ng(d(x))  #2\n"
    source, (optimizer, call) = marked(old)
    edit = insert_before(optimizer, "{model}.compile()", call, is_of_several)
    assert can_apply(edit, lambda file: source) == fits


TWO_MODELS = """
for x in y:
    z = encoder(x)  #1
    if z.isfinite().all():
        z = decoder(z)  #2
    loss = criterion(z, x)
    loss.backward()  #3
    ema(x)
"""


def test_a_block_holds_the_calls_of_all_models() -> None:
    source, (first, other, end) = marked(HEAD + TWO_MODELS)
    (new,) = apply_edits([wrap_block(first, end, AMP, [other])], lambda file: source).values()
    assert f"    {AMP}\n        z = encoder(x)\n        if z.is" in new
    assert "        loss = criterion(z, x)\n    loss.backward()" in new
    for outside in (Site(FILE, end.line + 1), Site("engine.py", other.line)):
        assert not can_apply(wrap_block(first, end, AMP, [outside]), lambda file: source)


@pytest.mark.parametrize(
    ("behind", "fits"),
    [
        ("second = model(x)\n    second.sum().backward()", False),  # as SAM has it
        ("if again:\n        model(x).backward()", False),
        ("other.backward()\n    check(model(x))", True),  # validation
        ("critic(x).backward()", True),
    ],
)
def test_a_model_that_is_trained_twice_in_a_step_is_not_half_in_a_block(
    behind: str, fits: bool
) -> None:
    source = f"{HEAD}for x in y:\n    loss = model(x)\n    loss.backward()\n    {behind}\n"
    call = HEAD.count("\n") + 2
    edit = wrap_block(Site(FILE, call), Site(FILE, call + 1), AMP)
    assert can_apply(edit, lambda file: source) == fits
    assert ("each call of the model" in describe(edit, lambda file: source)) != fits


TRAINING = plain(
    """
    # Training, as a newcomer writes it.
    import torch
    from torch.utils.data import DataLoader


    def main():
        model = Net()
        loader = DataLoader(data, batch_size=4)
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=0.1,
        )
        for x, y in loader:
            optimizer.zero_grad()
            output = model(
                x,
                y,
            )
            loss = criterion(output, y)
            loss.backward()
            optimizer.step()
    """
)
MODEL, LOADER, OPTIMIZER = Site(FILE, 15), Site(FILE, 8), Site(FILE, 9)
BACKWARD = Site(FILE, 20)
ALL = (
    insert_before(OPTIMIZER, "{model} = torch.compile({model})", model=MODEL),
    wrap_block(MODEL, BACKWARD, AMP),
    insert_after_import(MODEL, "torch.f()"),
    change_arguments(LOADER, "DataLoader", num_workers="2"),
    set_environment(OMP_NUM_THREADS="2"),
    change_arguments(OPTIMIZER, "SGD", fused="True"),
    wrap_call(MODEL, "{function}({first}.half(){rest})"),
    change_arguments(LOADER, "DataLoader", pin_memory="True"),
    insert_before(OPTIMIZER, "gc.freeze()"),
    wrap_call(MODEL, LAST),
    wrap_block(MODEL, BACKWARD, "with other():"),
    insert_after_import(LOADER, "import gc"),
    insert_after_import(LOADER, "torch.g()"),
    change_arguments(Site(FILE, 2), "DataLoader", num_workers="2"),
    change_arguments(None, "DataLoader", num_workers="2"),
    change_arguments(Site("/elsewhere.py", 2), "DataLoader", num_workers="2"),
)
TOGETHER = plain(
    """
    # Training, as a newcomer writes it.
    import torch
    from torch.utils.data import DataLoader
    import gc

    torch.f()
    torch.g()


    def main():
        model = Net()
        loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
        model = torch.compile(model)
        gc.freeze()
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=0.1,
            fused=True,
        )
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu"):
                with other():
                    output = model(
                        x.half().to(memory_format=torch.channels_last),
                        y,
                    )
                    loss = criterion(output, y)
            loss.backward()
            optimizer.step()
    """
)


def read_training(file: str) -> str:
    """The one file there is."""
    if file != FILE:
        raise FileNotFoundError(file)
    return TRAINING


def test_edits_of_one_file_come_together() -> None:
    assert apply_edits(ALL, read_training) == {FILE: TOGETHER}


def test_the_order_of_edits_at_different_places_does_not_matter() -> None:
    order = sorted(ALL, key=lambda edit: -(edit.site.line if edit.site else 0))
    assert apply_edits(order, read_training) == {FILE: TOGETHER}


def test_the_same_edit_twice_is_made_once() -> None:
    assert apply_edits([*ALL, *ALL], read_training) == {FILE: TOGETHER}


def test_around_a_call_and_inside_of_it() -> None:
    edits = [wrap_call(MODEL, CHECKPOINT), wrap_call(MODEL, LAST), wrap_block(MODEL, BACKWARD, AMP)]
    new = apply_edits(edits, read_training)[FILE]
    assert "checkpoint(model, x.to(memory_format=torch.channels_last),\n" in new
    assert "            with torch" not in new.split("checkpoint")[1]
    assert apply_edits([*edits, wrap_call(MODEL, "other({function}{rest})")], read_training) == {
        FILE: new
    }


def test_what_leaves_no_python_is_not_applied() -> None:
    broken = insert_before(LOADER, "if x")
    assert not can_apply(broken, read_training)
    assert apply_edits([broken, ALL[3]], read_training) == apply_edits([ALL[3]], read_training)


def test_a_change_to_what_is_there_already_changes_no_file() -> None:
    same = change_arguments(LOADER, "DataLoader", batch_size="4")
    assert can_apply(same, read_training)
    assert apply_edits([same], read_training) == {}
    assert unified_diff([same], read_training) == ""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("has_last", [True, False], ids=["newline", "no newline"])
@pytest.mark.parametrize("tool", ["git", "patch"])
def test_the_diff_can_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, newline: str, has_last: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    text = TRAINING if has_last else TRAINING.rstrip("\n")
    path = tmp_path / "sub" / "träin.py"
    path.parent.mkdir()
    path.write_bytes(text.replace("\n", newline).encode())
    edits = [change_arguments(Site(str(path), 8), "DataLoader", num_workers="2")]
    edits.append(insert_before(Site(str(path), 21), "gc.collect()"))
    new = apply_edits(edits)[str(path)]
    diff = unified_diff(edits)
    assert diff.startswith("--- a/sub/träin.py\n+++ b/sub/träin.py\n@@ ")
    options = ["apply", "--whitespace=nowarn"] if tool == "git" else ["-p1", "--binary"]
    subprocess.run([tool, *options], input=diff.encode(), check=True, cwd=tmp_path)
    assert path.read_bytes() == new.encode()


def test_a_diff_of_nothing_is_empty() -> None:
    assert unified_diff([set_environment(A="1"), change_arguments(None, "DataLoader", a="1")]) == ""


def test_a_file_is_read_as_python_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes("# coding: latin-1\r\nname = 'é'\r\n".encode("latin-1"))
    assert read_source(str(path)) == "# coding: latin-1\r\nname = 'é'\r\n"
    path.write_bytes(b"\xef\xbb\xbfloader = DataLoader(a)\n")
    edit = change_arguments(Site(str(path), 1), "DataLoader", num_workers="2")
    assert apply_edits([edit]) == {str(path): "loader = DataLoader(a, num_workers=2)\n"}
    path.write_bytes(b"\xff\x00")
    assert apply_edits([edit]) == {}
    assert not can_apply(edit)


WORDS = {
    "train.py:8  DataLoader(..., num_workers=2)": ALL[3],
    "train.py:9  model = torch.compile(model) before this line": ALL[0],
    "train.py:3  torch.f() behind this line": ALL[2],
    "train.py:15  model(x.half(), y)": ALL[6],
    'train.py:15  with torch.autocast("cpu"): around the lines up to 19': ALL[1],
    "OMP_NUM_THREADS=2 in the environment": ALL[4],
    "A=1 B=2 in the environment": set_environment(A="1", B="2"),
    "DataLoader(..., num_workers=2) where the DataLoader is made": ALL[14],
    "train.py:2  DataLoader(..., num_workers=2) where the DataLoader is made": ALL[13],
    "model.compile() where the model is ready": insert_before(None, "{model}.compile()"),
    "gc.freeze() where the training is about to begin": insert_before(None, "gc.freeze()"),
    "copy the next batch on a stream of its own": tell(
        None, "copy the next batch on a stream of its own"
    ),
    "train.py:15  scaler.scale(loss).backward() in place of it": tell(
        MODEL, "scaler.scale(loss).backward() in place of it"
    ),
    "a(); b() where torch is imported": insert_after_import(None, "a()\nb()"),
    "run(model, inputs, ...) where the model is called": wrap_call(
        None, "run({function}, {first}{rest})"
    ),
    "DDP(model.to(), ...) where the DDP is made": wrap_call(
        None, "{function}({first}.to(){rest})", "DDP"
    ),
    "with a(): from where the model is called to where the backward is": wrap_block(
        None, None, "with a():"
    ),
    "train.py:15  with a(): around what this line computes before its backward": wrap_block(
        MODEL, MODEL, "with a():"
    ),
    "train.py:20  with a(): around each call of the model, here and elsewhere, up to its loss; "
    "backward stays outside": wrap_block(BACKWARD, MODEL, "with a():"),
    "train.py:15  with a(): around each call of a model, here and in line 21 and in engine.py:7, "
    "up to its loss; backward stays outside": wrap_block(
        MODEL, BACKWARD, "with a():", also=[Site(FILE, 21), Site("engine.py", 7)]
    ),
    "train.py:15  with a(): from this line up to the backward in engine.py:7, which stays "
    "outside": wrap_block(MODEL, Site("engine.py", 7), "with a():"),
}


def test_a_block_of_one_line_in_words() -> None:
    edit = wrap_block(Site(FILE, 1), Site(FILE, 2), AMP)
    told = describe(edit, lambda file: "o = model(x)\no.backward(); i += 1\n")
    assert told.endswith('train.py:1  with torch.autocast("cpu"): around this line')


@pytest.mark.parametrize(("words", "edit"), WORDS.items(), ids=list(WORDS))
def test_an_edit_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, edit: Edit
) -> None:
    monkeypatch.setattr(os.path, "relpath", lambda file: os.path.basename(file))
    assert describe(edit, read_training) == words
