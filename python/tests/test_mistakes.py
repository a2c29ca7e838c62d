"""The mistakes of a new user: an error of one line each, that says what, where and what to do, and changes nothing."""

import numpy as np
import pytest
from conftest import vectors

import stratann


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with vectors, an index, and files that are neither."""
    folder = tmp_path_factory.mktemp("mistakes")
    base = vectors(1, 400, 16)
    stratann.build(base, folder / "index", kind="disk-graph")
    stratann.write_vectors(folder / "base.fbin", base)
    stratann.write_vectors(folder / "query.fbin", vectors(2, 5, 16))
    stratann.write_vectors(folder / "wide.fbin", vectors(2, 5, 17))
    (folder / "empty.fbin").write_bytes(b"")
    (folder / "cut.fbin").write_bytes((folder / "base.fbin").read_bytes()[:-7])
    (folder / "notes.txt").write_text("hello")
    (folder / "folder").mkdir()
    (folder / "folder/letter").write_text("mine")
    return folder


def content(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def search(place, *args, **options):
    with stratann.open(place / "index") as index:
        return index.search(*(args or (vectors(2, 5, 16),)), **options)


def build(place, base=None, out="new", **options):
    return stratann.build(vectors(1, 400, 16) if base is None else base, place / out, **options)


def nan_row():
    rows = vectors(1, 40, 16)
    rows[7, 3] = np.nan
    return rows


# What is done, and what its error contains: where, and what to do.
MISTAKES = {
    "no vectors": (lambda p: build(p, p / "nothing.fbin"), ["nothing.fbin", "No such file"]),
    "text as vectors": (lambda p: build(p, p / "notes.txt"), ["notes.txt", ".fbin"]),
    "an empty file": (lambda p: build(p, p / "empty.fbin"), ["empty.fbin"]),
    "a file that is cut": (lambda p: build(p, p / "cut.fbin"), ["cut.fbin", "truncated", "copy"]),
    "a folder as vectors": (lambda p: build(p, p / "folder"), ["folder", "name a file"]),
    "an index as vectors": (lambda p: build(p, p / "index"), ["index", "name a file"]),
    "an array of one row": (lambda p: build(p, vectors(1, 1, 16)[0]), ["shape (16,)", "two"]),
    "an empty array": (lambda p: build(p, np.zeros((0, 16), np.float32)), ["rows"]),
    "an array of text": (lambda p: build(p, np.array([["a", "b"]])), ["float32"]),
    "a row with NaN": (lambda p: build(p, nan_row()), ["row 7", "component 3"]),
    "a folder with other files": (lambda p: build(p, out="folder"), ["folder", "other"]),
    "an index that exists": (lambda p: build(p, out="index"), ["index", "force"]),
    "a file as the index": (lambda p: build(p, out="base.fbin"), ["base.fbin", "folder"]),
    "an unknown kind": (lambda p: build(p, kind="graph"), ['"graph"', "disk-graph"]),
    "an unknown metric": (lambda p: build(p, metric="euclid"), ['"euclid"', "l2"]),
    "a budget without room": (lambda p: build(p, ram_budget="1MiB"), ["ram_budget", "MiB"]),
    "a budget that is no size": (lambda p: build(p, ram_budget="lots"), ["lots", "MiB"]),
    "few neighbours": (lambda p: build(p, degree=2), ["degree", "4 to 250"]),
    "an index that is not there": (lambda p: stratann.open(p / "nothing"), ["nothing", "build"]),
    "a folder as an index": (lambda p: stratann.open(p / "folder"), ["folder", "build"]),
    "vectors as an index": (lambda p: stratann.open(p / "base.fbin"), ["base.fbin", "build"]),
    "queries of other dimensions": (lambda p: search(p, vectors(2, 5, 17)), ["17", "16"]),
    "queries of another type": (lambda p: search(p, vectors(2, 5, 16, "u8")), ["u8", "f32", "astype"]),
    "queries of three axes": (lambda p: search(p, np.zeros((1, 2, 16), np.float32)), ["(1, 2, 16)"]),
    "k of 0": (lambda p: search(p, k=0), ["k is 0", "1 to"]),
    "k of text": (lambda p: search(p, k="ten"), ["ten", "k"]),
    "recall of text": (lambda p: search(p, recall="high"), ['recall is "high"', "share"]),
    "a degree of text": (lambda p: build(p, degree="many"), ['degree is "many"', "4 to 250"]),
    "recall in percent": (lambda p: search(p, recall=95), ["95", "0.95"]),
    "recall of 0": (lambda p: search(p, recall=0), ["recall is 0"]),
    "no threads": (lambda p: search(p, threads=0), ["threads is 0", "1 to 1024"]),
    "clusters of a graph": (lambda p: search(p, nprobe=10), ["nprobe", "search_list"]),
    "an option that is misspelt": (lambda p: search(p, recal=0.9), ["recal;", "use recall"]),
    "a misspelt option of a build": (
        lambda p: stratann.build(p / "base.fbin", p / "new", kind="disk-graph", degre=8),
        ["degre;", "use degree"],
    ),
    "a misspelt option of another kind": (lambda p: search(p, npobe=3), ["npobe;", "leave it out"]),
    "a misspelt option of an index": (lambda p: stratann.open(p / "index", prelod=True), ["use preload"]),
    "queries as the truth": (
        lambda p: stratann.open(p / "index").recall(vectors(2, 5, 16), search(p), p / "query.fbin"),
        ["query.fbin", "groundtruth"],
    ),
    "truth of other dimensions": (
        lambda p: stratann.groundtruth(p / "base.fbin", p / "wide.fbin", k=3),
        ["17", "16"],
    ),
    "a closed index": (lambda p: closed(p).search(vectors(2, 5, 16)), ["closed", "open"]),
}


def closed(place):
    index = stratann.open(place / "index")
    index.close()
    return index


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_has_an_error_of_one_line_and_changes_nothing(place, name):
    mistake, named = MISTAKES[name]
    before = content(place)
    with pytest.raises(stratann.Error) as caught:
        mistake(place)
    # As Python's own error for a name that is not in the signature.
    assert isinstance(caught.value, TypeError) == ("misspelt" in name)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500, message
    assert [word for word in named if word not in message] == [], message
    assert content(place) == before
