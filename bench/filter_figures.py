"""From points of the benchmark of filters to queries per second at equal recall.  Pure: no I/O, no clock.

Queries per second are those of a core: a second over the processor time of a query. On one thread that is the rate, and
other programs on the machine change it least.
"""
from statistics import median

import report
from filter_tasks import UNFILTERED, name_in

OWN = "stratann-"
SCAN = "scan-"
NUMBERS = ("recall", "qps", "cpu_us")


def kept_settings(points, targets):
    """Settings on both sides of every target on the front of recall and time, in the order of `points`; only the one
    with the best recall where none reaches any."""
    front = report.front(points)
    wanted = set()
    for target in targets:
        above = next((i for i, (recall, _) in enumerate(front) if recall >= target), None)
        if above is not None:
            wanted |= set(front[max(0, above - 1):above + 1])
    if not wanted:
        wanted = {front[-1]}
    kept = []
    for p in points:
        key = p["recall"], p["cpu_us"]
        if key in wanted:
            wanted.remove(key)
            kept.append(p["setting"])
    return kept


def middle(rounds):
    """Medians of a setting's points over the rounds."""
    return rounds[0] | {key: median(p[key] for p in rounds) for key in NUMBERS}


def qps_at(points, target):
    """Queries per second at a recall, by the time between the two settings around it; None where none reaches it."""
    cpu_us = report.at_recall(report.front(points), target) if points else None
    return None if cpu_us is None else 1e6 / cpu_us


def best(points):
    """The point with the best recall."""
    return max(points, key=lambda p: (p["recall"], -p["cpu_us"]))


def speed(document, contender, task, target):
    """Queries per second of a contender in one task; None where it does not reach the recall or was not measured."""
    entry = document["contenders"].get(contender)
    return qps_at(entry["tasks"].get(task, []), target) if entry else None


def fastest(document, names, task, target):
    """(name, QPS) of the fastest of some contenders; None where none reaches the recall."""
    speeds = [(s, n) for n in names if (s := speed(document, n, task, target)) is not None]
    return max(speeds)[::-1] if speeds else None


def own_names(document):
    return [n for n in document["contenders"] if n.startswith(OWN)]


def peer_names(document):
    """Peers that are engines: not the scans of matches."""
    return [n for n in document["contenders"] if not n.startswith((OWN, SCAN))]


def scan_names(document):
    """Scans of the matches: those of other programs, and StratANN's own exact search."""
    return [n for n in document["contenders"] if n.startswith(SCAN) or n == OWN + "flat"]


def kept_share(document, contender, target):
    """QPS with half of the rows, drawn at random, over QPS without a filter, at equal recall."""
    filtered = speed(document, contender, name_in("random", 50), target)
    free = speed(document, contender, UNFILTERED, target)
    return None if filtered is None or free is None else filtered / free


def over_peers(document, contender, task, target):
    """(ratio, the fastest peer): QPS over those of the fastest peer; None where one of the two is missing."""
    mine, peer = speed(document, contender, task, target), fastest(document, peer_names(document), task, target)
    return None if mine is None or peer is None else (mine / peer[1], peer[0])


def over_scan(document, contender, scan, task, target):
    """QPS over those of a scan of the matches; None where one of the two is missing."""
    mine, other = speed(document, contender, task, target), speed(document, scan, task, target)
    return None if mine is None or other is None else mine / other
