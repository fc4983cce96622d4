"""Imports NIXL's bindings in the flavour that fits torch, without importing torch.

The `nixl` package picks one of its installed CUDA flavours, and enums of another are
refused, so everything has to come from it. It reads torch's CUDA version from torch's
`version.py`; where torch is a CPU build that says "none", and `nixl` then imports all of
torch to ask again. The same file, loaded alone under its real name, answers that too.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_TORCH_VERSION = "torch.version"

_ENVIRONMENT = {
    # numpy's BLAS starts a spinning thread per core when numpy is imported.
    "OPENBLAS_NUM_THREADS": "1",
    # UCX patches mmap and its kin so that it can cache registrations of memory that comes and
    # goes. Here memory is registered once for the life of the process, and the patching
    # costs 0.4 s of every start.
    "UCX_MEM_EVENTS": "n",
}


def prepare_environment() -> None:
    """Set what numpy and UCX read when they are loaded; call it before either is imported.

    Variables that are set already win.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def load_bindings() -> Any:
    """Import NIXL and return its `_bindings` module."""
    stand_in = None if "torch" in sys.modules else _torch_version_alone()
    if stand_in is not None:
        sys.modules[_TORCH_VERSION] = stand_in
    try:
        import nixl

        return nixl._bindings
    finally:
        if stand_in is not None:
            del sys.modules[_TORCH_VERSION]


def _torch_version_alone() -> ModuleType | None:
    """`torch.version` without its package; None when torch is not installed."""
    torch_spec = importlib.util.find_spec("torch")
    if torch_spec is None or torch_spec.origin is None:
        return None
    path = Path(torch_spec.origin).with_name("version.py")
    spec: ModuleSpec | None = importlib.util.spec_from_file_location(_TORCH_VERSION, path)
    if spec is None or spec.loader is None or not path.exists():
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
