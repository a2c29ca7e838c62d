"""The script of the GPU kit, with a program that has a GPU on paper."""

import json
import stat
import struct

import gpu_run
import pytest

FAKE = """#!/usr/bin/env python3
import json, struct, sys, time
from pathlib import Path
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
if words[0] == "doctor":
    print(json.dumps({"gpu": {"name": "none", "missing": MISSING}}))
elif words[:2] == ["bench", "generate"]:
    folder = Path(value("-o"))
    folder.mkdir()
    (folder / "base.fbin").write_bytes(b"")
    (folder / "query.fbin").write_bytes(struct.pack("<II", 60, 2) + bytes(480))
elif words[0] == "build":
    Path(value("-o")).mkdir()
else:
    time.sleep(SLEEP)
    Path(value("--output")).write_bytes(b"same" if value("--scorer") == "cpu" else ANSWER)
    gpu = {"jobs": 3, "batches": 2, "kernel_us": 60}
    run = {"qps": 10.0, "latency_us": {"p50": 1.0, "p99": 2.0}, "scorer": {"gpu": gpu}}
    print(json.dumps({"runs": [{**run, "per_query": {"code_comparisons": 5.0, "gpu_bytes": 6.0}}]}))
"""


def program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def kit(tmp_path):
    """Runs the script with a program and a test like these; returns what it wrote, and why it failed."""

    def run(*words, missing="[]", answer='b"same"', sleep=0, test="exit 0"):
        (tmp_path / "tests").mkdir()
        program(tmp_path / "tests/scores", f"#!/bin/sh\n{test}\n")
        fake = FAKE.replace("MISSING", missing).replace("ANSWER", answer).replace("SLEEP", str(sleep))
        program(tmp_path / "stratann", fake)
        why = None
        try:
            gpu_run.main(["--kit", str(tmp_path), "--results", str(tmp_path / "results"), *words])
        except SystemExit as ended:
            why = str(ended)
        return json.loads((tmp_path / "results/gpu-run.json").read_text()), why

    return run


def outcomes(found):
    return {one["step"]: one["outcome"] for one in found["steps"]}


def test_all_steps_run_and_are_written(kit, monkeypatch):
    monkeypatch.setattr(gpu_run, "SANITIZER", "no-such-program")
    found, why = kit("--nprobe", "8,16", "--threads", "1", "--rounds", "2")
    assert why is None and found["failure"] is None
    assert [row["nprobe"] for row in found["rows"]] == [8, 16] and found["rows"][0]["rounds"] == 2
    assert (found["rows"][0]["jobs_a_batch"], found["rows"][0]["kernel_us_a_job"]) == (1.5, 20)
    steps = outcomes(found)
    assert steps["test scores"] == steps["search nprobe 8, 1 threads, cuda, round 2"] == "passed"
    assert "not installed" in steps["memcheck"]


@pytest.mark.parametrize("change, word", [
    ({"missing": '["no driver"]'}, "no driver"),
    ({"answer": 'b"other"'}, "different answers"),
    ({"test": "echo broken; exit 3"}, "status 3"),
])
def test_what_is_wrong_fails_and_is_written(kit, change, word):
    found, why = kit("--nprobe", "8", "--threads", "1", "--rounds", "1", **change)
    assert word in why and word in found["failure"] and found["rows"] == []


def test_what_does_not_fit_in_the_time_is_left_out(kit):
    found, why = kit("--minutes", "0.05", "--nprobe", "8,16,32", "--threads", "1", "--rounds", "1", sleep=0.7)
    assert why is None and len(found["rows"]) < 3
    assert any("left out" in outcome for outcome in outcomes(found).values())


def test_few_queries_are_cut_from_a_file(kit, monkeypatch, tmp_path):
    checker = tmp_path / "checker"
    program(checker, '#!/bin/sh\nshift 4\ncp "$4" "$(dirname "$0")/few"\nexec "$@"\n')
    monkeypatch.setattr(gpu_run, "SANITIZER", str(checker))
    found, why = kit("--nprobe", "8", "--threads", "1", "--rounds", "1")
    assert why is None and outcomes(found)["racecheck"] == "passed"
    few = (tmp_path / "few").read_bytes()
    assert struct.unpack("<II", few[:8]) == (50, 2) and len(few) == 8 + 50 * 8
