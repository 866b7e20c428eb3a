"""Labels beside points: put where they cover neither one another nor a point, as far as there is room."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

GLYPH_WIDTH, GLYPH_HEIGHT = 6.6, 12.0  # of an 11 px digit, with a little air
RADIUS = 6.0  # of a point's mark
# first the places that people expect
_SIDES = ((0, -1), (1, 0), (0, 1), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1))


@dataclass(frozen=True, slots=True)
class Place:
    """A point in the plot, in px from its upper left corner, and what is written beside it."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: _Box) -> float:
        """Return the area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


def place_labels(
    places: Sequence[Place], lines: Sequence[Sequence[Place]], width: float, height: float
) -> list[tuple[float, float]]:
    """Return, for each place, the centre of its label in px; its own point where there is no label.

    One after another, each label takes the side that covers least of the points, of the lines that join them
    and of the labels before it, and of what lies outside the plot.
    """
    points = [_Box(one.x - RADIUS, one.y - RADIUS, one.x + RADIUS, one.y + RADIUS) for one in places]
    points += [dot for line in lines for start, end in itertools.pairwise(line) for dot in _dots(start, end)]
    taken: list[_Box] = []
    centres: list[tuple[float, float]] = []
    for one in places:
        if not one.label:
            centres.append((one.x, one.y))
            continue
        half = len(one.label) * GLYPH_WIDTH / 2
        options = [_box(one, side, half, distance) for distance in (3.0, 10.0) for side in _SIDES]
        costs = [_cost(box, points, taken, width, height) for box in options]
        best = options[costs.index(min(costs))]
        taken.append(best)
        centres.append(((best.left + best.right) / 2, (best.top + best.bottom) / 2))
    return centres


def _dots(start: Place, end: Place) -> list[_Box]:
    """Return small boxes along a line, close enough that no label fits between two."""
    num = min(200, 1 + int(max(abs(end.x - start.x), abs(end.y - start.y)) / 5))
    spots = [
        (start.x + (end.x - start.x) * n / num, start.y + (end.y - start.y) * n / num) for n in range(num)
    ]
    return [_Box(x - 1.5, y - 1.5, x + 1.5, y + 1.5) for x, y in spots]


def _box(one: Place, side: tuple[int, int], half: float, distance: float) -> _Box:
    across, down = side
    x = one.x + across * (RADIUS + distance + half)
    y = one.y + down * (RADIUS + distance + GLYPH_HEIGHT / 2)
    return _Box(x - half, y - GLYPH_HEIGHT / 2, x + half, y + GLYPH_HEIGHT / 2)


def _cost(box: _Box, points: list[_Box], taken: list[_Box], width: float, height: float) -> float:
    covered = sum(box.overlap(other) for other in points) + 2 * sum(box.overlap(other) for other in taken)
    outside = (
        max(0.0, -box.left) + max(0.0, box.right - width) + max(0.0, -box.top) + max(0.0, box.bottom - height)
    )
    return covered + 20 * outside
