"""`python -m tests.support.next_vllm WHEELS FOLDER`: vLLM's next version, for the CPU.

Unpacks the Python of the one wheel in WHEELS, which is for CUDA, and puts the compiled parts
of the installed vLLM beside it. What mpkv works with is Python; that the two go together is
only as certain as that the engines which use them answer as they should.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path

# Where `make test` has it unpacked.
NEXT_VLLM = Path(__file__).parents[2] / "build" / "vllm-0.33"


def main(wheels: Path, folder: Path) -> None:
    (path,) = wheels.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
    installed = importlib.util.find_spec("vllm")
    assert installed is not None
    assert installed.origin is not None
    for compiled in Path(installed.origin).parent.glob("*.so"):
        (folder / "vllm" / compiled.name).symlink_to(compiled)
    # vLLM knows a build for the CPU by its version.
    version = f"{path.name.split('-')[1]}+cpu"
    metadata = folder / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
