"""Text for token ids without a tokenizer: the id 5 is the text "5 "."""

from __future__ import annotations

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

    def stop_matcher(self, stop: tuple[str, ...]) -> FakeStopMatcher:
        """Return a matcher of stop strings."""
        return FakeStopMatcher(self, stop)


class FakeStopMatcher:
    """What the workers use of a `StopMatcher`."""

    def __init__(self, renderer: FakeRenderer, stop: tuple[str, ...]) -> None:
        self._renderer = renderer
        self._stop = stop
        self._text = ""

    def push(self, ids: list[int]) -> str | None:
        """Return the text before a stop string once there is one."""
        self._text += self._renderer.decode(ids)
        ends = [self._text.find(word) for word in self._stop if word in self._text]
        return self._text[: min(ends)] if ends else None
