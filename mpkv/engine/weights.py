"""What a worker computes with, as a digest: samples of every tensor of its models.

Whatever trains, merges or quantizes changes most tensors in many places, so samples tell
versions of a model apart at a cost that does not grow with it. What leaves every sample as it
was is not seen.
"""

import hashlib
import math
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

# Of each tensor. A step of reinforcement learning may move one number in ten thousand of a
# 16-bit model, and must not be missed.
SAMPLES = 1024
# Multiples of it, modulo 1, spread evenly and fall into step with no row length.
GOLDEN = 0.6180339887498949
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Index = dict[tuple[Any, ...], torch.Tensor]


class Weights:
    """The models of the worker that this is made in."""

    def __init__(self, *, skip_experts: bool) -> None:
        """`skip_experts`: what this worker holds of them is its own, whatever they are: they are
        spread over other engines, or moved about to balance the load.

        Raises RuntimeError if it is not a worker of vLLM that calls.
        """
        self._worker = _calling_worker()
        self._skip_experts = skip_experts

    def digest(self) -> bytes:
        """32 bytes: equal for equal weights, whichever process or device they are in."""
        models = {"model": self._worker.get_model()}
        draft = getattr(self._worker, "get_draft_model", None)
        if draft is not None and (drafter := draft()) is not None:
            models["draft"] = drafter
        owners: tuple[type, ...] = ()
        if self._skip_experts:
            from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

            owners = (RoutedExperts,)
        return digest_of(
            (f"{name}.{place}", tensor)
            for name, model in models.items()
            for place, tensor in tensors_of(model, owners)
        )


def tensors_of(
    model: nn.Module, skipped: tuple[type, ...] = ()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and the buffers that belong to the state, with their names; but for those of
    modules of the types `skipped`."""
    for name, module in model.named_modules():
        if isinstance(module, skipped):
            continue
        passing = module._non_persistent_buffers_set
        for own, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and own not in passing:
                yield f"{name}.{own}", tensor


@torch.inference_mode()  # type: ignore[untyped-decorator]
def digest_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> bytes:
    """Of names, shapes, types and samples. All samples of a device are copied at once."""
    digest = hashlib.sha256()
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    index: Index = {}
    for name, tensor in sorted(tensors, key=lambda named: named[0]):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.numel() and not tensor.is_meta:
            by_device.setdefault(tensor.device, []).append(_sample(tensor, index))
    for _, samples in sorted(by_device.items(), key=lambda found: found[0].type):
        digest.update(torch.cat(samples).cpu().numpy().tobytes())
    return digest.digest()


def _sample(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """Bytes of the sampled elements, where the tensor is."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.dim():
        tensor = tensor.reshape(1)
    # Of whatever type: integers have every kernel, and no two that are equal but differ.
    whole = tensor.view(INTEGERS[tensor.element_size()])
    shape, strides = tuple(whole.shape), whole.stride()
    kind = (shape, strides, whole.device)
    if kind not in index:
        index[kind] = torch.from_numpy(_offsets(shape, strides)).to(whole.device)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    # As it lies in memory: a transposed or padded tensor has no flat view.
    flat = whole.as_strided((extent,), (1,), whole.storage_offset())
    return flat[index[kind]].view(torch.uint8)


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Where the sampled elements lie, from the first one on."""
    places = np.unravel_index(_positions(math.prod(shape)), shape)
    steps = [at * stride for at, stride in zip(places, strides, strict=True)]
    return np.asarray(np.sum(steps, axis=0, dtype=np.int64))


def _positions(count: int) -> np.ndarray:
    """Which elements of `count` are sampled; always the first and the last."""
    if count <= SAMPLES:
        return np.arange(count)
    inner = np.floor(np.arange(1, SAMPLES - 1) * GOLDEN % 1.0 * count).astype(np.int64)
    return np.concatenate(([0], inner, [count - 1]))


def _calling_worker() -> Any:
    """vLLM hands its connectors KV caches but no model; a worker has it, and is calling."""
    from vllm.v1.worker.worker_base import WorkerBase

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, WorkerBase):
            return caller
        frame = frame.f_back
    raise RuntimeError("no worker of vLLM is among the callers")
