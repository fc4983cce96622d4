"""Equal digests must mean equal weights: what must tell two versions of a model apart."""

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from mpkv.engine.weights import SAMPLES, Weights, digest_of, tensors_of

FLOAT8 = torch.float8_e4m3fn


def model(seed: int = 1, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Embedding(512, 64), nn.Linear(64, 256), nn.Linear(256, 64))
    made.register_buffer("scale", torch.ones(1))
    made.register_buffer("scratch", torch.empty(100), persistent=False)
    return made.to(dtype)


def digest(made: nn.Module) -> bytes:
    return digest_of(tensors_of(made))


def test_equal_weights_have_equal_digests_wherever_they_lie() -> None:
    one, other = model(), model()
    other.scratch = torch.rand(100)
    # As kernels want it: transposed in memory, and part of something larger.
    weight = other[1].weight
    other[1].weight = nn.Parameter(weight.t().contiguous().t())
    padded = torch.rand(70, 300).to(weight.dtype)
    padded[:64, :256] = other[2].weight.detach()
    other[2].weight = nn.Parameter(padded[:64, :256])
    assert digest(one) == digest(other)
    assert digest(one) == digest(one)


@pytest.mark.parametrize("which", ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias", "scale"])
def test_a_tensor_trained_further_is_another_model(which: str) -> None:
    trained = model()
    with torch.no_grad():
        trained.state_dict()[which].add_(0.01)
    assert digest(trained) != digest(model())


def test_a_merged_adapter_is_another_model() -> None:
    """Of the lowest rank, into one tensor."""
    merged = model()
    with torch.no_grad():
        merged[1].weight.add_(torch.randn(256, 1) @ torch.randn(1, 64), alpha=0.01)
    assert digest(merged) != digest(model())


def test_a_step_that_moves_few_numbers_of_each_tensor_is_seen() -> None:
    """As with a small learning rate in 16 bits."""
    one = {f"{i}": torch.randn(1 << 16).bfloat16() for i in range(40)}
    before = digest_of(one.items())
    torch.manual_seed(3)
    for tensor in one.values():
        moved = torch.rand(tensor.numel()) < 0.001
        tensor[moved] = tensor[moved] * 1.01
    assert digest_of(one.items()) != before


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("shape", [(7,), (3, SAMPLES), (8, 64, 64)])
def test_the_ends_of_a_tensor_are_always_seen(shape: tuple[int, ...], place: int) -> None:
    tensor = torch.zeros(shape)
    before = digest_of([("t", tensor)])
    tensor.view(-1)[place] = 1
    assert digest_of([("t", tensor)]) != before


def test_every_column_can_be_seen() -> None:
    """However many rows there are to each sample, the samples stand in different columns."""
    changed = 0
    for column in range(64):
        tensor = torch.zeros(4096, 64)
        before = digest_of([("t", tensor)])
        tensor[:, column] = 1
        changed += digest_of([("t", tensor)]) != before
    assert changed == 64


DIFFERENT: dict[str, Callable[[], torch.Tensor]] = {
    "shape": lambda: torch.zeros(4, 2),
    "type": lambda: torch.zeros(2, 4, dtype=torch.int32),
    "negative zero": lambda: -torch.zeros(2, 4),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_else_a_tensor_is_counts(what: str) -> None:
    assert digest_of([("t", DIFFERENT[what]())]) != digest_of([("t", torch.zeros(2, 4))])
    assert digest_of([("u", torch.zeros(2, 4))]) != digest_of([("t", torch.zeros(2, 4))])


@pytest.mark.parametrize("dtype", [FLOAT8, torch.uint8, torch.bool, torch.float64, torch.complex64])
def test_tensors_of_any_type_can_be_sampled(dtype: torch.dtype) -> None:
    one = torch.randint(0, 2, (64, 64)).to(dtype)
    other = one.clone()
    assert digest_of([("t", one)]) == digest_of([("t", other)])
    other.view(-1)[0] = (
        torch.zeros((), dtype=dtype) if one.view(-1)[0] else torch.ones(()).to(dtype)
    )
    assert digest_of([("t", one)]) != digest_of([("t", other)])


def test_nothing_to_sample_is_no_fault() -> None:
    digest_of(
        [
            ("empty", torch.empty(0)),
            ("meta", torch.empty(4, device="meta")),
            ("one", torch.tensor(1)),
        ]
    )
    assert digest_of([]) == digest_of([])


def test_the_cost_does_not_grow_with_the_tensors() -> None:
    def seconds(size: int) -> float:
        tensors = [(str(i), torch.zeros(size)) for i in range(20)]
        digest_of(tensors)
        started = time.perf_counter()
        digest_of(tensors)
        return time.perf_counter() - started

    assert seconds(1 << 22) < 20 * seconds(1 << 12) + 0.05


def test_a_caller_that_is_no_worker_is_told() -> None:
    with pytest.raises(RuntimeError, match="no worker of vLLM"):
        Weights(skip_experts=False)
