"""What the readers of guides share: the one error they raise, and how large a guide may be."""

from __future__ import annotations

from typing import Final

from trtb.build.errors import TrtbError

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
# compiling happens while the whole batch waits: these keep the worst of it to a few seconds
MAX_REPEATS: Final = 512  # characters that the repetitions of one expression or grammar come to
MAX_VALUES: Final = 20_000  # what a schema names, and the items that it counts


class GuideError(TrtbError):
    """The engine would not compile this guide, or would not hold the answer to all of it."""

    code = "guide_refused"
    exit_code = 3
