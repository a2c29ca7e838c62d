"""Builders of filters give exactly the dictionaries, which the program reads."""

import datetime
import uuid

import numpy as np
import pytest

import stratann
from stratann import filters
from stratann.filters import Field, all_of, any_of, has_id, has_vector, min_should, nested, none_of

UUID = uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479")
PRICE = {"key": "price", "range": {"lt": 50}}
RED = {"key": "color", "match": {"value": "red"}}
BUILT = [
    (Field("price") < 50, {"must": [PRICE]}),
    (Field("price") <= 5.5, {"must": [{"key": "price", "range": {"lte": 5.5}}]}),
    (Field("a[].b") > np.int64(1), {"must": [{"key": "a[].b", "range": {"gt": 1}}]}),
    (Field("day") >= datetime.date(2026, 1, 2), {"must": [{"key": "day", "range": {"gte": "2026-01-02"}}]}),
    (Field("price").between(1, 2), {"must": [{"key": "price", "range": {"gte": 1, "lte": 2}}]}),
    (Field("color") == "red", {"must": [RED]}),
    (Field("sold") == True, {"must": [{"key": "sold", "match": {"value": True}}]}),  # noqa: E712
    (Field("id") == UUID, {"must": [{"key": "id", "match": {"value": str(UUID)}}]}),
    (Field("color") != "red", {"must": [{"key": "color", "match": {"except": ["red"]}}]}),
    (Field("brand").any("x", "y"), {"must": [{"key": "brand", "match": {"any": ["x", "y"]}}]}),
    (Field("brand").except_("x", 1), {"must": [{"key": "brand", "match": {"except": ["x", 1]}}]}),
    (Field("t").text("a b"), {"must": [{"key": "t", "match": {"text": "a b"}}]}),
    (Field("t").text_any("a b"), {"must": [{"key": "t", "match": {"text_any": "a b"}}]}),
    (Field("t").phrase("a b"), {"must": [{"key": "t", "match": {"phrase": "a b"}}]}),
    (Field("t").prefix("a"), {"must": [{"key": "t", "match": {"prefix": "a"}}]}),
    (Field("t").substring("a"), {"must": [{"key": "t", "match": {"substring": "a"}}]}),
    (Field("t").values_count(gte=1, lt=3), {"must": [{"key": "t", "values_count": {"gte": 1, "lt": 3}}]}),
    (Field("t").exists(), {"must": [{"exists": {"key": "t"}}]}),
    (Field("t").is_empty(), {"must": [{"is_empty": {"key": "t"}}]}),
    (Field("t").is_null(), {"must": [{"is_null": {"key": "t"}}]}),
    (has_id(1, "x", UUID, np.uint64(2**63)), {"must": [{"has_id": [1, "x", str(UUID), 2**63]}]}),
    (has_vector(""), {"must": [{"has_vector": ""}]}),
    ((Field("price") < 50) & (Field("color") == "red"), {"must": [PRICE, RED]}),
    ((Field("price") < 50) & (Field("color") == "red") & has_id(1), {"must": [PRICE, RED, {"has_id": [1]}]}),
    ((Field("price") < 50) | (Field("color") == "red"), {"should": [PRICE, RED]}),
    (~(Field("price") < 50), {"must_not": [PRICE]}),
    (~~(Field("price") < 50), {"must_not": [{"must_not": [PRICE]}]}),
    (
        ((Field("price") < 50) | (Field("color") == "red")) & ~has_id(1),
        {"must": [{"should": [PRICE, RED]}, {"must_not": [{"has_id": [1]}]}]},
    ),
    (
        min_should(1, Field("price") < 50, Field("color") == "red"),
        {"min_should": {"conditions": [PRICE, RED], "min_count": 1}},
    ),
    (
        nested("parts", (Field("price") < 50) & (Field("color") == "red")),
        {"must": [{"nested": {"key": "parts", "filter": {"must": [PRICE, RED]}}}]},
    ),
    (all_of(), {"must": []}),
    (none_of(Field("price") < 50, Field("color") == "red"), {"must_not": [PRICE, RED]}),
    (any_of(any_of(Field("price") < 50), Field("color") == "red"), {"should": [PRICE, RED]}),
]


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    with stratann.Client(tmp_path_factory.mktemp("filters") / "data") as client:
        points = client.create_collection("c", dim=1)
        payloads = [{"price": at, "color": ["red", "blue"][at % 2], "t": "a b"} for at in range(100)]
        points.upsert(np.arange(100), np.ones((100, 1)), payloads)
        yield points


@pytest.mark.parametrize(("built", "plain"), BUILT, ids=[repr(plain) for _, plain in BUILT])
def test_a_builder_gives_the_dictionary_which_the_program_reads(points, built, plain):
    assert built.to_dict() == plain and eval(repr(built.to_dict())) == plain
    assert points.count(filter=built) == points.count(filter=plain)
    built.to_dict().clear()
    assert built.to_dict() == plain, "the condition stays as it is"


def test_builders_find_what_they_say(points):
    cheap_red = (Field("price") < 50) & (Field("color") == "red")
    assert points.count(filter=cheap_red) == 25 and points.count(filter=~cheap_red) == 75
    assert points.count(filter=cheap_red | has_id(1)) == 26
    assert points.count(filter=min_should(2, Field("price") < 50, Field("color") == "red", has_id(0))) == 25
    assert points.scroll(filter=Field("price").between(3, 4)).points[0].id == 3
    assert points.count(filter=Field("t").phrase("a b")) == 100
    assert cheap_red == ((Field("price") < 50) & (Field("color") == "red")) != ~cheap_red


def test_mistakes_with_builders_are_refused():
    price = Field("price")
    for call, why in [
        (lambda: price < 1 and price > 0, "neither true nor false"),
        (lambda: 0 < price < 5, "neither true nor false"),
        (lambda: (price < 1) & {"must": []}, "no condition"),
        (lambda: price == None, "None"),  # noqa: E711
        (lambda: price.any([1, 2]), r"\[1, 2\]"),
        (lambda: Field(7), "type int"),
        (lambda: any_of(), "no condition"),
        (lambda: nested("a", "b"), "no condition"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            call()


def test_builders_are_documented():
    for name in filters.__all__:
        assert getattr(filters, name).__doc__, name
    for name in dir(Field):
        if not name.startswith("_"):
            assert getattr(Field, name).__doc__, name
