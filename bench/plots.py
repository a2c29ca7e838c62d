"""Plots of comparisons: PNG of one session for whoever measures, SVG of stored sessions for the book."""
import hashlib
import json
import re

import filter_figures
from filter_tasks import PERCENTS, PLACES, name_in

# The least recall that a plot of the book shows; below it nobody searches.
RECALL_MIN = 0.7
TITLES = {"in": "in-distribution queries", "out": "out-of-distribution queries"}


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def style(name):
    return {"linestyle": "-", "linewidth": 2} if name.startswith("stratann") else {"linestyle": "--", "linewidth": 1}


def draw(entries, target, k, folder, name):
    """Write NAME-qps.png, and NAME-reads.png where something is on disk, under `folder`; returns the paths."""
    plt = pyplot()

    def plot(end, chosen, value, label):
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        for contender, entry in chosen.items():
            points = sorted((p["recall"], p[value]) for p in entry["sweep"])
            axes.plot(*zip(*points, strict=True), marker=".", label=contender, **style(contender))
        axes.axvline(target, color="grey", linewidth=0.8)
        axes.set(xlabel=f"recall@{k}", ylabel=label, yscale="log", xlim=(min(0.8, target - 0.05), 1.002))
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize="small")
        path = folder / f"{name}-{end}.png"
        figure.savefig(path, dpi=120)
        plt.close(figure)
        return path

    paths = [plot("qps", entries, "qps", "queries per second")]
    on_disk = {n: e for n, e in entries.items() if e["storage"] == "disk"}
    if on_disk:
        paths.append(plot("reads", on_disk, "pages_read", "4 KiB pages read per query"))
    return paths


def digest(sessions):
    """Identity of what a plot shows: stands in the plot, so that a test sees whether it is of these results."""
    return hashlib.sha256(json.dumps(sessions, sort_keys=True).encode()).hexdigest()[:16]


def front(points):
    """(recalls, QPS) of the settings that none beats in both."""
    kept = []
    for p in sorted(points, key=lambda p: (-p["recall"], -p["qps"])):
        if not kept or p["qps"] > kept[-1][1]:
            kept.append((p["recall"], p["qps"]))
    return zip(*kept, strict=True)


def draw_svg(sessions, path):
    """Recall against QPS in memory, a panel for each distribution of queries: {"in": session, "out": session}.

    Equal sessions give an equal file: no date, no random ids, and text is left to the viewer's fonts.
    """
    plt = pyplot()
    look = {"svg.hashsalt": "stratann", "svg.fonttype": "none", "font.size": 8, "path.simplify": True}
    with plt.rc_context(look):
        figure, panels = plt.subplots(1, len(sessions), figsize=(4.6 * len(sessions), 4.6), sharey=True, squeeze=False,
                                      layout="constrained")
        names = sorted({n for s in sessions.values() for n, e in s["contenders"].items() if e["storage"] == "memory"})
        shown = [n for n in names if not n.endswith("-again")]
        palette = plt.get_cmap("tab20").colors
        for axes, (kind, document) in zip(panels[0], sessions.items(), strict=True):
            for i, name in enumerate(shown):
                entry = document["contenders"].get(name)
                if entry is not None:
                    axes.plot(*front(entry["points"]), marker=".", markersize=4, label=name,
                              color=palette[i % len(palette)], **style(name))
            axes.set(xlabel=f"recall@{document['k']}", yscale="log", xlim=(RECALL_MIN, 1.003), title=TITLES[kind])
            axes.grid(True, alpha=0.3, linewidth=0.4)
        panels[0][0].set_ylabel(f"queries per second, threads: {document['threads']}")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": digest(sessions)})
        plt.close(figure)
    return shortened(path)


def shortened(path):
    """The file with hundredths of a point: enough to see, and half of the bytes."""
    path.write_text(re.sub(r"(\d+\.\d\d)\d+", r"\1", path.read_text()))
    return path


def filter_curve(document, name, place, target):
    """(percents, QPS) of the filters of a place at which a contender reaches a recall."""
    speeds = [(p, filter_figures.speed(document, name, name_in(place, p), target)) for p in PERCENTS]
    reached = [(p, qps) for p, qps in speeds if qps is not None]
    return zip(*reached, strict=True) if reached else ((), ())


def draw_filters(document, path):
    """Share of the rows against QPS at the highest recall, a panel for each place; equal results give an equal file."""
    plt, target = pyplot(), max(document["recalls"])
    look = {"svg.hashsalt": "stratann", "svg.fonttype": "none", "font.size": 8, "path.simplify": True}
    with plt.rc_context(look):
        figure, panels = plt.subplots(1, len(PLACES), figsize=(3.6 * len(PLACES), 4.6), sharey=True,
                                      layout="constrained")
        palette = plt.get_cmap("tab20").colors
        for axes, place in zip(panels, PLACES, strict=True):
            for i, name in enumerate(document["contenders"]):
                axes.plot(*filter_curve(document, name, place, target), marker=".", markersize=4, label=name,
                          color=palette[i % len(palette)], **style(name))
            axes.set(xlabel="rows that match, %", xscale="log", yscale="log", title=place)
            axes.grid(True, alpha=0.3, linewidth=0.4)
        panels[0].set_ylabel(f"queries per second of a core at a recall of {target}")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": digest(document)})
        plt.close(figure)
    return shortened(path)


def draw_databases(document, path):
    """Recall against QPS, one query at a time, a panel for each filter; equal results give an equal file."""
    plt, tasks = pyplot(), document["tasks"]
    look = {"svg.hashsalt": "stratann", "svg.fonttype": "none", "font.size": 8, "path.simplify": True}
    with plt.rc_context(look):
        figure, panels = plt.subplots(1, len(tasks), figsize=(3 * len(tasks), 4.6), sharey=True, squeeze=False,
                                      layout="constrained")
        palette = plt.get_cmap("tab10").colors
        for axes, (task, facts) in zip(panels[0], tasks.items(), strict=True):
            for i, (name, entry) in enumerate(document["contenders"].items()):
                points = [p | {"qps": 1e6 / p["cpu_us"]} for p in entry["tasks"].get(task, {}).get("curve", [])]
                line = front(points) if points else ((), ())
                axes.plot(*line, marker=".", markersize=4, label=name, color=palette[i % len(palette)], **style(name))
            title = "no filter" if facts["percent"] == 100 else f"{facts['percent']:g} % of the rows"
            axes.set(xlabel=f"recall@{document['k']}", yscale="log", xlim=(RECALL_MIN, 1.003), title=title)
            axes.grid(True, alpha=0.3, linewidth=0.4)
        panels[0][0].set_ylabel("queries per second of a core, one at a time")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": digest(document)})
        plt.close(figure)
    return shortened(path)
