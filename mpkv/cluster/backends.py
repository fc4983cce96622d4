"""Which NIXL backends can READ a peer's memory, and which are installed here.

NIXL finds its backends as plugin files beside it and in NIXL_PLUGIN_DIR.
"""

import difflib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from mpkv.cluster.words import listed, shown

# A node may have one that this machine lacks, so these pass wherever a file is read.
BETWEEN_HOSTS = ("UCX", "LIBFABRIC", "Mooncake", "UCCL", "GPUNETIO")
# Files, objects and devices; they know no peers.
_STORAGE = ("AZURE_BLOB", "GDS", "GDS_MT", "GUSLI", "HF3FS", "INFINIA", "OBJ", "POSIX")


def wrong_backends(backends: Sequence[str]) -> str | None:
    """What is wrong with NIXL's backends, as "expected ..., found ...; do ...", or None."""
    if not backends:
        return 'expected NIXL backends, found none; write ["UCX"]'
    known = tuple(dict.fromkeys((*BETWEEN_HOSTS, *sorted(installed_backends() - {*_STORAGE}))))
    for number, backend in enumerate(backends):
        if backend in _STORAGE:
            return (
                f'expected NIXL backends that reach peers ({listed(known)}), found "{backend}", '
                'which reaches storage; write ["UCX"]'
            )
        if backend not in known:
            names = {name.lower(): name for name in known}
            near = difflib.get_close_matches(backend[:32].lower(), names, n=1) or ["ucx"]
            return (
                f'expected NIXL backends ({listed(known)}), found "{shown(backend)}"; '
                f'write "{names[near[0]]}"'
            )
        if backend in backends[:number]:
            return f'expected each backend once, found "{backend}" twice; leave one out'
    return None


def installed_backends() -> frozenset[str]:
    """Empty where NIXL is absent, or keeps its plugins in a way not known here."""
    found = []
    for folder in _plugin_folders():
        found += [path.stem.removeprefix("libplugin_") for path in folder.glob("libplugin_*.so")]
    return frozenset(found)


def _plugin_folders() -> list[Path]:
    folders = [Path(named)] if (named := os.environ.get("NIXL_PLUGIN_DIR")) else []
    spec = importlib.util.find_spec("nixl")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        folders += Path(package).parent.glob("nixl_cu*.libs/nixl")
        folders += Path(package).parent.glob(".nixl_cu*.mesonpy.libs/plugins")
    return folders
