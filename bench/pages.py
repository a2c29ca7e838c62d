#!/usr/bin/env python3
"""Write what the book and the README say of peers, from the results that `compare.py`, `filters.py` and `databases.py`
left in bench/results with `--store`.

    bench/pages.py             # rewrite the marked blocks, and the plots beside the book
    bench/pages.py --check     # change nothing; exit code 1 where a block differs

A block stands between `<!-- bench:NAME -->` and `<!-- /bench -->`. Nothing in it is written by hand.
"""
import argparse
import re
import sys
from pathlib import Path

import database_pages
import filter_pages
import plots
import report
import roster
import stored
from markdown import table, wrapped

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs" / "book"
PAGES = {"in-memory": BOOK / "measurements.md", "disk": ROOT / "README.md", "speed": ROOT / "README.md",
         "filters": filter_pages.PAGE, "databases": database_pages.PAGE}
END = "<!-- /bench -->"
OWN = roster.TWINS[0]
OWN_FROM_DISK = "stratann-from-disk"
DISK_PEER = "diskann"
RECALLS = (0.9, 0.95, 0.99)
SAID_RECALLS = (0.95, 0.99)
# Peers of the README's sentence; of a family the fastest at that recall counts.
SAID = {"hnswlib": "hnswlib", "SVS": "svs", "SymphonyQG": "symphonyqg", "faiss": "faiss-ivf"}
MB = 1e6
NONE = "-"
# Options that say what the line above them says.
COMMON = re.compile(r" ?--(metric|seed|cache-budget) [^\s,]+")


class PageError(Exception):
    """A page without its markers; the message is one line and says what to do."""


def groups(sessions):
    """{set: {(distribution, threads): session}} of the sessions with all instructions of their processor."""
    out = {}
    for document in sessions.values():
        if document["isa_asked"] is None:
            key = document["data"]["distribution"], document["threads"]
            out.setdefault(document["data"]["name"], {})[key] = document
    return {name: group for name, group in out.items() if any(threads == 1 for _, threads in group)}


def alone(group):
    """Sessions of one thread by their distribution, the set's own first."""
    return {kind: group[kind, 1] for kind in ("in", "out") if (kind, 1) in group}


def cost_at(session, name, recall, value="cpu_us"):
    """Microseconds at a recall; None where the contender does not reach it or did not take part."""
    entry = session["contenders"].get(name) if session else None
    return report.at_recall(report.front(entry["points"], value), recall) if entry else None


def number(value):
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cells_of_costs(session, name):
    return [number(cost_at(session, name, recall)) for recall in RECALLS]


def qps(session, name, target):
    cheap, reached = cheapest(session, name, target)
    return number(cheap["qps"]) if reached else NONE


def cheapest(session, name, target):
    entry = session["contenders"].get(name) if session else None
    return report.cheapest(entry["points"], target, entry["storage"]) if entry else (None, False)


def memory_table(group):
    """One line for each contender in memory, one thread, queries of both distributions."""
    sessions = alone(group)
    own, outside = sessions.get("in"), sessions.get("out")
    most = max((threads for kind, threads in group if kind == "in"), default=1)
    target = next(iter(sessions.values()))["target"]
    names = [n for s in sessions.values() for n, e in s["contenders"].items() if e["storage"] == "memory"]
    rows = []
    for name in dict.fromkeys(n for n in names if n != roster.TWINS[1]):
        entry = next(s["contenders"][name] for s in sessions.values() if name in s["contenders"])
        cheap, reached = cheapest(own, name, target)
        row = [f"`{name}`", *cells_of_costs(own, name), *cells_of_costs(outside, name), qps(own, name, target)]
        row += [qps(group.get(("in", most)), name, target)] if most > 1 else []
        row += [f"{number(cheap['p50_us'])}, {number(cheap['p99_us'])}" if reached and cheap["p50_us"] else NONE,
                number(cheap["net_rss_bytes"] / MB) if reached else NONE, number(entry["build"]["cpu_seconds"])]
        rows.append(row)
    threads = [f"{most} threads"] if most > 1 else []
    header = ["recall", *map(str, RECALLS), *(f"OOD {r}" for r in RECALLS), f"QPS at {target}", *threads,
              "p50, p99 alone", "RAM, MB", "build, s"]
    return table(header, rows)


def disk_table(group):
    """Contenders whose vectors stay on disk; empty where there is none."""
    session = alone(group).get("in")
    rows = []
    for name, entry in session["contenders"].items() if session else ():
        if entry["storage"] == "disk":
            rows.append([f"`{name}`", *(number(cost_at(session, name, r, "pages_read")) for r in RECALLS),
                         *cells_of_costs(session, name), qps(session, name, session["target"]),
                         number(entry["build"]["cpu_seconds"])])
    header = ["from disk", *(f"pages at {r}" for r in RECALLS), *(f"µs at {r}" for r in RECALLS),
              f"QPS at {session['target']}" if session else "", "build, s"]
    return "\n\n" + table(header, rows) if rows else ""


def narrow_table(name, sessions):
    """Contenders of a set while StratANN has fewer instructions than its processor; empty where not measured."""
    parts = []
    for session in sessions.values():
        if session["isa_asked"] and session["data"]["name"] == name and session["threads"] == 1:
            rows = [[f"`{n}`", *cells_of_costs(session, n)] for n in session["contenders"] if n != roster.TWINS[1]]
            noise = session["noise"]
            known = f"the same search under two names {apart(noise)}" if noise else "noise unknown"
            start = (f"StratANN with {session['isa_asked'].upper()} alone, the others with all instructions, "
                     f"{session['date']}; {known}:")
            parts.append(f"\n\n{wrapped(start)}\n\n" + table(["recall", *map(str, RECALLS)], rows))
    return "".join(parts)


def conditions(name, group):
    """Set, date, processor, load, noise and versions of the sessions of one thread."""
    sessions = alone(group)
    first = next(iter(sessions.values()))
    data, machine = first["data"], first["machine"]
    dates = sorted({s["date"] for s in sessions.values()})
    loads = sorted(s["machine"]["other_cores"] for s in sessions.values())
    taken = f"{loads[0]}" if loads[0] == loads[-1] else f"{loads[0]} to {loads[-1]}"
    rounds = dict.fromkeys(s["rounds"] for s in sessions.values())
    isa = ", ".join(machine["isa"]) or "no vector instructions that count"
    versions = {}
    for s in sessions.values():
        for contender, entry in s["contenders"].items():
            if entry["version"]:
                versions[contender.split("-")[0]] = entry["version"]
    peers = ", ".join(f"{peer} {version}" for peer, version in versions.items())
    shape = f"{data['n']:,} x {data['dim']} {data['dtype']}, {data['metric']}, {data['queries']:,} queries"
    texts = [f"**{name}**: {shape}; measured {' and '.join(dates)} with StratANN {first['stratann']}, {peers}; "
             f"{machine['cpu']} ({isa}), {machine['cores']} cores, of which other programs took {taken} meanwhile; "
             f"rounds: {' and '.join(map(str, rounds))}."]
    for kind, s in sessions.items():
        start = "The same search under two names" if s is first else f"With {plots.TITLES[kind]} it"
        texts.append(f"{start} {apart(s['noise'])}." if s["noise"] else f"{plots.TITLES[kind]}: noise unknown.")
    made = sessions.get("out", {}).get("data", {}).get("made")
    if made:
        texts.append(f"Out-of-distribution (OOD) queries: {made}.")
    return wrapped(" ".join(texts))


def apart(noise):
    cpu, qps = noise["cpu_us"], noise["qps"]
    return (f"differed by up to {100 * cpu['max']:.0f} % in processor time (median {100 * cpu['median']:.0f} %) and by "
            f"up to {100 * qps['max']:.0f} % in queries per second (median {100 * qps['median']:.0f} %)")


def options(sessions):
    """How each contender was built and searched, of all sets, and who was left out of which."""
    listed, skipped = {}, {}
    for name, group in groups(sessions).items():
        for s in alone(group).values():
            for contender, entry in s["contenders"].items():
                how = ", ".join(f"{k} {v}" for k, v in entry["options"].items())
                listed.setdefault(contender, {})[COMMON.sub("", how)] = None
            for contender, why in s["skipped"].items():
                skipped[f"`{contender}` on {name}: {why}"] = None
    text = [f"- `{name}`: {'; or '.join(hows)}" for name, hows in listed.items() if name != roster.TWINS[1]]
    return "\n".join(text + [f"- not measured: {line}" for line in skipped])


def plot_of(name):
    return BOOK / f"recall-qps-{name}.svg"


def in_memory(sessions):
    """The book's block: for each set its conditions, curves and tables."""
    parts = []
    for name, group in groups(sessions).items():
        parts.append(f"{conditions(name, group)}\n\n"
                     f"![Recall and queries per second of {name}]({plot_of(name).name})\n\n"
                     f"{memory_table(group)}{disk_table(group)}{narrow_table(name, sessions)}")
    if not parts:
        return "Nothing is stored yet."
    return "\n\n".join([*parts, "How they were built and searched:", options(sessions)])


def members(session, family):
    """Names of a family's contenders in a session."""
    return [n for n in session["contenders"] if n == family or n.startswith(family + "-")] if session else []


def ratios(sessions, family):
    """Processor time of StratANN / that of the fastest of a family, for each set and recall that both reach."""
    out = []
    for group in groups(sessions).values():
        session = alone(group).get("in")
        for recall in SAID_RECALLS:
            mine = cost_at(session, OWN, recall)
            others = [c for n in members(session, family) if (c := cost_at(session, n, recall)) is not None]
            if mine is not None and others:
                out.append(mine / min(others))
    return out


def speed(sessions):
    """The README's block: one sentence."""
    said = []
    chosen = [alone(g)["in"] for g in groups(sessions).values() if "in" in alone(g)]
    for label, family in SAID.items():
        found = ratios(sessions, family)
        if found:
            took_part = [s for s in chosen if members(s, family)]
            where = "" if len(took_part) == len(chosen) else f" on {len(took_part)} of {len(chosen)} sets"
            said.append(f"{span(found)} times that of {label}{where}")
    if not said:
        return "Sets that fit in RAM are searched there."
    sets = ", ".join(f"{d['n']:,} x {d['dim']} {d['dtype']}" for d in (s["data"] for s in chosen))
    dates = " and ".join(sorted({s["date"] for s in chosen}))
    processors = " and ".join(sorted({s["machine"]["cpu"] for s in chosen}))
    listed = ", ".join(said[:-1]) + (" and " if len(said) > 1 else "") + said[-1]
    busy = max(s["machine"]["other_cores"] for s in chosen)
    noises = [s["noise"]["cpu_us"]["max"] for s in chosen if s["noise"]]
    noise = f"the same search twice differed by up to {100 * max(noises):.0f} %" if noises else "noise unknown"
    recalls = " and ".join(map(str, SAID_RECALLS))
    return wrapped(f"Sets that fit in RAM are searched there: at recalls of {recalls} a query takes a processor time "
                   f"of {listed} ({sets}; one thread, {dates}, {processors}, of whose cores other programs took up to "
                   f"{busy}; {noise}; [all figures](docs/book/measurements.md#in-memory), by `make bench`).")


def span(values):
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def disk(sessions):
    """The README's block about sets on disk: one sentence."""
    chosen = [s for g in groups(sessions).values() if (s := alone(g).get("in")) and DISK_PEER in s["contenders"]]
    found = []
    for s in chosen:
        pages_read, cpu_us = ((cost_at(s, OWN_FROM_DISK, s["target"], value), cost_at(s, DISK_PEER, s["target"], value))
                              for value in ("pages_read", "cpu_us"))
        (own, reached), (peer, peer_reached) = (cheapest(s, name, s["target"]) for name in (OWN_FROM_DISK, DISK_PEER))
        if None not in (*pages_read, *cpu_us) and reached and peer_reached:
            found.append((s, pages_read[0] / pages_read[1], cpu_us[0] / cpu_us[1], own["qps"] / peer["qps"]))
    if not found:
        return "Vectors that do not fit in memory stay on disk."
    ratios = [span([f[at] for f in found]) for at in (1, 2, 3)]
    sets = ", ".join(f"{d['n']:,} x {d['dim']} {d['dtype']}" for d in (f[0]["data"] for f in found))
    dates = " and ".join(sorted({f[0]["date"] for f in found}))
    targets = " and ".join(sorted({str(f[0]["target"]) for f in found}))
    return wrapped(f"With codes of the same size in RAM, at a recall of {targets}, it reads {ratios[0]} times as many "
                   f"pages per query as DiskANN, takes {ratios[1]} times the processor time, and answers {ratios[2]} "
                   f"times as many queries per second ({sets}; {dates}; [all figures](docs/book/measurements.md), by "
                   "`make bench`).")


def with_block(text, name, block, path):
    """The page with a block replaced."""
    start = f"<!-- bench:{name} -->"
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise PageError(f"{path.name}: has no '{start}' … '{END}'; put both lines where the block belongs")
    return f"{before}{start}\n{block}\n{END}{after}"


def pages(sessions, filtered, databases):
    """{path: (text as it is, text as it should be)} of every page with a block."""
    blocks = {"in-memory": in_memory(sessions), "disk": disk(sessions), "speed": speed(sessions),
              "filters": filter_pages.block(filtered), "databases": database_pages.block(databases)}
    out = {}
    for name, path in PAGES.items():
        is_now, should_be = out[path] if path in out else [path.read_text()] * 2
        out[path] = is_now, with_block(should_be, name, blocks[name], path)
    return out


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a page differs")
    args = parser.parse_args(argv)
    sessions, filtered = stored.read(), stored.read(prefix=stored.FILTERS_PREFIX)
    databases = stored.read(prefix=stored.DATABASES_PREFIX)
    try:
        written = pages(sessions, filtered, databases)
    except PageError as e:
        print(f"pages.py: {e}", file=sys.stderr)
        return 1
    stale = [path for path, (is_now, should_be) in written.items() if is_now != should_be]
    if args.check:
        for path in stale:
            print(f"pages.py: {path.name} differs from the stored results; run make bench-report", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(written[path][1])
    drawn = [plots.draw_svg(alone(group), plot_of(name)) for name, group in groups(sessions).items()]
    drawn += [plots.draw_filters(document, filter_pages.plot_of(document)) for document in filtered.values()]
    drawn += [plots.draw_databases(document, database_pages.plot_of(document)) for document in databases.values()]
    print("written:", *stale, *drawn, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
