"""An index that was built with ids and payloads answers filters, and returns both."""

import json
import subprocess
import uuid
import warnings

import numpy as np
import pytest
from conftest import brute_force, vectors
from folders import program

import stratann
from stratann.filters import Field

ROWS, DIM = 400, 8
IDS = {
    "rows": lambda row: None,
    "numbers": lambda row: 10_000_000_000 + (row * 7) % ROWS,
    "strings": lambda row: f"item {(row * 7) % ROWS}",
    "uuids": lambda row: uuid.UUID(int=(row * 7) % ROWS + (1 << 100)),
}


def payload(row):
    return None if row % 10 == 9 else {"price": row % 50, "brand": "xyz"[row % 3]}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Makes indexes of points whose ids have a form."""
    folder = tmp_path_factory.mktemp("points")
    base, queries = vectors(3, ROWS, DIM), vectors(4, 20, DIM)

    def build(form, *more):
        path, lines = folder / f"{form}{len(more)}.idx", []
        for row, vector in enumerate(base):
            line = {"vector": vector.tolist(), "payload": payload(row)}
            if IDS[form](row) is not None:
                line["id"] = IDS[form](row)
            lines.append(json.dumps(line, default=str))
        if not path.exists():
            points = folder / f"{form}.jsonl"
            points.write_text("\n".join(lines))
            command = [program(), "build", points, "-o", path, "--kind", "disk-graph", "--payload", *more]
            subprocess.run(command, check=True, capture_output=True)
        return path

    return build, base, queries


@pytest.mark.parametrize("form", IDS)
def test_filters_find_what_brute_force_finds(built, form):
    build, base, queries = built
    rows = np.array([row for row in range(ROWS) if row % 10 != 9 and row % 50 < 20 and row % 3 == 0])
    nearest, distances = brute_force(base[rows], queries, 5, "l2")
    shown = [[row if form == "rows" else IDS[form](row) for row in rows[own].tolist()] for own in nearest]
    with stratann.open(build(form)) as index:
        for given in [
            "price < 20 and brand = 'x'",
            (Field("price") < 20) & (Field("brand") == "x"),
            {"must": [{"key": "price", "range": {"lt": 20}}, {"key": "brand", "match": {"value": "x"}}]},
        ]:
            found = index.search(queries, k=5, recall=1, filter=given, with_payload=True)
            assert found.ids.tolist() == shown
            np.testing.assert_allclose(found.distances, distances, rtol=1e-4)
            assert found.payloads == [[payload(row) for row in rows[own].tolist()] for own in nearest]
            assert len(found.unindexed) == 2 and "price" in found.unindexed[1]
        assert index.memory()["ids and payloads"] > 0
        alone = index.search(queries[:3], k=2, recall=1)
        assert alone.payloads is None and alone.ids.shape == (3, 2)
        own = brute_force(base, queries[:3], 2, "l2")[0].tolist()
        assert alone.ids.tolist() == [[row if form == "rows" else IDS[form](row) for row in each] for each in own]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            few = index.search(queries[:2], k=5, recall=1, filter="price = 7 and brand = 'q'", with_payload=True)
        assert few.counts.tolist() == [0, 0] and few.payloads == [[], []]


def test_an_index_of_fields_answers_and_others_are_refused(built):
    build, _, queries = built
    with stratann.open(build("strings", "--set", "price=integer")) as index:
        found = index.search(queries, filter="price < 20", indexed_only=True)
        assert list(found.unindexed) == []
        with pytest.raises(stratann.InputError, match="brand"):
            index.search(queries, filter="brand = 'x'", indexed_only=True)
        with pytest.raises(stratann.InputError, match="where text"):
            index.search(queries, filter="price <")
        with pytest.raises(stratann.InputError, match="indexed_only has no use"):
            index.search(queries, indexed_only=True)
        with pytest.raises(stratann.InputError, match="has_id"):
            index.search(queries, only=[1, 2])
        with pytest.raises(stratann.InputError, match="numbers alone"):
            index.explain(queries[0])


def test_an_index_without_payloads_says_how_to_build_one(tmp_path):
    stratann.build(vectors(3, 50, DIM), tmp_path / "i", "flat")
    with stratann.open(tmp_path / "i") as index:
        for more in [{"filter": "a = 1"}, {"with_payload": True}]:
            with pytest.raises(stratann.InputError, match="payload="):
                index.search(vectors(4, 1, DIM), **more)


def test_ids_and_payloads_count_in_a_budget(built):
    build, _, queries = built
    with pytest.raises(stratann.BudgetError):
        stratann.open(build("strings"), ram_budget=1000)
    with stratann.open(build("strings"), ram_budget="64MiB") as index:
        assert index.search(queries, filter="price < 20").ids.shape == (20, 10)
