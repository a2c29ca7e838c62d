"""Plots of simulated clusters: `stratann simulate --json` documents, one or several, to PNG files.

    stratann simulate base.idx query.fbin --servers 1,3,5,10 --mode baton,scatter-gather --json > scaling.json
    python3 bench/simulate_plots.py scaling.json --out bench/out

`servers-qps.png` has the highest rate against the number of servers, with the line of perfect scaling;
`rate-latency-N.png` the latency on N servers against the rate at which queries come; `servers-work.png` comparisons
and reads; `servers-hand-overs.png` hand-overs.
A plot for which no run has data is left out.
"""
import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path


class InputError(ValueError):
    """A document that cannot be drawn; the message is one line and names the file."""


def read(paths):
    """All runs of the documents, each with the width of its document."""
    runs = []
    for path in paths:
        try:
            document = json.loads(Path(path).read_text())
            width = document["params"]["width"]
            runs += [dict(run, width=width) for run in document["runs"]]
        except OSError as e:
            raise InputError(f"{path}: {e.strerror}; give the output of stratann simulate --json") from e
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(f"{path}: not the output of stratann simulate --json ({e!r})") from e
    return runs


def name(run, several_widths):
    """Name of a line."""
    return f"{run['mode']}, width {run['width']}" if several_widths else run["mode"]


def lines(runs, x, y):
    """Points (x, y) by name, ascending; runs without one of both are left out."""
    several_widths = len({run["width"] for run in runs}) > 1
    points = defaultdict(list)
    for run in runs:
        at = (x(run), y(run))
        if None not in at:
            points[name(run, several_widths)].append(at)
    return {line: sorted(set(found)) for line, found in points.items()}


def peak(run):
    """The highest rate; nothing for a run with a given one."""
    return None if run["rate"] is not None else run["qps"]


def counter(key):
    """Reads a counter; runs under several loads have the same."""
    return lambda run: run["per_query"][key]


def servers(run):
    return run["servers"]


def draw(runs, folder):
    """Write the plots that `runs` have data for under `folder`; returns the paths written."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    def plot(file, panels, decorate=lambda axes, found: None):
        panels = [(lines(runs, x, y), labels) for x, y, labels in panels]
        if not any(found for found, _ in panels):
            return []
        figure, all_axes = pyplot.subplots(1, len(panels), figsize=(8 * len(panels), 5), layout="constrained",
                                           squeeze=False)
        for axes, (found, labels) in zip(all_axes[0], panels, strict=True):
            for line, points in found.items():
                style = {"linestyle": "-", "linewidth": 2} if line.startswith("baton") else {"linestyle": "--"}
                axes.plot(*zip(*points, strict=True), marker=".", label=line, **style)
            decorate(axes, found)
            axes.set(**labels)
            axes.grid(True, which="both", alpha=0.3)
            axes.legend(fontsize="small")
        path = folder / file
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        return [path]

    def perfect(axes, found):
        first = min((points[0] for line, points in found.items() if line.startswith("baton")), default=None)
        if first:
            ends = (first[0], max(points[-1][0] for points in found.values()))
            axes.plot(ends, [first[1] * x / first[0] for x in ends], color="grey", linewidth=0.8, label="perfect")

    def latency(key):
        return lambda run: run["latency_us"][key] / 1000 if run["rate"] is not None else None

    def rate(run):
        return run["rate"]

    on_servers = {"xlabel": "servers", "ylim": (0, None)}
    at_rates = {"xlabel": "queries per second that come", "yscale": "log"}
    paths = plot("servers-qps.png", [(servers, peak, on_servers | {"ylabel": "queries per second"})], perfect)
    by_rate = [run for run in runs if run["rate"] is not None]
    for count in sorted({found["servers"] for found in by_rate}):
        def of(value, count=count):
            return lambda run: value(run) if run["servers"] == count else None
        panels = [(rate, of(latency(key)), at_rates | {"ylabel": f"{what} latency, ms", "title": f"{count} servers"})
                  for key, what in (("mean", "mean"), ("p99", "99 %"))]
        paths += plot(f"rate-latency-{count}.png", panels)
    work = [(servers, counter("code_comparisons"), on_servers | {"ylabel": "comparisons of codes per query"}),
            (servers, counter("reads"), on_servers | {"ylabel": "reads per query"})]
    paths += plot("servers-work.png", work)

    def hand_overs(run):
        return run["per_query"]["hand_overs"] if run["mode"] == "baton" else None
    shares = [(servers, hand_overs, on_servers | {"ylabel": "hand-overs per query"}),
              (servers, lambda run: 100 * run["hand_over_share"] if run["mode"] == "baton" else None,
               on_servers | {"ylabel": "hand-overs, % of the hops"})]
    return paths + plot("servers-hand-overs.png", shares)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=Path, help="outputs of stratann simulate --json")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder for the plots")
    args = parser.parse_args(argv)
    try:
        runs = read(args.documents)
    except InputError as e:
        print(f"simulate_plots: {e}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    for path in draw(runs, args.out):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
