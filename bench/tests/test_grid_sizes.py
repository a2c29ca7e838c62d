"""Slopes of the speed-up over dimensions and rows."""

import grid_sizes
import pytest


def test_slopes_are_those_of_a_power_law():
    points = [(d, r, 3.0 * d**0.3 * r**0.2) for d in (64, 128, 512) for r in (1000, 4000)]
    assert grid_sizes.slopes(points) == pytest.approx((2**0.3, 2**0.2))


def test_one_dimension_has_no_slope_of_it():
    by_dim, by_rows = grid_sizes.slopes([(64, r, float(r)) for r in (1000, 2000, 8000)])
    assert by_dim is None and by_rows == pytest.approx(2.0)
