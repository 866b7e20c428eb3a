"""What the readers of guides share: the one error they raise, and how large a guide may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trtb.build.errors import TrtbError

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
# compiling happens while the whole batch waits: these keep the worst of it to a few seconds
MAX_REPEATS: Final = 256  # copies that the counts of one expression or grammar make
MAX_OPTIONAL: Final = 128  # characters that it may leave out
BROAD: Final = 6  # what a class of most characters counts for
MAX_VALUES: Final = 20_000  # what a schema names, and the items that it counts


class GuideError(TrtbError):
    """The engine would not compile this guide, or would not hold the answer to all of it."""

    code = "guide_refused"
    exit_code = 3


@dataclass(slots=True)
class Cost:
    """What the quantifiers of one expression or grammar cost to compile.

    A broad class counts for several characters: most of the vocabulary fits it, and is walked for each copy.
    """

    num_repeats: int = 0
    num_optional: int = 0

    def add(self, size: int, low: int, copies: int) -> None:
        """Count one quantifier over a part of `size` characters; raise GuideError past the limits."""
        self.num_repeats += size * (copies - 1)
        self.num_optional += size if low == 0 else 0
        if self.num_repeats > MAX_REPEATS:
            raise GuideError(
                f"its counts repeat {self.num_repeats} characters or more, a broad class counted as {BROAD};"
                f" expected at most {MAX_REPEATS}"
            )
        if self.num_optional > MAX_OPTIONAL:
            raise GuideError(
                f"its optional parts come to {self.num_optional} characters or more, a broad class counted as"
                f" {BROAD}; expected at most {MAX_OPTIONAL}"
            )
