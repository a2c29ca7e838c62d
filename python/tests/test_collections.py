"""Collections of a data folder in this process: what is written is found, and mistakes."""

import os
import subprocess
import sys
import threading
import uuid

import numpy as np
import pytest
from conftest import DTYPES, brute_force, vectors

import stratann

DIM = 8
UUID = uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def client(path):
    with stratann.Client(path) as opened:
        yield opened


@pytest.fixture
def points(client):
    return client.create_collection("c", dim=DIM)


def line(*numbers):
    """A vector with the same number in each component, for each number."""
    return np.repeat(np.array(numbers, np.float32)[:, None], DIM, axis=1)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "u8", "i8"])
def test_what_is_written_is_found_also_after_a_restart(path, dtype, metric):
    base, queries = vectors(1, 500, DIM, dtype), vectors(2, 20, DIM, dtype)
    with stratann.Client(path) as client:
        points = client.create_collection("c", dim=DIM, metric=metric, dtype=DTYPES[dtype])
        written = points.upsert(np.arange(500), base)
        assert (written.new, written.replaced, written.repeated) == (500, 0, 0)
        assert (points.dim, points.metric, points.dtype, points.kind) == (DIM, metric, DTYPES[dtype], "auto")
    _, truth = brute_force(base, queries, 5, metric)
    with stratann.Client(path) as client:
        found = client.collection("c").search(queries, k=5, recall=1.0)
        assert found.distances.shape == (20, 5) and found.distances.dtype == np.float32
        np.testing.assert_allclose(found.distances, truth, rtol=2e-3, atol=2e-3)
        assert found.seq == written.seq and all(len(ids) == 5 for ids in found.ids)
        assert client.collection("c").verify() == {"points": 500, "seq": written.seq}


def test_ids_are_numbers_uuids_and_strings(points):
    ids = [0, 2**53 + 1, 2**64 - 1, "seven", "x" * 255, UUID, "7"]
    points.upsert(ids, line(*range(7)))
    found = points.search(line(0), k=9)
    assert found.ids == [ids] and np.isinf(found.distances[0, 7:]).all()
    assert [type(one) for one in found.ids[0]] == [int, int, int, str, str, uuid.UUID, str]
    got = points.get([*ids[::-1], "no", str(UUID).upper()])
    assert [one and one.id for one in got] == [*ids[::-1], None, UUID]
    assert (got[0].vector == 6).all() and got[0].vector.dtype == np.float32 and got[0].seq == 1
    done = points.delete([UUID, 0, "no", np.uint64(2**64 - 1)])
    assert (done.deleted, done.unknown, done.seq) == (3, 1, 2)
    assert points.search(line(0)).ids == [[2**53 + 1, "seven", "x" * 255, "7"]]


def test_points_are_replaced_and_the_last_of_equal_ids_counts(points):
    assert points.upsert([5, 6, 5, 7], line(0, 1, 2, 3)) == stratann.Upserted(1, 3, 0, 1)
    assert points.upsert(np.array([5, 8], np.int32), line(9, 10)) == stratann.Upserted(2, 1, 1, 0)
    assert points.search(line(9), k=1).ids == [[5]] and points.count() == len(points) == 4
    assert points.get([5])[0].seq == 2
    assert points.delete([1, 2, 1]).unknown == 2


def test_pages_have_all_points_in_order(points):
    ids = [3, 2**63, 1, "b", "a", UUID, 2]
    points.upsert(ids, line(*range(7)))
    seen, page = [], points.scroll(limit=3)
    while True:
        seen += [point.id for point in page.points]
        if page.next is None:
            break
        page = points.scroll(after=page.next, limit=3)
    assert seen == [1, 2, 3, 2**63, UUID, "a", "b"]
    assert points.scroll(after="z").points == [] and len(points.scroll().points) == 7


def test_large_arrays_are_written_in_several_changes(client):
    points = client.create_collection("wide", dim=4096)
    base = np.random.default_rng(1).standard_normal((600, 4096), np.float32)
    written = points.upsert(np.arange(600), base)
    assert (written.new, written.seq > 1) == (600, True)
    found = points.search(base[::7], k=1)
    assert [ids[0] for ids in found.ids] == list(range(0, 600, 7))
    assert points.delete(list(range(600))).deleted == 600


def test_vectors_are_converted_as_long_as_nothing_is_lost(client):
    whole = client.create_collection("whole", dim=2, dtype="u8")
    whole.upsert([1, 2], [[0, 255], [3.0, 4.0]])
    assert whole.search([0, 255], k=1).ids == [[1]]
    half = client.create_collection("half", dim=2, dtype=np.float16)
    half.upsert([1], np.array([[1, 2.5]], np.float32))
    assert half.get([1])[0].vector.tolist() == [1, 2.5]
    for points, bad in [(whole, [[0.5, 1]]), (whole, [[256, 1]]), (half, [[1e6, 1]])]:
        with pytest.raises(stratann.InputError):
            points.upsert([1], bad)
    with pytest.raises(stratann.InputError, match="u8"):
        half.upsert([1], np.array([[1, 2]], np.uint8))


@pytest.mark.parametrize(
    ("ids", "rows", "why"),
    [
        ([1], [[np.nan] * DIM], "NaN"),
        ([1], [[np.inf] * DIM], "infinite"),
        ([1], [[1.0] * 7], "8 dimensions"),
        ([1], [1.0] * DIM, "8 dimensions"),
        ([1, 2], [[1.0] * DIM], "2 ids and 1 vectors"),
        ([], np.empty((0, DIM), np.float32), "no rows"),
        ([""], [[1.0] * DIM], "empty"),
        (["x" * 256], [[1.0] * DIM], "256 bytes"),
        ([-1], [[1.0] * DIM], "-1 is no id"),
        ([2**64], [[1.0] * DIM], "is no id"),
        ([1.5], [[1.0] * DIM], "is no id"),
        ([True], [[1.0] * DIM], "is no id"),
        ([None], [[1.0] * DIM], "is no id"),
        ("a", [[1.0] * DIM], "list of ids"),
        (np.zeros((1, 1), int), [[1.0] * DIM], "shape"),
    ],
)
def test_bad_points_are_refused_and_change_nothing(points, ids, rows, why):
    with pytest.raises(stratann.InputError, match=why):
        points.upsert(ids, rows)
    assert (points.info()["seq"], points.count()) == (0, 0)


def test_bad_arguments_are_refused(client, points):
    points.upsert([1], line(1))
    for call, why in [
        (lambda: points.search(line(1), k=0), "k is 0"),
        (lambda: points.search(line(1), k=16385), "16384"),
        (lambda: points.search(line(1), recall=1.5), "recall of 1.5"),
        (lambda: points.search([[np.nan] * DIM]), "NaN"),
        (lambda: points.scroll(limit=16385), "16384"),
        (lambda: points.get([]), "no id"),
        (lambda: client.create_collection("c", dim=3), "already"),
        (lambda: client.create_collection("", dim=3), "empty"),
        (lambda: client.create_collection("a/b", dim=3), "slash"),
        (lambda: client.create_collection("d", dim=4097), "4096"),
        (lambda: client.create_collection("d", dim=0), "dim is 0"),
        (lambda: client.create_collection("d", dim=3, metric="l3"), "l2"),
        (lambda: client.create_collection("d", dim=3, dtype="float64"), "float32"),
        (lambda: client.create_collection("d", dim=3, kind="tree"), "hybrid-ivf"),
        (lambda: client.create_collection(7, dim=3), "pass a str"),
        (lambda: stratann.Client("127.0.0.1:8700"), "stratann.connect"),
        (lambda: stratann.Client("http://localhost:8700"), "stratann.connect"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            call()
    assert [one["name"] for one in client.collections()] == ["c"]


def test_a_zero_vector_has_no_cosine(client):
    points = client.create_collection("z", dim=2, metric="cosine")
    for call in (lambda: points.upsert([1], [[0, 0]]), lambda: points.search([[0, 0]])):
        with pytest.raises(stratann.InputError, match="zero"):
            call()


def test_what_is_missing_is_a_key_error(client, points):
    for call in (lambda: client.collection("d"), lambda: client.drop_collection("d")):
        with pytest.raises(KeyError, match=r'^there is no collection "d"') as raised:
            call()
        assert isinstance(raised.value, stratann.MissingError) and isinstance(raised.value, stratann.InputError)
    client.drop_collection("c")
    for call in (points.count, points.verify, points.info, lambda: points.upsert([1], line(1))):
        with pytest.raises(stratann.MissingError):
            call()
    assert client.collections() == []
    client.create_collection("c", dim=DIM, kind="flat")
    assert points.count() == 0


def test_errors_of_a_collection_have_what_a_program_needs():
    busy, unknown = stratann.BusyError("full", 3), stratann.UnknownOutcomeError("who knows", 7)
    assert (busy.retry_after_s, unknown.seq, str(busy)) == (3, 7, "full")
    assert not isinstance(busy, stratann.InputError) and isinstance(unknown, stratann.Error)


def test_a_compact_collection_has_one_segment(points):
    base = vectors(1, 3000, DIM)
    points.upsert(np.arange(3000), base)
    stages = []
    points.compact(progress=lambda stage, done, total, unit: stages.append(stage))
    info = points.info()
    assert [one["rows"] for one in info["segments"]] == [3000] and info["delta_points"] == 0
    assert info["trouble"] is None
    points.delete([0])
    points.upsert(["x"], base[:1])
    found = points.search(base[:50], k=1, recall=1.0)
    assert found.ids == [["x"], *[[row] for row in range(1, 50)]]
    assert points.get([1])[0].vector.tolist() == base[1].tolist()
    assert points.verify()["points"] == 3000


def test_memory_limits_are_set_changed_and_hold(client):
    points = client.create_collection("d", dim=DIM, memory_quota="300KiB", memory_minimum=1000)
    limits = ("memory_quota_bytes", "memory_minimum_bytes")
    assert [points.info()[name] for name in limits] == [300 << 10, 1000]
    with pytest.raises(stratann.BusyError, match="memory quota of 300.0 KiB"):
        for first in range(0, 20_000, 500):
            points.upsert(np.arange(first, first + 500), vectors(1, 500, DIM))
    assert points.info()["memory_bytes"] > 10_000
    points.set_limits(memory_quota=None)
    points.upsert(np.arange(500), vectors(1, 500, DIM))
    points.set_limits(memory_minimum="1MiB")
    assert [points.info()[name] for name in limits] == [None, 1 << 20]
    assert set(points.info()["jobs"]) <= {"checkpoint", "merge"}
    for wrong in [{"memory_quota": 0}, {"memory_quota": 1}, {"memory_minimum": -1}, {"memory_quota": "big"}]:
        with pytest.raises(stratann.InputError):
            points.set_limits(**wrong)
    assert client.read_only is None


def test_a_damaged_data_folder_is_read_only(path):
    with stratann.Client(path) as client:
        points = client.create_collection("c", dim=DIM)
        points.upsert([1], line(1))
        points.compact()
    for file in (path / "db").rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(byte ^ 0x55 for byte in file.read_bytes()))
    with pytest.warns(RuntimeWarning, match="read-only"), stratann.Client(path) as client:
        assert "nothing is written" in client.read_only
        points = client.collection("c")
        assert points.search(line(1), k=1).ids == [[1]]
        with pytest.raises(stratann.CorruptIndexError, match="nothing is written"):
            points.upsert([2], line(2))


def test_a_budget_that_is_too_small_names_one_that_works(path):
    with pytest.raises(stratann.BudgetError, match="give ram_budget=") as raised:
        stratann.Client(path, ram_budget="64MiB")
    stratann.Client(path, ram_budget=str(raised.value).rsplit('"', 2)[1]).close()


def test_one_process_has_a_data_folder(client, path):
    with pytest.raises(stratann.InputError, match="open"):
        stratann.Client(path)
    code = f"import stratann; stratann.Client({str(path)!r})"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(stratann.__file__))}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert f"process {os.getpid()}" in child.stderr and "InputError" in child.stderr
    client.close()
    stratann.Client(path).close()


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(stratann.InputError, match="thesis"):
        stratann.Client(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused():
    # Nobody makes folders there, not even the administrator.
    with pytest.raises(stratann.DiskError, match="cannot be written"):
        stratann.Client("/sys/stratann-data")


def test_a_closed_client_says_so(client, points):
    client.close()
    client.close()
    assert client.closed and "closed" in repr(client)
    for call in (points.count, client.collections, lambda: points.upsert([1], line(1))):
        with pytest.raises(stratann.InputError, match="closed"):
            call()


def test_a_forked_child_gets_an_error(client, points):
    points.upsert([1], line(1))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            points.search(line(1))
        except stratann.InputError as error:
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "forked" in pipe.read()
    os.waitpid(child, 0)
    assert points.search(line(1)).ids == [[1]]


def test_threads_write_and_search_at_once(points):
    failures = []

    def work(number):
        try:
            for round_ in range(10):
                points.upsert([f"{number}-{round_}"], line(number))
                assert points.search(line(number), k=1).distances[0, 0] == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and points.count() == 40
    assert points.verify()["points"] == 40


def test_what_is_documented_is_there(client, points):
    for thing in (stratann.Client, stratann.Collection):
        for name in dir(thing):
            if not name.startswith("_"):
                assert getattr(thing, name).__doc__, name
    keys = {
        "name",
        "dim",
        "metric",
        "dtype",
        "kind",
        "points",
        "seq",
        "delta_points",
        "delta_bytes",
        "segments",
        "trouble",
        "jobs",
        "memory_bytes",
        "memory_quota_bytes",
        "memory_minimum_bytes",
    }
    assert set(points.info()) == keys
    assert "'c'" in repr(points) and "data" in repr(client)
