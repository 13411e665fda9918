"""Found by Python at start-up through PYTHONPATH, in every process of the command.

It leaves no trace but a wait for `import torch`, and then hands over to hotlap's hooks. It must
start on any Python, also one that is too old for hotlap: plain syntax, nothing imported early.
"""

import os
import sys

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def _chain():
    """Run the sitecustomize that this one stands in front of, and leave sys.path as it was."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if not p or os.path.abspath(p) != here]
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _TorchWatcher:
    """A finder that sees the import of torch, once, and finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        """Have the other finders find torch, and watch what they found being executed."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec("torch")
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader):
        exec_module = loader.exec_module

        def exec_and_install(module):
            del loader.exec_module  # the instance's: the class's own shows again
            exec_module(module)
            _quietly(_install, module)

        loader.exec_module = exec_and_install


def _quietly(function, *arguments):
    """Fail open: the training matters more than its measurement."""
    try:
        function(*arguments)
    except Exception:
        return


def _install(torch):
    if _KEEPS_WORKERS:
        _quietly(_keep_workers, "install", torch)
    if _IS_MEASURED:
        _install_hooks(torch)


def _keep_workers(step, *arguments):
    getattr(_module("hotlap.chronometer.keep_workers"), step)(*arguments)


def _install_hooks(torch):
    _leave_marker("torch")
    session = _module("hotlap.chronometer.hooks").install(torch)
    for name in filter(None, os.environ.get("HOTLAP_INSTALL", "").split(",")):
        _module(name).install(torch, session)


def _module(name):
    """A module of hotlap's, by the place of this file: the command's Python need not have it."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    if "hotlap" not in sys.modules:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = spec_from_file_location(
            "hotlap", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules["hotlap"] = module
        spec.loader.exec_module(module)
    return import_module(name)


def _leave_marker(name):
    """An empty file that tells the launcher how far it got into the command's processes."""
    import json

    path = os.path.join(json.loads(os.environ["HOTLAP_SESSION"])["folder"], "." + name)
    if not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


_IS_MEASURED = bool(os.environ.get("HOTLAP_SESSION"))
_KEEPS_WORKERS = bool(os.environ.get("HOTLAP_KEEP_WORKERS"))
if (_IS_MEASURED or _KEEPS_WORKERS) and sys.version_info >= (3, 10):
    if _IS_MEASURED:
        _quietly(_leave_marker, "python")
    _started_by = " ".join(sys.orig_argv)
    if _KEEPS_WORKERS and (
        "multiprocessing.spawn" in _started_by or "multiprocessing.forkserver" in _started_by
    ):
        _quietly(_keep_workers, "shelter_start")
    sys.meta_path.insert(0, _TorchWatcher())
_chain()
