"""What is printed of the benchmark of databases, and the book's block, from stored results."""
from pathlib import Path

import database_figures as figures
import report
from database_rows import LATER, UNFILTERED
from filter_pages import number
from markdown import table, wrapped

BOOK = Path(__file__).resolve().parent.parent / "docs" / "book"
PAGE = BOOK / "databases-measured.md"
NONE = "-"
MB = figures.MB


def head_of(document, task):
    facts = document["tasks"][task]
    return "no filter" if task == UNFILTERED else f"{facts['percent']:g} %: {facts['matches']:,}"


def speed_cell(document, entry, task, mode):
    """QPS at each recall; where none is reached, the best recall and the queries with too few results."""
    speeds = [figures.speed(entry, task, target, mode) for target in document["recalls"]]
    best = figures.best(entry, task)
    if best is None or mode not in entry["modes"]:
        return NONE
    few = f", {best['few_results']} few" if best["few_results"] else ""
    missed = f"({best['recall']:.2f}{few})"
    cells = [missed if qps is None else number(qps) for qps in speeds]
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells)


def speed_rows(document, mode):
    names = [n for n, e in document["contenders"].items() if mode in e["modes"]]
    return [[name, *(speed_cell(document, document["contenders"][name], task, mode) for task in document["tasks"])]
            for name in names]


def write_rows(document):
    rows = []
    for name, entry in document["contenders"].items():
        load, ready = entry["load"], entry["ready"]
        rows.append([name, number(figures.written_per_second(entry)),
                     number(load["batch_us"]["p50"] / 1000), number(load["batch_us"]["p99"] / 1000),
                     number(load["cpu_seconds"]), number(load["flush_seconds"]),
                     number(ready["seconds"]), number(ready["cpu_seconds"]),
                     number(figures.ready_per_second(entry)),
                     number(figures.ready_per_second(entry, "cpu_seconds"))])
    return rows


WRITE_HEAD = ("points/s", "a batch: p50, ms", "p99, ms", "CPU s", "flush(), s", "until ready: s more", "CPU s more",
              "points/s until ready", "points/s of a core until ready")


def megabytes(value):
    return NONE if value is None else number(value / MB)


def size_rows(document):
    rows = []
    for name, entry in document["contenders"].items():
        opened, loaded = entry["opened"], entry["loaded"]
        later = [megabytes(entry[key]["disk_bytes"]) if key in entry else NONE for key in ("changed", "compacted")]
        rows.append([name, number(1000 * entry["open"]["seconds"]), megabytes(opened["baseline_rss_bytes"]),
                     megabytes(opened["rss_bytes"]), megabytes(entry["searching_rss_bytes"]),
                     megabytes(loaded["rss_bytes"]), megabytes(loaded["disk_bytes"]),
                     *later, megabytes(entry.get("compacted", loaded)["log_bytes"])])
    return rows


SIZE_HEAD = ("first answer after opening, ms", "RAM before, MB", "opened", "searching", "at the end of loading",
             "disk, MB", "changed", "compacted", "of it logs and reserves")


def change_rows(document):
    """Rates of changes, and recall and speed before and after them, at the middle recall."""
    target, tasks = middle_recall(document), later_tasks(document)
    rows = []
    for name, entry in document["contenders"].items():
        if "churn" not in entry:
            continue
        deleted, overwritten = entry["churn"]["deleted"], entry["churn"]["overwritten"]
        row = [name, *(number(figures.rate(c["rows"], c["seconds"])) for c in (deleted, overwritten)),
               number(entry["compact"]["seconds"]), number(entry["compact"]["cpu_seconds"])]
        for task in tasks:
            recalls = figures.recall_later(entry, task, target)
            row.append(NONE if recalls is None else f"{recalls[0]:.3f} → {recalls[1]:.3f}")
            row.append(number(figures.speed_later(entry, task, target)))
        rows.append(row)
    return rows


def later_tasks(document):
    return [task for task in LATER if task in document["tasks"]]


def middle_recall(document):
    return document["recalls"][len(document["recalls"]) // 2]


def change_head(document):
    head, target = ["deletes/s", "overwrites/s", "compaction, s", "CPU s"], middle_recall(document)
    for task in later_tasks(document):
        said = "no filter" if task == UNFILTERED else f"{document['tasks'][task]['percent']:g} %"
        head += [f"recall, {said}", f"QPS at {target} after"]
    return head


def ratio_rows(document):
    rows = []
    for what, is_more, over in figures.ratios(document, middle_recall(document)):
        better = "more" if is_more else "less"
        rows.append([f"{what} ({better} is better)", *(NONE if v is None else f"{v:.2f}" for v in over.values())])
    return rows


def plain(document):
    """What a run prints."""
    tasks = [head_of(document, task) for task in document["tasks"]]
    recalls = " / ".join(map(str, document["recalls"]))
    data = document["data"]
    parts = [f"{data['name']}: {data['n']:,} x {data['dim']} {data['dtype']}, {data['metric']}, k={document['k']}, one "
             f"core each, rounds: {document['rounds']}",
             "Writes\n" + report.table(["database", *WRITE_HEAD], write_rows(document))]
    for mode, said in (("one", "one at a time"), ("batch", "in batches")):
        rows = speed_rows(document, mode)
        if rows:
            parts.append(f"Queries per second of a core, {said}, at recalls of {recalls}\n"
                         + report.table(["database", *tasks], rows))
    parts += ["Memory, disk, opening\n" + report.table(["database", *SIZE_HEAD], size_rows(document)),
              "Changes\n" + report.table(["database", *change_head(document)], change_rows(document))]
    rows = ratio_rows(document)
    if rows:
        parts.append(f"StratANN over each, queries at {middle_recall(document)}\n"
                     + report.table(["ratio", *figures.peer_names(document)], rows))
    machine = document["machine"]
    parts += [f"skipped: {name}: {reason}" for name, reason in document["skipped"].items()]
    parts.append(f"other programs took {machine['other_cores']} of {machine['cores']} cores; "
                 f"{machine['seconds']:.0f} s")
    return "\n\n".join(parts)


def plot_of(document):
    return BOOK / f"databases-qps-{document['data']['name']}.svg"


def conditions(document):
    """Set, date, processor, load and versions."""
    data, machine = document["data"], document["machine"]
    versions = {}
    for name, entry in document["contenders"].items():
        if name not in figures.own_names(document):
            versions[name.split("-")[0]] = entry["version"]
    peers = ", ".join(f"{peer} {version}" for peer, version in versions.items())
    isa = ", ".join(machine["isa"]) or "no vector instructions that count"
    recalls = ", ".join(map(str, document["recalls"]))
    return wrapped(
        f"**{data['name']}**: {data['n']:,} x {data['dim']} {data['dtype']}, {data['metric']}, k = {document['k']}, "
        f"{data['queries']} queries; measured {document['date']} with StratANN {document['stratann']}, {peers}; "
        f"{machine['cpu']} ({isa}), {machine['cores']} cores, of which other programs took {machine['other_cores']} "
        f"meanwhile; rounds: {document['rounds']}. Queries per second of a core at recalls of {recalls}, or, where they"
        " are not reached, in brackets the best recall and how many queries had too few results.")


def options(documents):
    """How each was set up, what its writes promise, and who was left out."""
    listed, promises, skipped = {}, {}, {}
    for document in documents.values():
        for name, entry in document["contenders"].items():
            how = ", ".join(f"{key} {value}" for key, value in entry["options"].items())
            listed.setdefault(name, {})[how] = None
            promises[name] = entry["promise"]
        for name, reason in document["skipped"].items():
            skipped[f"{name} on {document['data']['name']}: {reason}"] = None
    lines = [f"- `{name}`: {promises[name]}. {'; or '.join(hows)}" for name, hows in listed.items()]
    return "\n".join(lines + [f"- not measured: {line}" for line in skipped])


def named(rows):
    return [[f"`{row[0]}`", *row[1:]] for row in rows]


def tables(document):
    tasks = [head_of(document, task) for task in document["tasks"]]
    changed = f"{document['churn_percent']:g} % of the points changed"
    parts = [table(["writes", *WRITE_HEAD], named(write_rows(document)))]
    for mode, said in (("one", "one query at a time"), ("batch", "batches")):
        rows = named(speed_rows(document, mode))
        parts += [table([said, *tasks], rows)] if rows else []
    parts += [table(["memory, disk, opening", *SIZE_HEAD], named(size_rows(document))),
              table([changed, *change_head(document)], named(change_rows(document)))]
    rows = ratio_rows(document)
    if rows:
        peers = [f"`{name}`" for name in figures.peer_names(document)]
        parts.append(table([f"StratANN over, queries at {middle_recall(document)}", *peers], rows))
    return parts


def block(documents):
    """The book's block: for each set its conditions, curves and tables."""
    parts = []
    for document in documents.values():
        plot = f"![Recall and queries per second of databases on {document['data']['name']}]({plot_of(document).name})"
        parts.append("\n\n".join([conditions(document), plot, *tables(document)]))
    if not parts:
        return "Nothing is stored yet."
    return "\n\n".join([*parts, "How they were set up, and what a write that has returned promises:",
                        options(documents)])
