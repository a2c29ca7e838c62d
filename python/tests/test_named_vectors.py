"""Points with vectors by name, in this process and of a server."""

import numpy as np
import pytest
from folders import DOORS, opened

import stratann
from stratann import filters

SPECS = {
    "title": {"dim": 3, "metric": "cosine"},
    "image": {"dim": 2, "dtype": "uint8", "kind": "flat"},
    "é b": 4,
}


@pytest.fixture(params=DOORS)
def door(request):
    """How data folders are opened."""
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def client(path, door):
    with opened(door, path) as client:
        yield client


@pytest.fixture
def points(client):
    return client.create_collection("c", vectors=SPECS)


def titles(count):
    return np.array([[1 + row, 2, 3] for row in range(count)], np.float32)


def images(count):
    """Odd points have one."""
    return [[row, 0] if row % 2 else None for row in range(count)]


def test_points_have_vectors_by_name_also_after_a_restart(path, door):
    with opened(door, path) as client:
        points = client.create_collection("c", vectors=SPECS)
        done = points.upsert(range(20), {"title": titles(20), "image": images(20)}, [{"n": n} for n in range(20)])
        assert (done.seq, done.new) == (1, 20)
        points.compact()
        points.upsert(range(20, 24), {"title": titles(4), "image": images(4), "é b": None})
        points.upsert(["none"], {})
    with opened(door, path) as client:
        points = client.collection("c")
        assert {name: (one.dim, one.metric, one.dtype, one.kind) for name, one in points.vectors.items()} == {
            "image": (2, "l2", "u8", "flat"),
            "title": (3, "cosine", "f32", "auto"),
            "é b": (4, "l2", "f32", "auto"),
        }
        found = points.search([[9, 0]], k=3, recall=1, vector_name="image", with_vectors=True, with_payload=True)
        assert found.ids == [[9, 7, 11]] and found.vectors[0][1].tolist() == [7, 0]
        assert found.vectors[0][0].dtype == np.uint8 and found.payloads[0][0] == {"n": 9}
        assert len(points.search([1, 2, 3], k=100, vector_name="title").ids[0]) == 24
        assert points.search(np.ones(4), vector_name="é b").ids == [[]]
        assert points.count(filter="has_vector('image')") == 12
        assert points.count(filter=~filters.has_vector("title")) == 1
        both = points.search([1, 2, 3], k=100, vector_name="title", filter=filters.has_vector("image"))
        assert len(both.ids[0]) == 12 and all(one % 2 for one in both.ids[0])
        one, two, none = points.get([3, 4, "none"])
        assert one.vector is None and set(one.vectors) == {"title", "image"} and set(two.vectors) == {"title"}
        assert (one.vectors["title"] == titles(4)[3]).all() and one.vectors["image"].tolist() == [3, 0]
        assert none.vectors == {} and "no vector" in repr(none) and "image 2 x uint8" in repr(one)
        page = points.scroll(limit=4)
        assert [set(own.vectors) for own in page] == [{"title"}, {"title", "image"}] * 2
        assert points.verify()["points"] == 25 and "title 3 x f32, cosine" in repr(points)
        info = points.info()
        assert "dim" not in info and info["vectors"]["image"]["dtype"] == "u8"
        [segment] = info["segments"]
        assert "kind" not in segment
        assert {one["vector_name"]: one["rows"] for one in segment["indexes"]} == {"image": 10, "title": 20}
        assert client.collections()[0]["vectors"]["é b"]["dim"] == 4


def test_some_vectors_change_and_others_stay(points):
    points.upsert([1, 2, 3], {"title": titles(3), "image": [[1, 1], [2, 2], None]}, [{"a": 1}, None, None])
    for _ in range(2):
        done = points.update_vectors([1, 3], {"image": [None, [9, 9]], "é b": np.ones((2, 4))})
        assert done.changed == 2
        one, two, three = points.get([1, 2, 3])
        assert set(one.vectors) == {"title", "é b"} and one.payload == {"a": 1}
        assert two.vectors["image"].tolist() == [2, 2] and three.vectors["image"].tolist() == [9, 9]
        assert points.search([9, 9], k=1, vector_name="image").ids == [[3]]
        points.compact()
    points.update_vectors([1, 2, 3], {"é b": None})
    assert points.count(filter="has_vector('é b')") == 0
    with pytest.raises(stratann.InputError, match="no point 7"):
        points.update_vectors([1, 7], {"title": titles(2)})
    assert (points.get([1])[0].vectors["title"] == titles(1)[0]).all()


def test_masks_and_large_calls(client):
    points = client.create_collection("wide", vectors={"a": 4096, "b": 2})
    count = 700
    a = np.ma.masked_array(np.ones((count, 4096), np.float32), np.zeros((count, 4096), bool))
    a[::3] = np.ma.masked
    b = [[row, 0] if row % 2 else None for row in range(count)]
    done = points.upsert(range(count), {"a": a, "b": b})
    assert done.new == count and done.seq > 1
    assert points.count(filter="has_vector('a')") == count - len(range(0, count, 3))
    got = points.get([3, 4, 5])
    assert [set(one.vectors) for one in got] == [{"b"}, {"a"}, {"a", "b"}] and got[2].vectors["b"].tolist() == [5, 0]


def test_mistakes_name_the_names(client, points):
    one = client.create_collection("one", dim=2)
    wrong = [
        (lambda: points.upsert([1], {"titel": titles(1)}), "unknown vector name 'titel'; there are"),
        (lambda: points.upsert([1], titles(1)), "have names: "),
        (lambda: points.upsert([1, 2], {"title": titles(1)}), "2 ids and 1 rows"),
        (lambda: points.upsert([1], {"title": [[1, 2]]}), "have shape"),
        (lambda: points.upsert([1], {"image": [[0.5, 1]]}), "image"),
        (lambda: points.upsert([1], {"title": [[0, 0, 0]]}), "zero vector"),
        (lambda: points.search(titles(1)), "have names: "),
        (lambda: points.search(titles(1), vector_name="x"), "unknown vector name 'x'"),
        (lambda: points.update_vectors([1], {}), "no name"),
        (lambda: points.dim, "have names: "),
        (lambda: one.search([1, 2], vector_name="x"), "have no names"),
        (lambda: one.upsert([1, 2], {"": [[1, 2], None]}), "has no vector"),
        (lambda: client.create_collection("x"), "neither dim nor vectors"),
        (lambda: client.create_collection("x", dim=3, vectors={"a": 3}), "for each name"),
        (lambda: client.create_collection("x", vectors={}), "pass a dict"),
        (lambda: client.create_collection("x", vectors={"a/b": 3}), "slash"),
        (lambda: client.create_collection("x", vectors={"a": {"dim": 3, "metrik": "l2"}}), "metrik"),
        (lambda: client.create_collection("x", vectors={"a": {"metric": "l2"}}), "dim"),
        (lambda: client.create_collection("x", vectors={str(at): 2 for at in range(17)}), "at most 16"),
    ]
    for call, text in wrong:
        with pytest.raises(stratann.InputError) as error:
            call()
        assert text in str(error.value)
    assert len(points) == 0
    one.upsert([1], {"": [[1, 2]]})
    assert one.update_vectors([1], [[3, 4]]) == stratann.VectorsChanged(2, 1)
    assert one.get([1])[0].vector.tolist() == [3, 4] and one.vectors[""].dim == 2


def test_tables_have_a_column_for_each_name(points):
    pandas = pytest.importorskip("pandas")
    points.upsert([1, 2], {"title": titles(2), "image": [None, [2, 2]]})
    frame = points.scroll().to_pandas()
    assert list(frame.columns) == ["id", "seq", "payload", "vectors.image", "vectors.title"]
    assert pandas.isna(frame["vectors.image"][0]) and frame["vectors.image"][1].tolist() == [2, 2]
