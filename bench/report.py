"""From measurements to the choice of settings, the ratios and the printed tables.  Pure: no I/O, no clock."""
import math
from itertools import pairwise
from statistics import median

from roster import TWINS

NUMBERS = ("recall", "qps", "cpu_us", "reads", "pages_read", "peak_rss_bytes", "baseline_rss_bytes",
           "kernel_pages_read")
PERCENTILES = ("mean", "p50", "p95", "p99")
MB = 1e6
# Fewer pages than this per query is noise of the counter, and a ratio of it would say nothing.
NO_READS = 0.01
# StratANN's contenders that are set against peers one by one.
COMPARED = (TWINS[0], "stratann-from-disk", "stratann-from-disk-one-in-flight")
# A share of misses below this is none; it keeps logarithms finite.
MISS_MIN = 1e-5


def summarise(runs):
    """Medians over the rounds of one setting; counters of the first round are kept where they are not numbers."""
    out = {"setting": runs[0]["setting"], "rounds": len(runs)}
    for key in NUMBERS:
        values = [r[key] for r in runs if r.get(key) is not None]
        out[key] = median(values) if values else None
    latencies = [r["latency_us"] for r in runs if r.get("latency_us")]
    out["latency_us"] = {p: median(v[p] for v in latencies) for p in PERCENTILES} if latencies else None
    out["latency_kind"] = runs[0].get("latency_kind")
    return out


def cost(point, storage):
    """Cost of a setting: pages read on disk, CPU time in memory.  Both survive a noisy machine."""
    return (point["pages_read"], point["cpu_us"]) if storage == "disk" else (point["cpu_us"],)


def cheapest(points, target, storage):
    """(point, reached): the cheapest setting with recall >= target, else the one with the best recall."""
    good = [p for p in points if p["recall"] >= target]
    if good:
        return min(good, key=lambda p: cost(p, storage)), True
    return max(points, key=lambda p: p["recall"]), False


def between(points, target):
    """The setting halfway between the two around the target recall, in whole fives.

    None when they differ by no more, in several numbers, or when the target lies outside."""
    line = sorted(points, key=lambda p: p["recall"])
    for low, high in pairwise(line):
        if low["recall"] < target <= high["recall"]:
            keys = [k for k in high["setting"] if high["setting"][k] != low["setting"].get(k)]
            if len(keys) != 1 or low["setting"].keys() != high["setting"].keys():
                return None
            a, b = low["setting"][keys[0]], high["setting"][keys[0]]
            middle = 5 * round((a + b) / 10)
            return high["setting"] | {keys[0]: middle} if min(a, b) < middle < max(a, b) else None
    return None


def pages_at(points, target):
    """Pages per query interpolated linearly between the two settings around the target recall; None outside."""
    line = sorted((p["recall"], p["pages_read"]) for p in points)
    for (r0, p0), (r1, p1) in pairwise(line):
        if r0 <= target <= r1 and r1 > r0:
            return p0 + (p1 - p0) * (target - r0) / (r1 - r0)
    return None


def front(points, value="cpu_us"):
    """[(recall, value)] of the settings that none beats in both, in ascending order of recall."""
    kept = []
    for p in sorted(points, key=lambda p: (-p["recall"], p[value])):
        if not kept or p[value] < kept[-1][1]:
            kept.append((p["recall"], p[value]))
    return kept[::-1]


def at_recall(curve, target):
    """The value at a recall, between the two nearest points of a front; None where none reaches it.

    Misses shrink evenly from one setting to the next, so their logarithm is interpolated. Where even the least effort
    reaches the recall, its value stands.
    """
    before = None
    for reached, value in curve:
        if reached >= target:
            if before is None:
                return value
            low, high = (math.log(max(1 - r, MISS_MIN)) for r in (before[0], reached))
            share = (low - math.log(max(1 - target, MISS_MIN))) / (low - high) if low > high else 1.0
            return before[1] + min(1.0, share) * (value - before[1])
        before = (reached, value)
    return None


def noise(entries):
    """How far two runs of the same search differ, setting by setting: the greatest and the median difference of
    processor time and of QPS, as shares. None where the pair did not run."""
    if not all(name in entries for name in TWINS):
        return None
    sweeps = [{str(p["setting"]): p for p in entries[name]["sweep"]} for name in TWINS]
    out = {"pair": list(TWINS)}
    for key in ("cpu_us", "qps"):
        apart = [abs(sweeps[0][s][key] / sweeps[1][s][key] - 1) for s in sweeps[0] if s in sweeps[1]]
        out[key] = {"max": round(max(apart), 4), "median": round(median(apart), 4)}
    return out


def noise_text(noise):
    if noise is None:
        return "noise: unknown, for the same search did not run under two names"
    cpu, qps = noise["cpu_us"], noise["qps"]
    return (f"noise: the same search under two names ({' and '.join(noise['pair'])}) differed by up to "
            f"{100 * cpu['max']:.0f} % in processor time (median {100 * cpu['median']:.0f} %) and by up to "
            f"{100 * qps['max']:.0f} % in QPS (median {100 * qps['median']:.0f} %)")


def net_rss(point):
    """Peak memory above what the process held before the index was loaded, in bytes."""
    return max(0, point["peak_rss_bytes"] - point["baseline_rss_bytes"])


def disk_share(point, iops):
    """QPS as a share of the most the disk could serve at this many reads per query; None where nothing is read."""
    if iops is None or point["reads"] is None or point["reads"] < NO_READS:
        return None
    return point["qps"] / (iops / point["reads"])


def _ratio(a, b):
    return None if a is None or b is None or b <= 0 else a / b


def ratios(mine, peer):
    """StratANN / peer.  Above one is better for QPS; below one is better for all else."""
    a, b = mine["chosen"], peer["chosen"]
    both_read = min(a["pages_read"], b["pages_read"]) >= NO_READS
    return {
        "qps": _ratio(a["qps"], b["qps"]),
        "pages": _ratio(a["pages_read"], b["pages_read"]) if both_read else None,
        "pages_at_recall": _ratio(mine["pages_at_recall"], peer["pages_at_recall"]) if both_read else None,
        "cpu": _ratio(a["cpu_us"], b["cpu_us"]),
        "cpu_at_recall": _ratio(mine["cpu_at_recall"], peer["cpu_at_recall"]),
        "rss": _ratio(net_rss(a), net_rss(b)),
        "build": _ratio(mine["build"]["seconds"], peer["build"]["seconds"]),
    }


def ratio_rows(entries, hnsw_names):
    """Ratios that mean something: with peers whose vectors are in the same place; the fastest HNSW is marked."""
    mine = {n: e for n, e in entries.items() if n in COMPARED}
    peers = {n: e for n, e in entries.items() if not n.startswith("stratann")}
    hnsw = {n: e for n, e in peers.items() if n in hnsw_names}
    reaching = [n for n in hnsw if hnsw[n]["reached"]] or list(hnsw)
    best = max(reaching, key=lambda n: hnsw[n]["chosen"]["qps"], default=None)
    rows = []
    for name, entry in mine.items():
        for peer, other in peers.items():
            if entry["storage"] == other["storage"]:
                valid = entry["reached"] and other["reached"]
                rows.append({"stratann": name, "peer": peer, "best_hnsw": peer == best, "both_reach_target": valid,
                             **ratios(entry, other)})
    return rows


def _cell(value, digits=0):
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def table(header, rows):
    """Plain aligned text; the first column to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[c]) for line in lines) for c in range(len(header))]
    return "\n".join("  ".join(cell.ljust(w) if c == 0 else cell.rjust(w)
                               for c, (cell, w) in enumerate(zip(line, widths, strict=True))) for line in lines)


def setting_text(setting):
    return " ".join(f"{k}={v}" for k, v in setting.items())


def main_table(entries, iops):
    header = ["contender", "in", "setting", "recall", "QPS", "mean us", "p50", "p95", "p99", "CPU us",
              "CPU@target", "pages", "pages@target", "disk share", "net RSS MB", "peak RSS MB", "build s",
              "build RSS MB", "index MB"]
    rows = []
    for name, e in entries.items():
        c, b = e["chosen"], e["build"]
        latency = c["latency_us"] or dict.fromkeys(PERCENTILES)
        share = disk_share(c, iops)
        rows.append([
            name if e["reached"] else name + " (below target)", e["storage"], setting_text(c["setting"]),
            _cell(c["recall"], 4), _cell(c["qps"]), *(_cell(latency[p]) for p in PERCENTILES),
            _cell(c["cpu_us"], 1), _cell(e["cpu_at_recall"], 1), _cell(c["pages_read"], 1),
            _cell(e["pages_at_recall"], 1), "-" if share is None else f"{100 * share:.0f} %",
            _cell(net_rss(c) / MB), _cell(c["peak_rss_bytes"] / MB),
            _cell(b["seconds"], 1), _cell(max(0, b["peak_rss_bytes"] - b["baseline_rss_bytes"]) / MB),
            _cell(b["index_bytes"] / MB, 1)])
    return table(header, rows)


def ratio_table(rows):
    header = ["StratANN / peer", "QPS", "pages", "pages@target", "CPU", "CPU@target", "net RSS", "build s"]
    keys = ("qps", "pages", "pages_at_recall", "cpu", "cpu_at_recall", "rss", "build")
    body = []
    for r in rows:
        marks = (" (best HNSW)" if r["best_hnsw"] else "") + ("" if r["both_reach_target"] else " (recall differs)")
        body.append([f"{r['stratann']} / {r['peer']}{marks}", *(_cell(r[k], 2) for k in keys)])
    return table(header, body)
