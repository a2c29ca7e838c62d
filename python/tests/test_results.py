"""Hits with scores, payloads and vectors; tables in and out."""

import importlib
import json
import math
import uuid

import numpy as np
import pytest
from folders import DOORS, opened

import stratann

UUID = uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479")


@pytest.fixture(params=DOORS)
def client(request, tmp_path):
    with opened(request.param, tmp_path / "data") as client:
        yield client


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("is_compact", [False, True])
def test_hits_have_scores_payloads_and_vectors(client, metric, is_compact):
    points = client.create_collection("c", dim=2, metric=metric, dtype="float16")
    points.upsert([1, "two", UUID], [[3, 4], [6, 8], [0, 1]], [{"a": 1}, None, {"b": [2]}])
    if is_compact:
        points.compact()
    found = points.search([[0, 2], [3, 4]], k=5, recall=1.0, with_payload=True, with_vectors=True)
    assert len(found) == 2 and [len(hits) for hits in found] == [3, 3] and found[-1][0].id == found.ids[1][0]
    assert [[hit.id for hit in hits] for hits in found[:1]] == found.ids[:1]
    vectors = {1: [3, 4], "two": [6, 8], UUID: [0, 1]}
    payloads = {1: {"a": 1}, "two": None, UUID: {"b": [2]}}
    for query, hits in zip([[0, 2], [3, 4]], found):
        for hit in hits:
            vector = vectors[hit.id]
            assert hit.vector.tolist() == vector and hit.vector.dtype == np.float16
            assert hit.payload == payloads[hit.id]
            dot = float(np.dot(query, vector))
            score = {
                "l2": math.dist(query, vector),
                "ip": dot,
                "cosine": dot / math.hypot(*query) / math.hypot(*vector),
            }[metric]
            assert hit.score == pytest.approx(score, abs=1e-3)
            assert hit.distance == pytest.approx({"l2": score**2, "ip": -score, "cosine": 1 - score}[metric], abs=1e-2)
    np.testing.assert_allclose(found.scores[0, :3], [hit.score for hit in found[0]], rtol=1e-6)
    assert np.isinf(found.scores[0, 3:]).all()
    assert "2 queries, up to 3 hits" in repr(found) and len(repr(found[0][0])) < 100
    page = points.scroll()
    assert repr(page).startswith("<stratann.Page: 3 points") and "2 x float16" in repr(page.points[0])
    plain = points.search([[0, 2]])
    assert (plain.vectors, plain.payloads, plain[0][0].vector, plain[0][0].payload) == (None,) * 4
    with pytest.raises(IndexError):
        found[2]


def test_conditions_without_an_index_are_named_everywhere(client):
    points = client.create_collection("c", dim=1)
    points.upsert(range(10), np.ones((10, 1)), [{"n": at} for at in range(10)])
    points.compact()
    where = "n < 5"
    said = points.search([[1]], filter=where).unindexed
    assert len(said) == 1 and said[0].startswith("n (create an index of kind")
    assert points.count(filter=where).unindexed == points.scroll(filter=where).unindexed == said
    assert points.count().unindexed == points.scroll().unindexed == []
    assert points.delete([7]).unindexed == [] and points.delete(filter="n > 8").unindexed == said
    points.set_schema({"n": "integer"})
    points.compact()
    assert points.info()["schema"] == {"n": ["integer"]} == points.schema()
    assert points.count(filter=where) == 5 and points.count(filter=where).unindexed == []


def test_a_job_says_how_far_it_is(client):
    points = client.create_collection("c", dim=4)
    points.upsert(np.arange(3000), np.random.default_rng(1).random((3000, 4), np.float32))
    job = points.compact_later()
    done = job.wait(timeout=60)
    assert (done.state, done.segments, done.delta_points, job.is_done) == ("done", 1, 0, True)
    assert job.progress == done and done.elapsed_s > 0 and "done" in repr(job) and points.jobs() == []
    client.drop_collection("c")
    with pytest.raises(stratann.MissingError):
        points.compact_later()


class Failing:
    """A data folder whose merge goes on, and then has failed."""

    def __init__(self, looks):
        self.looks = looks

    def info(self, name):
        self.looks -= 1
        trouble = ("the disk is full", "disk_full") if self.looks < 0 else (None, None)
        jobs = ["merge"] if self.looks >= 0 else []
        stage = {"kind": "merge", "stage": "copying", "done": 25, "total": 100, "unit": "rows", "elapsed_ms": 2000}
        about = {"segments": [], "delta_points": 5, "trouble": trouble[0], "trouble_code": trouble[1], "jobs": jobs}
        about["progress"] = [{**stage, "kind": "checkpoint", "stage": "another"}, stage] if self.looks == 1 else []
        return json.dumps(about)


def test_a_job_that_fails_raises_why():
    job = stratann.Job(Failing(3), "c", "compact")
    with pytest.raises(TimeoutError, match="goes on"):
        stratann.Job(Failing(1000), "c", "compact").wait(timeout=0.01)
    now = job.progress
    assert (now.state, now.stage, now.eta_s) == ("waiting", None, None)
    now = job.progress
    assert (now.state, now.stage, now.eta_s) == ("running", "copying", 6)
    assert (now.done, now.total, now.unit) == (25, 100, "rows")
    with pytest.raises(stratann.DiskError, match="full"):
        job.wait()
    assert job.progress.state == "failed"


def test_masked_arrays_and_unsafe_casts_are_refused(client):
    floats = client.create_collection("f", dim=2)
    bytes_ = client.create_collection("b", dim=2, dtype="uint8")
    masked = np.ma.masked_invalid([[1.0, np.nan]])
    for points, ids, vectors, why in [
        (floats, [1], masked, "1 masked"),
        (floats, np.ma.array([1], mask=[True]), [[1, 2]], "masked"),
        (floats, [1], [[1e300, 0]], "cannot hold"),
        (floats, [1], [[1j, 0]], "complex"),
        (floats, [1], [["1", "2"]], "dtype"),
        (floats, [1], np.array([[True, False]]), "bool"),
        (floats, [1], np.array([[2**60 + 1, 0]]), "cannot hold"),
        (bytes_, [1], [[256, 0]], "cannot hold"),
        (bytes_, [1], [[-1, 0]], "cannot hold"),
        (bytes_, [1], [[0.5, 0]], "cannot hold"),
        (bytes_, [1], [[float("nan"), 0]], "cannot hold"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            points.upsert(ids, vectors)
    assert floats.info()["seq"] == bytes_.info()["seq"] == 0
    floats.upsert([1], np.ma.array([[1.0, 2.0]], mask=False))
    assert floats.search(np.array([[1, 2]], np.int64), k=1).ids == [[1]]


def tables(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def test_arrow_goes_in_and_out(client):
    pa = tables("pyarrow")
    points = client.create_collection("c", dim=2)
    vectors = [[1, 0], [2, 0], [3, 0]]
    fixed = pa.array(vectors, pa.list_(pa.float32(), 2))
    payload = pa.table({"a": [1, None, 3], "of": [{"b": "x"}, None, {"b": "z"}]})
    points.upsert(pa.array([1, 2, 3], pa.uint64()), fixed, payload)
    assert points.get([1])[0].payload == {"a": 1, "of": {"b": "x"}}
    points.upsert(pa.chunked_array([["x"], ["y", "z"]]), pa.chunked_array([pa.array(vectors, pa.list_(pa.float64()))]))
    points.upsert([9], fixed[1:2], payload.slice(2, 1))
    assert points.get([9])[0].vector.tolist() == [2, 0] and points.get([9])[0].payload["a"] == 3
    table = points.search([[1, 0]], k=2, with_payload=True, with_vectors=True).to_arrow()
    assert table.column_names == ["query", "rank", "id", "distance", "score", "payload", "vector"]
    assert table["id"].to_pylist() == ["1", "x"] and json.loads(table["payload"][0].as_py())["a"] == 1
    assert table["vector"].to_pylist() == [[1, 0], [1, 0]] and table["payload"][1].as_py() is None
    page = points.scroll(limit=3).to_arrow()
    assert page["id"].to_pylist() == [1, 2, 3] and page["id"].type == pa.uint64()
    for ids, rows, why in [
        (pa.array([1, None]), vectors[:2], "1 nulls"),
        ([1, 2], pa.array([[1.0, 2.0], None]), "1 nulls"),
        ([1], pa.array([[1.0, None]]), "1 nulls"),
        ([1, 2], pa.array([[1.0], [1.0, 2.0]]), "1 to 2 numbers"),
        ([1], pa.array([1.0]), "column of double"),
        ([1], pa.table({"v": [[1.0, 2.0]]}), "one column"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            points.upsert(ids, rows)


def test_pandas_goes_in_and_out(client):
    pd = tables("pandas")
    points = client.create_collection("c", dim=2)
    frame = pd.DataFrame({"id": [1, 2], "x": [1.0, 2.0], "y": [0.0, 0.0], "day": pd.to_datetime(["2026-01-02", None])})
    points.upsert(frame["id"], frame[["x", "y"]], frame[["x", "day"]])
    assert points.get([1])[0].payload == {"x": 1.0, "day": "2026-01-02T00:00:00"}
    assert points.get([2])[0].payload == {"x": 2.0, "day": None}
    points.upsert(pd.Series(["a", "b"]), pd.Series([np.ones(2), np.zeros(2)]), pd.Series([{"n": 1}, None]))
    found = points.search([[1, 1], [0, 0]], k=2, with_payload=True, with_vectors=True).to_pandas()
    assert found["query"].tolist() == [0, 0, 1, 1] and found["id"].tolist()[0] == "a"
    assert found["payload"].tolist()[0] == {"n": 1} and found["vector"].tolist()[0].tolist() == [1, 1]
    assert points.scroll().to_pandas()["id"].tolist() == [1, 2, "a", "b"]
    with pytest.raises(stratann.InputError, match="nulls"):
        points.upsert(pd.Series([1.0, None]), [[1, 2], [3, 4]])
    with pytest.raises(stratann.InputError, match="one name"):
        points.upsert([1], [[1, 2]], pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_polars_goes_in(client):
    pl = tables("polars")
    points = client.create_collection("c", dim=2)
    frame = pl.DataFrame({"id": [1, 2], "v": [[1.0, 0.0], [2.0, 0.0]], "n": [5, None]})
    points.upsert(frame["id"], frame["v"], frame.select("n"))
    assert [one.payload for one in points.get([1, 2])] == [{"n": 5}, {"n": None}]
    points.upsert(["x"], pl.DataFrame({"a": [3.0], "b": [4.0]}), pl.Series([{"m": 1}]))
    assert points.get(["x"])[0].vector.tolist() == [3, 4] and points.get(["x"])[0].payload == {"m": 1}
    with pytest.raises(stratann.InputError, match="nulls"):
        points.upsert([1, 2], pl.Series([[1.0, 2.0], None]))


def test_a_package_that_is_missing_is_named(client, monkeypatch):
    points = client.create_collection("c", dim=1)
    points.upsert([1], [[1]])

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    found, page = points.search([[1]]), points.scroll()
    for call, name in [
        (found.to_arrow, "pyarrow"),
        (found.to_pandas, "pandas"),
        (page.to_arrow, "pyarrow"),
        (page.to_pandas, "pandas"),
    ]:
        with pytest.raises(stratann.InputError, match=f"pip install {name}"):
            call()
