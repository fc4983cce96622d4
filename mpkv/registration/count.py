"""Counting into the initiator's page of the ledger."""

from typing import Protocol


class Count(Protocol):
    def __call__(self, name: str, n: int = 1) -> None: ...
