import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from conftest import vectors

import stratann


def test_report_tells_what_was_done(tmp_path, base):
    report = stratann.build(base, tmp_path / "i", kind="flat", threads=1)
    on_disk = sum(f.stat().st_size for f in (tmp_path / "i").iterdir() if not f.name.startswith("manifest"))
    assert report.rows == 4000 and report.skipped_rows == 0
    assert report.seconds > 0 and report.peak_rss_bytes > 1 << 20
    assert 0 < report.index_bytes and abs(report.index_bytes - on_disk) < 4096
    assert "scan" in report.stages


def test_equal_arguments_give_equal_bytes_whatever_the_threads(tmp_path):
    base = vectors(7, 1200, 16)
    for name, threads in (("a", 1), ("b", 2)):
        stratann.build(
            base, tmp_path / name, "disk-graph", threads=threads, calibration_queries=0, degree=16, build_list=32
        )
    a, b = (stratann.open(tmp_path / name).info() for name in "ab")
    assert a["files"] == b["files"] and a["build_id"] == b["build_id"]


def test_options_reach_the_engine(tmp_path, base, graph_path):
    given = {
        "degree": 12,
        "build_list": 30,
        "alpha": 1.5,
        "passes": 2,
        "code_bytes": 8,
        "codes": "disk",
        "pages_per_block": 2,
        "head_share": 0.1,
        "pack": False,
        "compress": False,
        "exact_points": True,
        "seed": 7,
        "calibration_queries": 0,
    }
    with stratann.open(graph_path) as index:
        defaults = index.info()["build"]
    # A given value that equals the default would not show that the option arrives.
    assert [key for key in given if given[key] == defaults.get(key)] == []
    stratann.build(base, tmp_path / "i", "disk-graph", **given)
    with stratann.open(tmp_path / "i") as index:
        recorded, memory, found = index.info()["build"], index.memory(), index.search(base[:50], k=1, search_list=40)
    assert {key: recorded[key] for key in given} == given
    assert "codes" not in memory and memory["head codes"] == 400 * 8
    assert (found.ids[:, 0] == np.arange(50)).mean() > 0.9
    with pytest.raises(stratann.InputError, match=r"codes is ['\"]tape['\"]"):
        stratann.build(base, tmp_path / "j", codes="tape")


def test_bad_rows_fail_or_are_skipped(tmp_path):
    base = vectors(8, 100, 8)
    base[41, 3] = np.nan
    with pytest.raises(stratann.InputError, match=r"row 41 .*component 3 is NaN"):
        stratann.build(base, tmp_path / "i", kind="flat")
    assert not (tmp_path / "i").exists()
    report = stratann.build(base, tmp_path / "i", kind="flat", on_bad_row="skip")
    assert (report.rows, report.skipped_rows) == (99, 1)
    found = stratann.open(tmp_path / "i").search(np.delete(base, 41, axis=0), k=1).ids[:, 0]
    assert list(found) == [i for i in range(100) if i != 41]


def test_an_index_is_replaced_by_force_only(tmp_path):
    stratann.build(vectors(9, 30, 8), tmp_path / "i", kind="flat")
    with pytest.raises(stratann.InputError, match="force=True"):
        stratann.build(vectors(9, 40, 8), tmp_path / "i", kind="flat")
    stratann.build(vectors(9, 40, 8), tmp_path / "i", kind="flat", force=True)
    assert stratann.open(tmp_path / "i").rows == 40


def test_other_layouts_are_copied_with_a_warning(tmp_path):
    base = vectors(10, 60, 8)
    with pytest.warns(UserWarning, match="not C-contiguous: 1920 bytes are copied"):
        stratann.build(np.asfortranarray(base), tmp_path / "i", kind="flat")
    index = stratann.open(tmp_path / "i")
    r = index.search(np.asfortranarray(base), k=1)
    np.testing.assert_array_equal(r.ids[:, 0], np.arange(60))


def test_progress_callback_sees_every_stage_begin_and_count_up(tmp_path, base):
    calls = []
    caller = threading.current_thread()

    def on_progress(stage, done, total, unit):
        assert threading.current_thread() is caller
        calls.append((stage, done, total, unit))

    stratann.build(base, tmp_path / "i", "disk-graph", progress=on_progress, calibration_queries=0)
    stages = list(dict.fromkeys(call[0] for call in calls))
    assert len(stages) >= 5 and "graph" in stages
    for stage in stages:
        done = [call[1] for call in calls if call[0] == stage]
        assert done[0] == 0 and done == sorted(done)
    graph = [call for call in calls if call[0] == "graph"]
    assert graph[-1][1] == graph[-1][2]


def test_progress_true_prints(tmp_path, base, capsys, monkeypatch):
    stratann.build(base, tmp_path / "i", kind="flat", progress=True)
    assert "checking vectors" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    stratann.build(base, tmp_path / "j", kind="flat", progress=True)
    assert "checking vectors: 0 of 4000" in capsys.readouterr().err


def test_search_progress_reaches_the_end(index, base):
    calls = []
    index.search(base, k=5, progress=lambda *call: calls.append(call))
    assert calls[0] == ("search", 0, 4000, "queries") and calls[-1] == ("search", 4000, 4000, "queries")


def test_an_exception_in_the_callback_ends_the_build(tmp_path):
    base = vectors(11, 20_000, 32)

    def on_progress(stage, done, total, unit):
        if stage == "graph":
            raise ZeroDivisionError("from the callback")

    with pytest.raises(ZeroDivisionError, match="from the callback"):
        stratann.build(base, tmp_path / "i", "disk-graph", progress=on_progress)
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path / "i")


def test_ctrl_c_ends_the_build_which_can_be_resumed(tmp_path):
    base = vectors(11, 20_000, 32)
    in_graph = threading.Event()

    def press():
        in_graph.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    options = {"degree": 32, "build_list": 64, "calibration_queries": 0, "threads": 2}
    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt) as raised:
        stratann.build(
            base,
            tmp_path / "i",
            "disk-graph",
            progress=lambda stage, *_: in_graph.set() if stage == "graph" else None,
            **options,
        )
    presser.join()
    if sys.version_info >= (3, 11):  # older versions have no notes
        assert any("resume=True" in note for note in raised.value.__notes__)
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path / "i")
    resumed = stratann.build(base, tmp_path / "i", "disk-graph", resume=True, **options)
    assert "scan" not in resumed.stages and "graph" in resumed.stages
    stratann.build(base, tmp_path / "j", "disk-graph", **options)
    i, j = (stratann.open(tmp_path / name).info()["files"] for name in "ij")
    assert i == j


def test_other_threads_run_while_an_index_is_built(tmp_path):
    base = vectors(12, 6000, 32)
    beats, over = [], threading.Event()

    def beat():
        while not over.wait(0.01):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    started = time.monotonic()
    stratann.build(
        base, tmp_path / "i", "disk-graph", threads=1, calibration_queries=0, degree=32, build_list=64
    )
    ended = time.monotonic()
    over.set()
    thread.join()
    beats = [started, *(b for b in beats if started < b < ended), ended]
    # Were the GIL held, no beat would fall into the build: the longest pause would be the whole of it.
    assert max(np.diff(beats)) < (ended - started) / 2
    assert len(beats) > 10
