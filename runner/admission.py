"""Admission: decide whether one more request may be in flight.

A running request holds KV blocks until it ends. Sending more than the engine can hold only moves the
queue into the server, where it can be neither seen nor reordered.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BlockBudget:
    """KV blocks one runner may have in flight; 0 <= held <= capacity."""

    capacity: int
    held: int = 0

    def try_acquire(self, num_blocks: int) -> bool:
        """Hold `num_blocks` and return True, or return False and change nothing."""
        if self.held + num_blocks > self.capacity:
            return False
        self.held += num_blocks
        return True

    def release(self, num_blocks: int) -> None:
        """Give back what was held."""
        if not 0 <= num_blocks <= self.held:
            raise ValueError(f"release of {num_blocks} blocks; {self.held} are held")
        self.held -= num_blocks
