"""An index in a child that is forked, and after a change of the folder of the process."""

import gc
import os
import threading
import time
import traceback

import numpy as np
import pytest
from conftest import vectors

import stratann

#: Seconds after which a child that has not ended hangs.
LIMIT = 60.0


def in_child(work):
    """Runs `work` in a child; returns what it said, or fails when it hangs or dies."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, str(work()).encode())
            gc.collect()
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(writer)
    end = time.monotonic() + LIMIT
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        pytest.fail("the child hangs")
    said = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert ended[1] == 0, said
    return said


def refusal(call):
    try:
        return f"no error: {call()}"
    except stratann.InputError as e:
        return str(e)


@pytest.mark.parametrize("kind", ["flat", "disk-graph", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote-hnsw"])
def test_a_child_refuses_the_index_of_its_parent_at_once(tmp_path, kind):
    base = vectors(1, 2000, 24)
    stratann.build(base, tmp_path / "i", kind=kind)
    index = stratann.open(tmp_path / "i", cache_budget=0)
    # This thread keeps the ring of a lone query, which a child must not use, nor close.
    alone = index.search(base[7], k=5).ids
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [index.search(base[:100], k=5) for _ in iter(stop.is_set, True)])
    busy.start()
    try:
        for _ in range(5):
            for call in (
                lambda: index.search(base[:100], k=5),
                lambda: index.search(base[:1], k=5),
                lambda: index.explain(base[0]),
                lambda: index.info(),
                lambda: index.memory(),
                lambda: index.verify(),
                lambda: index.tune(k=(5,), sample=20),
                lambda: stratann.search_together([index], base[:5], k=5),
            ):
                assert "forked" in in_child(lambda call=call: refusal(call))
            assert in_child(lambda: (index.close(), index.closed)[1]) == "True"

            def opened_again():
                with stratann.open(tmp_path / "i", cache_budget=0) as own:
                    return own.search(base[7], k=5).ids.tolist() == alone.tolist()

            assert in_child(opened_again) == "True"

            def drop():
                # The last reference goes: nothing may wait for a thread of the parent.
                index.__dict__.clear()
                return "dropped"

            assert in_child(drop) == "dropped"
    finally:
        stop.set()
        busy.join()
    np.testing.assert_array_equal(index.search(base[7], k=5).ids, alone)
    np.testing.assert_array_equal(index.search(base[:5], k=1, recall=1).ids[:, 0], range(5))
    index.close()


def test_a_child_opens_builds_and_verifies_while_its_parent_works(tmp_path):
    base = vectors(1, 2000, 24)
    for kind in ("flat", "hybrid-ivf"):
        stratann.build(base, tmp_path / kind, kind=kind)
    with stratann.open(tmp_path / "hybrid-ivf") as index:
        assert index.verify()["violations_found"] == 0
    stratann.groundtruth(base, base[:10], k=5)
    stop = threading.Event()

    def work():
        for _ in iter(lambda: None if stop.is_set() else 1, None):
            stratann.build(base, tmp_path / "parent", kind="hybrid-ivf", calibration_queries=20, force=True)

    def everything():
        stratann.build(base, tmp_path / "child", kind="hybrid-ivf", calibration_queries=20, force=True)
        stratann.groundtruth(base, base[:10], k=5)
        with stratann.open(tmp_path / "hybrid-ivf") as index:
            index.tune(k=(5,), sample=20)
            return (index.search(base[:300], k=1, recall=1).ids[:, 0].tolist(), index.verify()["violations_found"])

    busy = threading.Thread(target=work)
    busy.start()
    try:
        time.sleep(0.3)
        assert in_child(everything) == str((list(range(300)), 0))
    finally:
        stop.set()
        busy.join()


def test_an_index_stays_the_same_after_a_change_of_folder(tmp_path, monkeypatch):
    rows = {name: vectors(seed, 2000, 16) for seed, name in enumerate("ab")}
    for name, own in rows.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for kind in ("disk-graph", "hybrid-ivf"):
            stratann.build(own, kind, kind=kind)
    for kind in ("disk-graph", "hybrid-ivf"):
        monkeypatch.chdir(tmp_path / "a")
        index = stratann.open(kind, epoch_queries=50 if kind == "hybrid-ivf" else None)
        monkeypatch.chdir(tmp_path / "b")
        index.tune(k=(1, 10), sample=20)
        found = index.search(rows["a"][:200], k=1, recall=1)
        np.testing.assert_array_equal(found.ids[:, 0], range(200))
        assert index.verify()["violations_found"] == 0 and index.info()["version"] == 2
        index.close()
        names = os.listdir(tmp_path / "b" / kind)
        assert [name for name in names if name.startswith("manifest")] == ["manifest-1.json"]
        assert not any(name.startswith("learnt") for name in names)


def test_the_largest_id_is_an_id(tmp_path):
    base = vectors(1, 300, 16)
    ids = np.arange(300, dtype=np.uint64)[::-1] + np.uint64(2**64 - 300)
    stratann.build(base, tmp_path / "i", kind="hybrid-ivf", ids=ids, calibration_queries=20)
    with stratann.open(tmp_path / "i") as index:
        with pytest.warns(UserWarning, match="fewer results"):
            found = index.search(base[:1], k=300, nprobe=1)
        assert found.ids[0, 0] == 2**64 - 1 and 0 < found.counts[0] < 300
        assert np.isfinite(found.distances[0]).sum() == found.counts[0]
        together = stratann.search_together([index, index], base[:1], k=10)
        assert together.ids[0, 0] == 2**64 - 1 and together.counts.tolist() == [10]
