"""Collections of a data folder, in this process and of a server: what is written is found, and mistakes.

Tests whose client has no door of its own run by both, with the same results and errors.
"""

import os
import subprocess
import sys
import threading
import uuid

import numpy as np
import pytest
from conftest import DTYPES, brute_force, vectors
from folders import DOORS, opened

import stratann

DIM = 8
UUID = uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture(params=DOORS)
def door(request):
    """How data folders are opened."""
    return request.param


@pytest.fixture
def client(path, door):
    with opened(door, path) as client:
        yield client


@pytest.fixture
def embedded(path):
    with stratann.Client(path) as client:
        yield client


@pytest.fixture
def points(client):
    return client.create_collection("c", dim=DIM)


def line(*numbers):
    """A vector with the same number in each component, for each number."""
    return np.repeat(np.array(numbers, np.float32)[:, None], DIM, axis=1)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "u8", "i8"])
def test_what_is_written_is_found_also_after_a_restart(path, door, dtype, metric):
    base, queries = vectors(1, 500, DIM, dtype), vectors(2, 20, DIM, dtype)
    with opened(door, path) as client:
        points = client.create_collection("c", dim=DIM, metric=metric, dtype=DTYPES[dtype])
        written = points.upsert(np.arange(500), base)
        assert (written.new, written.replaced, written.repeated) == (500, 0, 0)
        assert (points.dim, points.metric, points.dtype, points.kind) == (DIM, metric, DTYPES[dtype], "auto")
    _, truth = brute_force(base, queries, 5, metric)
    with opened(door, path) as client:
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
        (lambda: points.search(line(1), k=1.5), "whole number"),
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
        (lambda: client.create_collection("a\0b", dim=3), "control character"),
        (lambda: client.create_collection("\ud800", dim=3), "Unicode"),
        (lambda: stratann.Client("127.0.0.1:8700"), "http://127.0.0.1:8700.*stratann.connect"),
        (lambda: stratann.Client("http://a b"), "no address"),
        (lambda: stratann.Client("http://localhost:8700", ram_budget=1), "of the server"),
        (lambda: stratann.Client("http://localhost:8700", token="a\nb"), "ASCII"),
        (lambda: stratann.Client("there", token="secret"), "for a server"),
        (lambda: stratann.Client("http://localhost:8700", timeout=0), "timeout is 0"),
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
    with pytest.raises(stratann.BusyError, match=r"memory quota of 300\.0 KiB"):
        for first in range(0, 20_000, 500):
            points.upsert(np.arange(first, first + 500), vectors(1, 500, DIM))
    assert points.info()["memory_bytes"] > 10_000
    points.set_limits(memory_quota=None)
    points.upsert(np.arange(500), vectors(1, 500, DIM))
    points.set_limits(memory_minimum="1MiB")
    assert [points.info()[name] for name in limits] == [None, 1 << 20]
    assert set(points.info()["jobs"]) <= {"checkpoint", "minor_merge", "merge"}
    for wrong in [{"memory_quota": 0}, {"memory_quota": 1}, {"memory_minimum": -1}, {"memory_quota": "big"}]:
        with pytest.raises(stratann.InputError):
            points.set_limits(**wrong)
    assert client.read_only is None


def test_a_damaged_data_folder_is_read_only(path, door):
    with stratann.Client(path) as client:
        points = client.create_collection("c", dim=DIM)
        points.upsert([1], line(1))
        points.compact()
    for file in (path / "db").rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(byte ^ 0x55 for byte in file.read_bytes()))
    with pytest.warns(RuntimeWarning, match="read-only"), opened(door, path) as client:
        assert "nothing is written" in client.read_only
        points = client.collection("c")
        assert points.search(line(1), k=1).ids == [[1]]
        with pytest.raises(stratann.CorruptIndexError, match="nothing is written"):
            points.upsert([2], line(2))


def test_a_budget_that_is_too_small_names_one_that_works(path):
    with pytest.raises(stratann.BudgetError, match="give ram_budget=") as raised:
        stratann.Client(path, ram_budget="64MiB")
    stratann.Client(path, ram_budget=str(raised.value).rsplit('"', 2)[1]).close()


def test_one_process_has_a_data_folder(embedded, path):
    with pytest.raises(stratann.InputError, match="open"):
        stratann.Client(path)
    code = f"import stratann; stratann.Client({str(path)!r})"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(stratann.__file__))}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert f"process {os.getpid()}" in child.stderr and "InputError" in child.stderr
    embedded.close()
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


def test_a_forked_child_gets_an_error(embedded):
    points = embedded.create_collection("c", dim=DIM)
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


def colored(count, first=0):
    """Payloads of points: a color, a price, and words."""
    colors = ["red", "green", "blue"]
    return [
        {"color": colors[at % 3], "price": at / 2, "of": {"tags": [at, str(at)], "text": f"item number {at}"}}
        for at in range(first, first + count)
    ]


RED = {"must": [{"key": "color", "match": {"value": "red"}}]}
CHEAP_RED = {"must": [*RED["must"], {"key": "price", "range": {"lt": 5}}]}


def all_points(points, **options):
    """All points page by page."""
    seen, page = [], points.scroll(**options)
    while page.points:
        seen += page.points
        if page.next is None:
            break
        page = points.scroll(after=page.next, **options)
    return seen


@pytest.mark.parametrize("is_compact", [False, True])
def test_payloads_come_back_as_they_were_given(path, door, is_compact):
    ids = [1, 2**64 - 1, UUID, "no", "empty", "x"]
    payloads = [
        {"a": 1, "b": [True, None, -1.5, "ü\0"], "c": {"d": {"e": []}}},
        {"big": 2**64 - 1, "small": -(2**63), "tiny": 1e-300},
        {"": "", "key with spaces": "😀"},
        None,
        {},
        {"text": "y" * 1_000_000},
    ]
    with opened(door, path) as client:
        points = client.create_collection("c", dim=DIM)
        points.upsert(ids, line(*range(6)), payloads)
        if is_compact:
            points.compact()
    stored = [one or None for one in payloads]
    with opened(door, path) as client:
        points = client.collection("c")
        assert [point.payload for point in points.get(ids)] == stored
        assert {point.id: point.payload for point in points.scroll().points} == dict(zip(ids, stored))
        found = points.search(line(0, 5), k=6, with_payload=True)
        assert found.ids == [ids, ids[::-1]] and found.payloads == [stored, stored[::-1]]
        assert points.search(line(0)).payloads is None
        points.upsert([1, 2**64 - 1], line(0, 1), [None, {"a": 2}])
        assert [point.payload for point in points.get(ids[:3])] == [None, {"a": 2}, payloads[2]]
        points.upsert([2**64 - 1], line(1))
        assert points.get(ids[1:2])[0].payload is None
        assert points.verify()["points"] == 6


def test_large_payloads_are_written_in_several_changes_and_all_read(points):
    payloads = [{"n": at, "text": chr(97 + at % 26) * 900_000} for at in range(100)]
    assert points.upsert(np.arange(100), line(*range(100)), payloads).seq > 10
    found = points.search(line(0), k=60, with_payload=True)
    assert found.payloads[0] == [payloads[id_] for id_ in found.ids[0]] and len(found.ids[0]) == 60
    with pytest.raises(stratann.InputError, match="ask for fewer"):
        points.search(line(0), k=100, with_payload=True)
    with pytest.raises(stratann.InputError, match="ask for fewer"):
        points.get(range(100))
    changed = points.set_payload({"seen": True}, filter={})
    assert (changed.changed, points.count(filter="seen = true")) == (100, 100)
    with pytest.raises(stratann.InputError, match=r"8388608|1048576"):
        points.set_payload({"more": "z" * 500_000}, ids=[0])


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize(
    ("as_dict", "as_text", "holds"),
    [
        (RED, "color = 'red'", lambda own: own["color"] == "red"),
        (CHEAP_RED, "color = 'red' and price < 5", lambda own: own["color"] == "red" and own["price"] < 5),
        (
            {"must_not": [{"key": "color", "match": {"any": ["red", "blue"]}}]},
            "not color in ('red', 'blue')",
            lambda own: own["color"] == "green",
        ),
        ({"must": [{"key": "of.tags", "match": {"value": "7"}}]}, "of.tags = '7'", lambda own: own["price"] == 3.5),
        ({"must": [{"key": "color", "match": {"value": "black"}}]}, "color = 'black'", lambda own: False),
        ({}, "exists(color)", lambda own: True),
    ],
)
def test_filters_as_dict_and_as_text_find_the_same(points, as_dict, as_text, holds, is_compact):
    payloads = colored(60)
    points.upsert(np.arange(60), line(*range(60)), payloads)
    if is_compact:
        points.compact()
    matching = [at for at in range(60) if holds(payloads[at])]
    for filter in (as_dict, as_text):
        found = points.search(line(0, 59), k=60, recall=1.0, filter=filter, with_payload=True)
        assert found.ids == [matching, matching[::-1]]
        assert found.payloads[0] == [payloads[at] for at in matching]
        assert np.isinf(found.distances[:, len(matching) :]).all()
        assert points.count(filter=filter) == len(matching)
        assert [point.id for point in all_points(points, limit=7, filter=filter)] == matching


def test_a_filter_names_ids_of_all_types(points):
    ids = [7, UUID, "seven", 8]
    points.upsert(ids, line(*range(4)))
    assert points.count(filter={"must": [{"has_id": [np.uint64(7), UUID, "seven", "no"]}]}) == 3
    assert points.count(filter={"must": [{"has_id": np.array([7, 8])}]}) == 2
    assert points.count(filter=f"has_id(7, '{UUID}')") == 2


def test_a_count_is_estimated_from_a_sample(points):
    points.upsert(np.arange(2000), line(*range(2000)), [{"n": at, "odd": at % 2 == 1} for at in range(2000)])
    exact = points.count(filter="odd = true")
    assert (exact, exact.least, exact.most) == (1000, 1000, 1000)
    about = points.count(filter="odd = true", exact=False)
    assert abs(about - 1000) < 300 and about.least < about <= about.most
    assert about.least <= 1000 <= about.most and about.unindexed == exact.unindexed == []
    everything = points.count(exact=False)
    assert (everything, everything.least, everything.most) == (2000, 2000, 2000)


def test_points_are_deleted_by_a_filter(points):
    points.upsert(np.arange(60), line(*range(60)), colored(60))
    points.compact()
    points.upsert(np.arange(60, 90), line(*range(60, 90)), colored(30, 60))
    done = points.delete(filter=CHEAP_RED)
    assert (done.deleted, done.unknown, done.changed) == (4, 0, 0) and done.seq == points.info()["seq"]
    assert points.delete(filter="color = 'red' and price < 5").deleted == 0
    assert points.count() == 86 and points.count(filter=RED) == 26 and points.get([0, 3]) == [None, None]
    assert points.delete([0, 1]) == stratann.Deleted(done.seq + 1, 1, 1)
    assert points.delete(filter={}).deleted == 85 and len(points) == 0


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize("by_ids", [False, True])
def test_payloads_change_and_vectors_stay(points, by_ids, is_compact):
    payloads = colored(3000)
    points.upsert(np.arange(3000), line(*range(3000)), payloads)
    if is_compact:
        points.compact()
    red = range(0, 3000, 3)
    chosen = {"ids": [*red, "no"]} if by_ids else {"filter": RED}

    def counts(done):
        assert done.seq == points.info()["seq"]
        return done.changed, done.unchanged, done.unknown

    unknown = int(by_ids)
    assert counts(points.set_payload({"price": -1, "new": [1]}, **chosen)) == (1000, 0, unknown)
    assert points.get([3])[0].payload == {**payloads[3], "price": -1, "new": [1]}
    assert counts(points.set_payload({"new": [1]}, **chosen)) == (0, 1000, unknown)
    assert counts(points.set_payload({"deep": "in"}, **chosen, key="of")) == (1000, 0, unknown)
    assert points.get([3])[0].payload["of"] == {**payloads[3]["of"], "deep": "in"}
    assert counts(points.delete_payload_keys(["of.text", "new", "of.tags"], **chosen)) == (1000, 0, unknown)
    assert points.get([3])[0].payload == {"color": "red", "price": -1, "of": {"deep": "in"}}
    assert points.overwrite_payload({"color": "red"}, **chosen).changed == 1000
    assert points.get([3, 4])[0].payload == {"color": "red"} and points.get([4])[0].payload == payloads[4]
    assert points.clear_payload(**chosen).changed == 1000
    assert points.get([3])[0].payload is None and points.count(filter=RED) == 0 and len(points) == 3000
    assert (points.get([2997])[0].vector == 2997).all() and points.search(line(2997), k=1).ids == [[2997]]
    assert points.verify()["points"] == 3000


def test_an_index_of_a_field_answers_without_payloads(points):
    points.upsert(np.arange(300), line(*range(300)), colored(300))
    points.compact()
    assert points.schema() == {}
    found = points.search(line(0), filter=CHEAP_RED)
    assert len(found.unindexed) == 2 and any("color" in one and "keyword" in one for one in found.unindexed)
    assert points.search(line(0)).unindexed == []
    schema = {"color": "keyword", "price": ("float",), "of.text": ["text", "keyword"]}
    points.set_schema(schema)
    assert points.schema() == {"color": ["keyword"], "of.text": ["keyword", "text"], "price": ["float"]}
    points.compact()
    indexed = points.search(line(0), filter=CHEAP_RED)
    assert indexed.unindexed == [] and indexed.ids == found.ids == [[0, 3, 6, 9]]
    assert points.search(line(0), k=1, filter="of.text phrase 'number 250'").ids == [[250]]
    points.set_schema({})
    assert points.schema() == {}


def test_bad_payloads_filters_and_schemas_are_refused_and_change_nothing(points):
    points.upsert([1, 2], line(1, 2), [{"a": 1}, None])
    two = line(1, 2)
    deep = {}
    for _ in range(200):
        deep = {"a": deep}
    for call, why in [
        (lambda: points.upsert([1, 2], two, [{"a": np.nan}, None]), r"payload\[0\] .*finite"),
        (lambda: points.upsert([1, 2], two, [None, {"a": [float("inf")]}]), r"payload\[1\] .*finite"),
        (lambda: points.upsert([1, 2], two, [{"a": 1}]), "2 ids and 1 payloads"),
        (lambda: points.upsert([1, 2], two, {"a": 1}), "type dict; pass a list"),
        (lambda: points.upsert([1, 2], two, "ab"), "type str; pass a list"),
        (lambda: points.upsert([1, 2], two, [None, [1]]), r"payload\[1\] is of type list; pass a dict"),
        (lambda: points.upsert([1, 2], two, [None, {"a": b"x"}]), "bytes"),
        (lambda: points.upsert([1, 2], two, [None, {"a": "\ud800"}]), "Unicode"),
        (lambda: points.upsert([1, 2], two, [None, deep]), "point 1: .*100 levels"),
        (lambda: points.upsert([1, 2], two, [None, {"a": "x" * (1 << 20)}]), "point 1: .*1048576"),
        (lambda: points.search(two, filter={"musst": []}), 'unknown member "musst".*must'),
        (lambda: points.count(filter={"must": [{"key": "a", "match": {"valu": 1}}]}), "/must/0/match"),
        (lambda: points.count(filter={"must": [{"key": "a", "match": {"value": {1, 2}}}]}), "set"),
        (lambda: points.count(filter={"must": [{"key": "a", "range": {"lt": np.nan}}]}), "finite"),
        (lambda: points.scroll(filter="a ="), "column 4"),
        (lambda: points.scroll(filter="a = '\ud800'"), "Unicode"),
        (lambda: points.scroll(filter=[1]), "type list; pass a dict"),
        (lambda: points.delete(), "neither"),
        (lambda: points.delete([1], filter={}), "both"),
        (lambda: points.delete(filter="a <"), "column"),
        (lambda: points.set_payload({"b": 1}), "neither"),
        (lambda: points.clear_payload([1], filter={}), "both"),
        (lambda: points.set_payload({"b": np.nan}, [1]), "payload .*finite"),
        (lambda: points.set_payload(None, [1]), "NoneType"),
        (lambda: points.set_payload({"b": 1}, [1], key="a..b"), "column"),
        (lambda: points.set_payload({"b": 1}, [1], key=7), "key is of type int"),
        (lambda: points.overwrite_payload([], [1]), "type list"),
        (lambda: points.delete_payload_keys("a", [1]), "list of paths"),
        (lambda: points.delete_payload_keys([], [1]), "empty"),
        (lambda: points.delete_payload_keys(["a", "["], [1]), "column"),
        (lambda: points.clear_payload([]), "no id"),
        (lambda: points.set_schema({"a": "geo"}), "field a is .*geo.*keyword"),
        (lambda: points.set_schema({"a": []}), "field a is .*keyword"),
        (lambda: points.set_schema({"a..b": "text"}), "column"),
        (lambda: points.set_schema(["a"]), "type list"),
        (lambda: points.set_schema({f"f{at}": "bool" for at in range(1001)}), "1000"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            call()
    assert points.info()["seq"] == 1 and points.schema() == {}
    assert [point.payload for point in points.get([1, 2])] == [{"a": 1}, None]


def test_what_is_documented_is_there(client, points):
    for thing in (stratann.Client, stratann.Collection, stratann.AsyncClient, stratann.AsyncCollection, stratann.Job):
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
        "indexes_built",
        "payloads_folded",
        "rows_taken_over",
        "trouble",
        "trouble_code",
        "jobs",
        "progress",
        "schema",
        "memory_bytes",
        "memory_quota_bytes",
        "memory_minimum_bytes",
    }
    assert set(points.info()) == keys
    assert "'c'" in repr(points) and ("data" in repr(client) or "http://" in repr(client))
