"""Text for token ids without a tokenizer: the id 5 is the text "5 "."""

from __future__ import annotations

from trtb.runner.detokenize import StopMatcher

END_ID = 0


class FakeRenderer:
    """What the workers use of a `PromptRenderer`."""

    def decode(self, ids: list[int]) -> str:
        """Return the ids as text."""
        return "".join(f"{token} " for token in ids)

    def strip_stop_ids(self, ids: list[int]) -> list[int]:
        """Return the ids without those that end an answer."""
        while ids and ids[-1] == END_ID:
            ids = ids[:-1]
        return ids

    def stop_matcher(self, stop: tuple[str, ...]) -> StopMatcher:
        """Return the real matcher, on this text."""
        return StopMatcher(FakeDetokenizer(self), stop)  # type: ignore[arg-type]

    def stop_word_ids(self, stop: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return none: every stop string falls across tokens."""
        return ()


class FakeDetokenizer:
    """What a `StopMatcher` uses of a `Detokenizer`."""

    def __init__(self, renderer: FakeRenderer) -> None:
        self._renderer = renderer

    def push(self, ids: list[int]) -> str:
        """Return the text of the ids."""
        return self._renderer.decode(ids)

    def finish(self) -> str:
        """Return the rest, of which there is none."""
        return ""
