"""What the book and the README say of peers is what the program writes from stored results, and nothing else."""
import json

import database_pages
import filter_pages
import pages
import plots
import pytest
import report
import stored


def session(distribution="in", threads=1, hnsw=100.0):
    """A session of three contenders, two settings each."""
    def entry(cpu, **fields):
        points = [{"setting": {"ef": ef}, "recall": recall, "qps": 1e6 / us, "cpu_us": us, "p50_us": us,
                   "p99_us": 2 * us, "pages_read": 0.0, "net_rss_bytes": 5e7, "cpu_us_of_rounds": [us]}
                  for ef, recall, us in ((10, 0.9, cpu), (20, 0.999, 2 * cpu))]
        return {"storage": "memory", "version": "1.2", "options": {"M": 16}, "points": points,
                "build": {"seconds": 2.0, "cpu_seconds": 3.0, "index_bytes": 10}} | fields

    contenders = {"stratann-disk-graph": entry(20.0), "hnswlib-16": entry(hnsw), "symphonyqg": entry(10.0),
                  "diskann": entry(500.0, storage="disk")}
    return {"date": "2026-01-02", "stratann": "0.1.0", "isa_asked": None, "threads": threads, "rounds": 3, "k": 10,
            "target": 0.95, "machine": {"cpu": "Some CPU", "isa": ["avx2"], "cores": 4, "other_cores": 0.5},
            "data": {"name": "set", "n": 1000, "dim": 8, "dtype": "float32", "metric": "l2", "queries": 50,
                     "distribution": distribution, "made": None if distribution == "in" else "moved"},
            "noise": {"pair": ["a", "b"], "cpu_us": {"max": 0.07, "median": 0.01},
                      "qps": {"max": 0.08, "median": 0.02}},
            "disk": {}, "contenders": contenders, "skipped": {"usearch": "its package is missing"}}


def test_the_pages_are_as_the_program_writes_them():
    others = [stored.read(prefix=prefix) for prefix in (stored.FILTERS_PREFIX, stored.DATABASES_PREFIX)]
    for path, (is_now, should_be) in pages.pages(stored.read(), *others).items():
        assert is_now == should_be, f"{path}: run make bench-report; its blocks are not written by hand"


def test_the_plots_are_of_the_stored_results():
    for name, group in pages.groups(stored.read()).items():
        text = pages.plot_of(name).read_text()
        assert plots.digest(pages.alone(group)) in text, f"{name}: run make bench-report"
    for prefix, plot_of in ((stored.FILTERS_PREFIX, filter_pages.plot_of),
                            (stored.DATABASES_PREFIX, database_pages.plot_of)):
        for name, document in stored.read(prefix=prefix).items():
            assert plots.digest(document) in plot_of(document).read_text(), f"{name}: run make bench-report"


def test_stored_results_name_no_folder_of_the_machine_that_measured():
    for name, document in (stored.read() | stored.read(prefix=stored.FILTERS_PREFIX)
                           | stored.read(prefix=stored.DATABASES_PREFIX)).items():
        text = json.dumps(document)
        assert "/home" not in text and "/work" not in text and "/tmp" not in text, name
        assert document["machine"]["cpu"] and document["date"] and document["stratann"], name


def test_tables_have_a_line_for_each_contender_in_its_place():
    group = pages.groups({"a": session(), "b": session("out"), "c": session(threads=4)})["set"]
    memory = pages.memory_table(group).splitlines()
    assert len({line.count("|") for line in memory}) == 1
    assert [line.split("`")[1] for line in memory[2:]] == ["stratann-disk-graph", "hnswlib-16", "symphonyqg"]
    assert "QPS at 0.95 | 4 threads" in memory[0] and "OOD 0.99" in memory[0]
    assert memory[3].split(" | ")[1] == "100" and "`diskann`" in pages.disk_table(group)
    block = pages.in_memory({"a": session()})
    for said in ("2026-01-02", "Some CPU", "avx2", "took 0.5", "up to 7 %", "hnswlib 1.2", "its package is missing"):
        assert said in block.replace("\n", " "), said


def test_the_sentence_gives_ratios_of_processor_time():
    text = pages.speed({"a": session(), "b": session(hnsw=40.0) | {"isa_asked": "avx2"}}).replace("\n", " ")
    assert "0.20 times that of hnswlib and 2.00 times that of SymphonyQG" in text
    assert "0.5;" in text and "7 %" in text
    two = session(hnsw=40.0)
    two["data"]["name"] = "other"
    assert "0.20 to 0.50 times that of hnswlib" in pages.speed({"a": session(), "b": two}).replace("\n", " ")
    assert pages.speed({}) == "Sets that fit in RAM are searched there."


def test_the_sentence_about_disks_has_sets_with_both_programs():
    assert pages.disk({"a": session()}) == "Vectors that do not fit in memory stay on disk."
    both = session()
    from_disk = json.loads(json.dumps(both["contenders"]["diskann"]))
    for point in from_disk["points"]:
        point.update(cpu_us=point["cpu_us"] / 4, qps=point["qps"] * 8, pages_read=10.0)
    for point in both["contenders"]["diskann"]["points"]:
        point["pages_read"] = 40.0
    both["contenders"]["stratann-from-disk"] = from_disk
    text = pages.disk({"a": both, "b": both | {"threads": 4}}).replace("\n", " ")
    assert "0.25 times as many pages" in text and "0.25 times the processor" in text and "8.00 times as many" in text
    assert "at a recall of 0.95" in text and "1,000 x 8 float32; 2026-01-02" in text


def test_sessions_with_fewer_instructions_have_a_table_of_their_own():
    narrow = session(hnsw=40.0) | {"isa_asked": "avx2", "date": "2026-01-03"}
    block = pages.in_memory({"a": session(), "b": narrow}).replace("\n", " ")
    assert block.count("AVX2 alone") == 1 and "2026-01-03" in block and "| `hnswlib-16` | 40.0 |" in block
    assert "AVX2" not in pages.in_memory({"a": session()})


def test_blocks_stand_between_their_marks(tmp_path):
    page = "a\n<!-- bench:speed -->\nold\n<!-- /bench -->\nb <!-- bench:x -->\n<!-- /bench -->\n"
    assert pages.with_block(page, "speed", "new", tmp_path) == page.replace("old", "new")
    with pytest.raises(pages.PageError, match="bench:absent"):
        pages.with_block(page, "absent", "new", tmp_path)


def test_a_stored_session_is_read_as_it_was_measured(tmp_path):
    sweep = [{"setting": {"ef": 10}, "recall": 0.91234567, "qps": 123.456789, "cpu_us": 9.87654321, "pages_read": 0.0,
              "latency_us": {"p50": 1.0, "p99": 2.0}, "peak_rss_bytes": 30, "baseline_rss_bytes": 10}]
    entry = {"storage": "memory", "version": "1", "options": {}, "sweep": sweep, "rounds": [[{"cpu_us": 9.0}]],
             "build": {"seconds": 1.0, "cpu_seconds": 2.0, "index_bytes": 3}}
    results = session() | {"contenders": {"hnswlib-16": entry}, "skipped": {"x": f"no program at {tmp_path}/bin/x"}}
    stored.write(tmp_path / "compare-a.json", results, [tmp_path])
    (document,) = stored.read(tmp_path).values()
    (kept,) = document["contenders"]["hnswlib-16"]["points"]
    assert (kept["recall"], kept["qps"], kept["net_rss_bytes"], kept["p99_us"]) == (0.91235, 123.46, 20, 2.0)
    assert document["skipped"] == {"x": "no program at bin/x"}
    assert stored.name_of(results) == "compare-set-in-1t"
    assert stored.name_of(results | {"isa_asked": "avx2"}) == "compare-set-in-1t-avx2"


def test_equal_sessions_give_an_equal_plot(tmp_path):
    pytest.importorskip("matplotlib")
    sessions = {"in": session(), "out": session("out")}
    first, second = (plots.draw_svg(sessions, tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and len(first) < 100_000
    assert plots.digest(sessions).encode() in first
    assert report.at_recall(report.front(session()["contenders"]["hnswlib-16"]["points"]), 0.9) == 100.0
