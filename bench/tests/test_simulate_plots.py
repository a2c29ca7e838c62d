"""Tests of the plots of simulated clusters, on made-up documents."""
import json

import simulate_plots


def run(servers, mode, qps, rate=None, hand_overs=0.0):
    return {"servers": servers, "mode": mode, "rate": rate, "qps": qps, "hand_over_share": hand_overs / 40,
            "latency_us": {"mean": 1000.0 + 10 * servers, "p50": 900.0, "p95": 2000.0, "p99": 3000.0},
            "per_query": {"code_comparisons": 5000.0 * (1 if mode == "baton" else servers), "reads": 40.0 * servers,
                          "hand_overs": hand_overs}}


def document(path, runs, width=1):
    path.write_text(json.dumps({"params": {"width": width}, "costs": None, "runs": runs}))
    return path


def peaks():
    return [run(n, "baton", 900.0 * n, hand_overs=float(n - 1)) for n in (5, 1)] + [
        run(n, "scatter-gather", 1000.0 + n) for n in (1, 5)]


def test_lines_are_by_mode_and_ascend():
    runs = [dict(r, width=1) for r in peaks()]
    found = simulate_plots.lines(runs, simulate_plots.servers, simulate_plots.peak)
    assert found == {"baton": [(1, 900.0), (5, 4500.0)], "scatter-gather": [(1, 1001.0), (5, 1005.0)]}
    runs.append(dict(run(10, "baton", 5.0, rate=5.0), width=8))
    found = simulate_plots.lines(runs, simulate_plots.servers, simulate_plots.peak)
    assert sorted(found) == ["baton, width 1", "scatter-gather, width 1"]


def test_every_plot_is_drawn_that_has_data(tmp_path, capsys):
    first = document(tmp_path / "peaks.json", peaks())
    out = tmp_path / "new" / "out"
    assert simulate_plots.main([str(first), "--out", str(out)]) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"servers-qps.png", "servers-work.png", "servers-hand-overs.png"}
    assert len(capsys.readouterr().out.splitlines()) == 3
    rates = [run(5, mode, r, rate=r) for mode in ("baton", "scatter-gather") for r in (100.0, 1000.0)]
    second = document(tmp_path / "rates.json", rates, width=8)
    assert simulate_plots.main([str(first), str(second), "--out", str(out)]) == 0
    assert "rate-latency-5.png" in {path.name for path in out.iterdir()}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in out.iterdir())


def test_what_is_no_document_is_named(tmp_path, capsys):
    for name, content in [("text.json", "no"), ("other.json", "{}"), ("list.json", "[]")]:
        (tmp_path / name).write_text(content)
        assert simulate_plots.main([str(tmp_path / name), "--out", str(tmp_path)]) == 2
        assert name in capsys.readouterr().err
    assert simulate_plots.main([str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json" in capsys.readouterr().err
