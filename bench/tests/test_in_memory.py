"""Curves of in_memory.py."""
import pytest
from in_memory import at_recall, medians


def test_time_at_a_recall_lies_between_the_beams_around_it():
    points = [(0.9, 10.0), (0.99, 20.0)]
    assert at_recall(points, 0.5) == 10.0
    assert at_recall(points, 0.999) is None
    # Misses shrink evenly: half of the way from 0.1 to 0.01 is their geometric mean.
    assert at_recall(points, 1 - (0.1 * 0.01) ** 0.5) == pytest.approx(15.0)
    assert at_recall([(0.9, 10.0), (0.9, 12.0), (1.0, 20.0)], 0.95) < 20.0


def test_medians_are_those_of_each_beam():
    assert medians([[(0.9, 3.0), (0.95, 9.0)], [(0.9, 1.0), (0.95, 7.0)], [(0.9, 2.0), (0.95, 8.0)]]) == [
        (0.9, 2.0),
        (0.95, 8.0),
    ]
