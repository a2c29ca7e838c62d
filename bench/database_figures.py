"""From the results of the benchmark of databases to rates, sizes and ratios.  Pure: no I/O, no clock."""
import filter_figures as figures
from database_roster import OWN
from database_rows import UNFILTERED

MB = 1e6
MODES = ("one", "batch")


def speed(entry, task, target, mode="one"):
    """Queries per second of a core at a recall; None where it is not reached or not offered."""
    found = entry["tasks"].get(task, {}).get(mode)
    return figures.qps_at(found, target) if found else None


def best(entry, task):
    """The point of the curve with the best recall; None without a curve."""
    found = entry["tasks"].get(task)
    return figures.best(found["curve"]) if found and found["curve"] else None


def cheapest(points, target):
    """The point that takes the least processor time of those that reach a recall; None where none does."""
    good = [p for p in points if p["recall"] >= target]
    return min(good, key=lambda p: p["cpu_us"]) if good else None


def written_per_second(entry):
    """Points a second while they are written, one batch after another."""
    return rate(entry["load"]["rows"], entry["load"]["seconds"])


def ready_per_second(entry, key="seconds"):
    """Points a second until all indexes are built, by the clock or by processor time."""
    return rate(entry["load"]["rows"], entry["load"][key] + entry["ready"][key])


def rate(rows, seconds):
    return rows / seconds if seconds > 0 else None


def used_bytes(entry):
    """Memory while searching above what the process had before it opened the database."""
    return max(0, entry["searching_rss_bytes"] - (entry["opened"]["baseline_rss_bytes"] or 0))


def recall_later(entry, task, target):
    """(recall before, recall after) the changes, of the least effort that reached a recall before; None where there is
    none, or where it was not tried again."""
    before = cheapest(entry["tasks"].get(task, {}).get("curve", []), target)
    if before is None:
        return None
    after = next((p for p in entry["later"].get(task, {}).get("curve", []) if p["setting"] == before["setting"]), None)
    return None if after is None else (before["recall"], after["recall"])


def speed_later(entry, task, target):
    """Queries per second of a core at a recall after the changes."""
    found = entry["later"].get(task)
    return figures.qps_at(found["curve"], target) if found else None


def own_names(document):
    return [name for name in document["contenders"] if name == OWN or name.startswith(f"{OWN}-")]


def peer_names(document):
    return [name for name in document["contenders"] if name not in own_names(document)]


def measures(document, target):
    """[(what is compared, whether more is better, its value for an entry)]."""
    found = [("points written a second", True, written_per_second),
             ("points a second until ready", True, ready_per_second)]
    for mode, said in (("one", "queries"), ("batch", "queries in batches")):
        for task, facts in document["tasks"].items():
            name = "no filter" if task == UNFILTERED else f"{facts['percent']:g} %"
            found.append((f"{said}, {name}", True,
                          lambda entry, task=task, mode=mode: speed(entry, task, target, mode)))
    return [*found, ("memory while searching", False, used_bytes),
            ("time to open", False, lambda entry: entry["open"]["seconds"]),
            ("disk", False, lambda entry: entry["loaded"]["disk_bytes"]),
            ("disk after the changes", False, lambda entry: entry["compacted"]["disk_bytes"])]


def ratios(document, target):
    """[(what, whether more is better, {peer: StratANN's value over the peer's})]; None where one of both is missing."""
    mine = document["contenders"].get(OWN)
    if mine is None:
        return []
    out = []
    for what, is_more, value in measures(document, target):
        own, over = value(mine), {}
        for peer in peer_names(document):
            other = value(document["contenders"][peer])
            over[peer] = own / other if own is not None and other else None
        if any(v is not None for v in over.values()):
            out.append((what, is_more, over))
    return out
