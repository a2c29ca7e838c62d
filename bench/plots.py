"""PNG plots of a comparison: recall against QPS, and recall against pages read."""


def draw(entries, target, k, folder):
    """Write recall-qps.png and recall-reads.png under `folder`; returns the paths written."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    def plot(name, chosen, value, label):
        figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
        for contender, entry in chosen.items():
            points = sorted((p["recall"], p[value]) for p in entry["sweep"])
            style = {"linestyle": "-", "linewidth": 2} if contender.startswith("stratann") else {"linestyle": "--"}
            axes.plot(*zip(*points, strict=True), marker=".", label=contender, **style)
        axes.axvline(target, color="grey", linewidth=0.8)
        axes.set(xlabel=f"recall@{k}", ylabel=label, yscale="log", xlim=(min(0.8, target - 0.05), 1.002))
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize="small")
        path = folder / name
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        return path

    paths = [plot("recall-qps.png", entries, "qps", "queries per second")]
    on_disk = {n: e for n, e in entries.items() if e["storage"] == "disk"}
    if on_disk:
        paths.append(plot("recall-reads.png", on_disk, "pages_read", "4 KiB pages read per query"))
    return paths
