"""Pages in the order of a field, filters that need an index, and conditions of upserts, by both doors."""

import uuid

import numpy as np
import pytest
from folders import DOORS, opened

import stratann

DIM = 8
UUID = uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479")


@pytest.fixture(params=DOORS)
def points(request, tmp_path):
    with opened(request.param, tmp_path / "data") as client:
        yield client.create_collection("c", dim=DIM)


def line(*numbers):
    """A vector with the same number in each component, for each number."""
    return np.repeat(np.array(numbers, np.float32)[:, None], DIM, axis=1)


def all_points(points, **options):
    """All points page by page."""
    seen, page = [], points.scroll(**options)
    while page.next is not None:
        seen += page.points
        page = points.scroll(**{**options, "after": page.next})
    return seen + page.points


@pytest.mark.parametrize("is_compact", [False, True])
def test_pages_are_in_the_order_of_a_field(points, is_compact):
    days = [f"2024-05-{1 + at % 28:02}" for at in range(60)]
    payloads = [{"v": at * 7 % 11, "day": days[at], "list": [at, 100 - at]} for at in range(60)]
    payloads[5:7] = [None, {"v": "none"}]
    points.upsert(np.arange(60), line(*range(60)), payloads)
    with pytest.raises(stratann.InputError, match=r"no index that keeps an order.*set_schema"):
        points.scroll(order_by="v")
    points.set_schema({"v": "integer", "day": "datetime", "list": "float"})
    if is_compact:
        points.compact()
    known = [at for at in range(60) if at not in (5, 6)]
    values = {"v": lambda at: at * 7 % 11, "day": lambda at: at % 28, "list": lambda at: min(at, 100 - at)}
    for field, value in values.items():
        found = all_points(points, order_by=field, limit=13)
        assert [point.id for point in found] == sorted(known, key=lambda at: (value(at), at))
    found = all_points(points, order_by="list", descending=True, limit=13)
    assert [point.id for point in found] == sorted(known, key=lambda at: (-max(at, 100 - at), at))
    assert found[0].payload == payloads[found[0].id] and (found[0].vector == found[0].id).all()
    page = points.scroll(order_by="v", limit=10)
    assert isinstance(page.next, str) and len(page) == 10
    # It goes on where it was, whatever came before that place since.
    points.set_payload({"v": -1}, ids=[20, 50])
    rest = all_points(points, order_by="v", after=page.next, limit=1000)
    seen = {point.id for point in page}
    assert {point.id for point in rest} == {at for at in known if at not in seen | {20, 50}}
    few = points.scroll(order_by="v", filter="list < 10", descending=True)
    assert [point.id for point in few] == sorted(
        [at for at in known if at < 10], key=lambda at: (-values["v"](at), at)
    )
    for wrong, why in [
        ({"after": 7, "order_by": "v"}, "pass the next"),
        ({"after": "7", "order_by": "v"}, "names no place"),
        ({"after": page.next, "order_by": "v", "descending": True}, "another order"),
        ({"descending": True}, "no use without order_by"),
        ({"order_by": "a..b"}, "column"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            points.scroll(**wrong)


def test_filters_on_fields_without_an_index_can_be_refused(points):
    payloads = [{"color": ["red", "green", "blue"][at % 3], "price": at / 2} for at in range(9)]
    points.upsert(np.arange(9), line(*range(9)), payloads)
    points.set_schema({"price": "float"})
    points.compact()
    calls = [
        lambda filter: points.count(filter=filter, indexed_only=True),
        lambda filter: points.search(line(0), filter=filter, indexed_only=True),
        lambda filter: points.scroll(filter=filter, indexed_only=True),
        lambda filter: points.scroll(filter=filter, order_by="price", indexed_only=True),
        lambda filter: points.set_payload({"x": 1}, filter=filter, indexed_only=True),
        lambda filter: points.delete(filter=filter, indexed_only=True),
    ]
    for call in calls:
        with pytest.raises(stratann.InputError, match=r"color \(create an index of kind keyword\).*set_schema"):
            call("color = 'red' and price < 5")
        with pytest.raises(stratann.InputError, match=r"without a filter|neither ids nor a filter"):
            call(None)
    assert points.count(filter="color = 'red' and price < 5").unindexed and points.count() == 9
    for call in calls:
        call("price >= 4")
    points.set_schema({"price": "float", "color": "keyword"})
    with pytest.raises(stratann.InputError, match="not made yet"):
        points.count(filter="color = 'red'", indexed_only=True)
    points.compact()
    assert points.count(filter="color = 'red'", indexed_only=True) == 3


def test_a_condition_leaves_points_as_they_are(points):
    first = points.upsert([1, "two", UUID], line(1, 2, 3))
    assert first.skipped == []
    done = points.upsert([1, 4, UUID, "two"], line(9, 9, 9, 9), if_absent=True)
    assert done == stratann.Upserted(2, 1, 0, 0, [1, UUID, "two"])
    done = points.upsert([1, 4], line(8, 8), [{"a": 1}, None], if_unchanged_since=first.seq)
    assert done == stratann.Upserted(3, 0, 1, 0, [4])
    assert [one.vector[0] for one in points.get([1, "two", UUID, 4])] == [8, 2, 3, 9]
    assert points.upsert([1], line(0), if_absent=True).seq == 3
    with pytest.raises(stratann.InputError, match="both given"):
        points.upsert([1], line(0), if_absent=True, if_unchanged_since=3)
    with pytest.raises(stratann.InputError, match="if_unchanged_since"):
        points.upsert([1], line(0), if_unchanged_since=-1)
