"""What vLLM's workers are given to change their weights by, as those who train do."""

from typing import Any


class OtherWeights:
    """Named in `--worker-extension-cls`, which makes its methods the worker's."""

    def flip(self: Any) -> None:
        """Other weights; the second time exactly those of before."""
        for name, parameter in self.get_model().named_parameters():
            if "embed_tokens" in name:
                parameter.data.neg_()
