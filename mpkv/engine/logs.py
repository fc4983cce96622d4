"""Where mpkv's log lines go in a process that is vLLM's."""

import logging


def log_beside_vllm() -> None:
    """Send `mpkv.*` at info and above to stderr, unless the host configured it.

    vLLM configures its own loggers only; without this, ours would lose their format and
    everything below warning.
    """
    logger = logging.getLogger("mpkv")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
