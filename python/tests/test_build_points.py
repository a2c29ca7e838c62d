"""Builds that keep ids of any form and payloads: of arrays, and of files as the program has them."""

import contextlib
import json
import subprocess
import uuid

import numpy as np
import pytest
from conftest import brute_force, vectors
from folders import program

import stratann
from stratann.filters import Field

ROWS, DIM = 300, 8
IDS = {
    "rows": None,
    "numbers": [10_000_000_000 + (row * 7) % ROWS for row in range(ROWS)],
    "strings": [f"item {(row * 7) % ROWS}" for row in range(ROWS)],
    "uuids": [uuid.UUID(int=(row * 7) % ROWS + (1 << 100)) for row in range(ROWS)],
    "mixed": [(row, f"item {row}", uuid.UUID(int=row))[row % 3] for row in range(ROWS)],
}
PAYLOAD = [None if row % 10 == 9 else {"price": row % 50, "brand": "xyz"[row % 3]} for row in range(ROWS)]
SCHEMA = {"price": ["integer", "float"], "brand": "keyword"}


@pytest.fixture(scope="module")
def base():
    return vectors(3, ROWS, DIM)


@pytest.fixture(scope="module")
def file(base, tmp_path_factory):
    """Points in a file of JSON lines, with columns of names that are not the usual ones."""
    path = tmp_path_factory.mktemp("points") / "shop.jsonl"
    lines = [
        {"sku": IDS["strings"][row], "embedding": vector, **(PAYLOAD[row] or {})}
        for row, vector in enumerate(base.tolist())
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def check(path, base, form, schema):
    """Compares searches with what NumPy finds among the rows that match."""
    queries = vectors(4, 20, DIM)
    rows = np.array([row for row, own in enumerate(PAYLOAD) if own and own["price"] < 20 and own["brand"] == "x"])
    nearest, distances = brute_force(base[rows], queries, 5, "l2")
    own = IDS[form] or list(range(ROWS))
    with stratann.open(path) as index:
        found = index.search(queries, k=5, recall=1, filter="price < 20 and brand = 'x'", with_payload=True)
        assert found.ids.tolist() == [[own[row] for row in rows[each].tolist()] for each in nearest]
        assert found.payloads == [[PAYLOAD[row] for row in rows[each].tolist()] for each in nearest]
        np.testing.assert_allclose(found.distances, distances, rtol=1e-4)
        assert list(found.unindexed) == [] if schema else len(found.unindexed) == 2
        alone = index.search(base[:3], k=1, recall=1)
        assert alone.ids[:, 0].tolist() == own[:3]


@contextlib.contextmanager
def served(path):
    """A client of a server of an index."""
    command = [program(), "serve", "--json", "--until-eof", "--index", str(path), "--http", "127.0.0.1:0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, **pipes)
    try:
        with stratann.connect(json.loads(process.stdout.readline())["http"]) as client:
            yield client
    finally:
        process.communicate()


@pytest.mark.parametrize("form", IDS)
def test_servers_answer_as_the_open_index_does(tmp_path, base, form):
    stratann.build(base, tmp_path / "i", "disk-graph", ids=IDS[form], payload=PAYLOAD, schema={"brand": "keyword"})
    queries = vectors(4, 70, DIM)
    with stratann.open(tmp_path / "i") as index, served(tmp_path / "i") as client:
        for more in [
            {"filter": "price < 20 and brand = 'x'", "with_payload": True},
            {"filter": Field("brand") == "y", "indexed_only": True},
            {"filter": {"must": [{"key": "price", "range": {"lt": 5}}]}},
            {"with_payload": True},
            {},
        ]:
            here, there = (own.search(queries, k=5, recall=1, **more) for own in (index, client))
            assert there.ids.tolist() == here.ids.tolist() and there.ids.dtype == here.ids.dtype
            assert there.payloads == here.payloads and list(there.unindexed) == list(here.unindexed)
            np.testing.assert_allclose(there.distances, here.distances, rtol=1e-6)
        for own in (index, client):
            for wrong, why in [
                ({"filter": "price <"}, "where text"),
                ({"filter": "price < 3", "indexed_only": True}, "price"),
                ({"indexed_only": True}, "no use"),
                ({"filter": "price < 3", "only": [1]}, "has_id"),
            ]:
                with pytest.raises(stratann.InputError, match=why):
                    own.search(queries, **wrong)


@pytest.mark.parametrize("form", IDS)
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["without", "indexed"])
def test_points_of_arrays_are_found_by_filters(tmp_path, base, form, schema):
    report = stratann.build(base, tmp_path / "i", "disk-graph", ids=IDS[form], payload=PAYLOAD, schema=schema)
    assert report.rows == ROWS
    check(tmp_path / "i", base, form, schema)
    left = {path.name for path in (tmp_path / "i").iterdir() if path.name.startswith(".")}
    assert not any("input" in name for name in left)


def test_ids_alone_are_kept_with_a_file_of_vectors(tmp_path, base):
    stratann.write_vectors(tmp_path / "base.fbin", base)
    stratann.build(tmp_path / "base.fbin", tmp_path / "i", "flat", ids=IDS["uuids"], payload=False)
    with stratann.open(tmp_path / "i") as index:
        assert index.search(base[:3], k=1).ids[:, 0].tolist() == IDS["uuids"][:3]
        named = {"must": [{"has_id": [str(IDS["uuids"][7])]}]}
        assert index.search(base[:1], k=1, filter=named).ids.tolist() == [[IDS["uuids"][7]]]


def test_the_index_is_that_of_the_program_to_the_byte(tmp_path, base, file):
    options = ["--payload", "--ids", "sku", "--vectors", "embedding", "--set", "price=integer,float"]
    command = [program(), "build", file, "-o", tmp_path / "program", "--kind", "disk-graph", *options]
    subprocess.run([*command, "--set", "brand=keyword"], check=True, capture_output=True)
    stratann.build(base, tmp_path / "array", "disk-graph", ids=IDS["strings"], payload=PAYLOAD, schema=SCHEMA)
    columns = {"ids": "sku", "vector_column": "embedding", "payload": True, "schema": SCHEMA}
    stratann.build(file, tmp_path / "file", "disk-graph", **columns)
    infos = []
    for name in ("program", "array", "file"):
        with stratann.open(tmp_path / name) as index:
            infos.append(index.info())
        check(tmp_path / name, base, "strings", SCHEMA)
    for info in infos[1:]:
        assert info["files"] == infos[0]["files"] and info["build_id"] == infos[0]["build_id"]
        assert info["points"] == infos[0]["points"]


@pytest.mark.parametrize(
    ("payload", "kept"),
    [(True, {"price", "brand", "sku"}), (["price"], {"price"}), (False, set()), ([], set())],
)
def test_columns_of_a_file_are_chosen(tmp_path, base, file, payload, kept):
    stratann.build(file, tmp_path / "i", "flat", payload=payload, vector_column="embedding")
    with stratann.open(tmp_path / "i") as index:
        found = index.search(base[:1], k=1, with_payload=True)
        assert found.ids.tolist() == [[0]] and set(found.payloads[0][0] or {}) == kept


def test_tables_and_parquet_are_taken(tmp_path, base):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": IDS["strings"], "vector": base.tolist(), "price": list(range(ROWS))})
    table = table.set_column(1, "vector", pa.array(base.tolist(), pa.list_(pa.float32())))
    parquet.write_table(table, tmp_path / "shop.parquet")
    stratann.build(tmp_path / "shop.parquet", tmp_path / "file", "flat", payload=True)
    own = {"ids": table["id"], "payload": table.select(["price"])}
    stratann.build(base, tmp_path / "table", "flat", **own)
    stratann.build(tmp_path / "shop.parquet", tmp_path / "both", "flat", **own)
    infos = []
    for name in ("file", "table", "both"):
        with stratann.open(tmp_path / name) as index:
            infos.append(index.info()["files"])
            found = index.search(base[7], k=1, filter="price = 7", with_payload=True)
        assert found.ids.tolist() == [[IDS["strings"][7]]] and found.payloads == [[{"price": 7}]]
    assert infos[0] == infos[1] == infos[2]


MISTAKES = {
    "payloads of another length": ({"payload": PAYLOAD[:-1]}, "300 rows and 299 payloads"),
    "ids of another length": ({"payload": PAYLOAD, "ids": ["a"]}, "300 rows and 1 ids"),
    "ids of strings alone": ({"ids": IDS["strings"]}, "payload=False"),
    "an id twice": ({"payload": PAYLOAD, "ids": ["a"] * ROWS}, "rows 0 and 1 of base have the same id a"),
    "an empty id": ({"payload": PAYLOAD, "ids": [""] * ROWS}, "empty"),
    "ids that are none": ({"payload": PAYLOAD, "ids": [1.5] * ROWS}, "1.5 is no id"),
    "a kind of index that is none": ({"payload": PAYLOAD, "schema": {"price": "geo"}}, '"geo"; use "keyword"'),
    "a field that is none": ({"payload": PAYLOAD, "schema": {"a..b": "text"}}, "a..b"),
    "a schema that is none": ({"payload": PAYLOAD, "schema": "price"}, "pass a dict"),
    "a schema without payloads": ({"schema": {"price": "float"}}, "pass payload, too"),
    "NaN in a payload": ({"payload": [{"a": float("nan")}] * ROWS}, r"payload\[0\] is no JSON"),
    "payloads that are no dicts": ({"payload": [7] * ROWS}, r"payload\[0\] is of type int"),
    "payloads of an array by name": ({"payload": True}, "no columns"),
    "a column of an array": ({"payload": PAYLOAD, "vector_column": "v"}, "leave it out"),
    "memory nodes": ({"payload": PAYLOAD, "kind": "remote-hnsw"}, "keep no payloads"),
    "no room for ids": ({"payload": PAYLOAD, "ids": IDS["strings"], "ram_budget": 1000}, "RAM budget"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named_and_leaves_nothing(tmp_path, base, name):
    more, why = MISTAKES[name]
    with pytest.raises(stratann.Error, match=why):
        stratann.build(base, tmp_path / "i", **{"kind": "flat", **more})
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"payload": True, "vector_column": "vector"}, 'no column "vector" for vector_column;'),
        ({"payload": True, "ids": "code"}, 'no column "code" for ids;'),
        ({"payload": "price"}, "pass a list"),
        ({"payload": True, "vector_column": 7}, "type int"),
        ({"payload": True, "ids": IDS["strings"]}, "payload is True"),
    ],
)
def test_columns_that_are_not_there_are_named(tmp_path, file, more, why):
    with pytest.raises(stratann.InputError, match=why):
        stratann.build(file, tmp_path / "i", "flat", **more)
    assert not (tmp_path / "i").exists()


def test_an_index_is_replaced_by_force_alone_and_stages_are_seen(tmp_path, base):
    with_points = {"ids": IDS["strings"], "payload": PAYLOAD}
    stratann.build(base, tmp_path / "i", "flat")
    with pytest.raises(stratann.InputError, match="force=True"):
        stratann.build(base, tmp_path / "i", "flat", **with_points)
    stages = []
    stratann.build(
        base, tmp_path / "i", "flat", **with_points, force=True, progress=lambda stage, *_: stages.append(stage)
    )
    assert "reading base" in stages and "writing ids" in stages


def test_a_build_that_is_stopped_goes_on_with_the_same_points_alone(tmp_path):
    base, ids = vectors(11, 20_000, 16), [f"item {row}" for row in range(20_000)]
    options = {"kind": "disk-graph", "degree": 16, "build_list": 32, "calibration_queries": 0, "ids": ids}
    payload = [{"row": row} for row in range(20_000)]

    def stop(stage, *_):
        if stage == "graph":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        stratann.build(base, tmp_path / "i", **options, payload=payload, progress=stop)
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path / "i")
    with pytest.raises(stratann.InputError):
        stratann.build(base, tmp_path / "i", **options, payload=[*payload[1:], None], resume=True)
    report = stratann.build(base, tmp_path / "i", **options, payload=payload, resume=True)
    assert "scan" not in report.stages
    with stratann.open(tmp_path / "i") as index:
        found = index.search(base[17], k=1, recall=None, search_list=50, filter="row = 17")
    assert found.ids.tolist() == [["item 17"]]
