"""Deletes of an index in a folder."""

import numpy as np
import pytest
from conftest import vectors

import stratann

ROWS = 2000


@pytest.fixture
def place(tmp_path):
    base = vectors(1, ROWS, 16)
    stratann.build(base, tmp_path / "i")
    return base, tmp_path / "i"


def test_deleted_rows_are_not_found_until_they_are_brought_back(place):
    base, path = place
    gone = np.arange(0, ROWS, 4)
    report = stratann.delete(path, gone[::-1])
    assert (report["changed"], report["left"], report["version"]) == (len(gone), ROWS - len(gone), 2)
    with stratann.open(path) as index:
        found = index.search(base[gone], 5, recall=0.95)
        assert not np.isin(found.ids, gone).any()
        assert (index.search(base[:3], 5, only=[0, 4, 5, 6]).counts == 2).all()
        assert index.verify()["violations_found"] == 0
    back = stratann.delete(path, undo=True)
    assert (back["changed"], back["deleted"]) == (len(gone), 0)
    with stratann.open(path) as index:
        assert (index.search(base[gone], 1, recall=0.95).ids[:, 0] == gone).mean() > 0.9


def test_odd_ids_are_counted(place):
    report = stratann.delete(place[1], [3, 3, 2**63, ROWS])
    assert (report["changed"], report["unknown"], report["repeated"]) == (1, 2, 1)
    assert stratann.delete(place[1], np.array([3], np.uint64))["already"] == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "undo=True"),
        ({"ids": [1], "undo": True}, "undo=True"),
        ({"ids": [-1]}, "-1"),
        ({"ids": [0.5]}, "whole numbers"),
        ({"ids": [[1]]}, "shape"),
        ({"undo": True}, "no delete can be taken back"),
        ({"ids": [1], "ram_budget": "many"}, "ram_budget"),
    ],
)
def test_mistakes_are_refused(place, how, words):
    with pytest.raises(stratann.InputError, match=words):
        stratann.delete(place[1], **how)


def test_a_budget_without_room_changes_nothing(place):
    with pytest.raises(stratann.BudgetError):
        stratann.delete(place[1], [1], ram_budget="1KiB")
    with stratann.open(place[1]) as index:
        assert 1 in index.search(place[0][1:2], 1, recall=1.0).ids
