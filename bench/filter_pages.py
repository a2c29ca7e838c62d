"""Tables of the benchmark of filters: as text for who measures, and the book's block."""
from pathlib import Path

import filter_figures as figures
import report
from filter_tasks import PERCENTS, PLACES, UNFILTERED, name_in
from markdown import table, wrapped

BOOK = Path(__file__).resolve().parent.parent / "docs" / "book"
PAGE = BOOK / "filters-measured.md"

NONE = "-"
# What StratANN should reach: the share of its speed that a filter of half the rows leaves, and speeds over those of the
# fastest peer and of a scan of the matches.
SHARE_TARGET, PEERS_TARGET, SCAN_TARGET = 0.6, 1.5, 1.0


def number(value):
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(document, name, task, target):
    """QPS at a recall; where it is not reached, the best recall and the queries with too few results."""
    points = document["contenders"][name]["tasks"].get(task)
    if not points:
        return NONE
    qps = figures.qps_at(points, target)
    if qps is not None:
        return number(qps)
    best = figures.best(points)
    few = f", {best['few_results']} few" if best["few_results"] else ""
    return f"({best['recall']:.2f}{few})"


def percents(document, place):
    return [p for p in PERCENTS if name_in(place, p) in document["tasks"]]


def columns(document):
    """(header, task) of every task."""
    head = [("no filter", UNFILTERED)] if UNFILTERED in document["tasks"] else []
    return head + [(f"{place} {p:g}%", name_in(place, p)) for place in PLACES for p in percents(document, place)
                   if (place, p) != ("far", 100)]


def plain_table(document, target):
    heads = columns(document)
    rows = [[name, *(cell(document, name, task, target) for _, task in heads)] for name in document["contenders"]]
    return report.table(["contender", *(head for head, _ in heads)], rows) if rows else "nothing"


def ratios(document):
    """[(what, the figure at each recall, target)]: what StratANN should reach."""
    out = [(f"`{name}`: half of the rows at random over no filter", at_recalls(document, figures.kept_share, name),
            SHARE_TARGET) for name in figures.own_names(document)]
    auto = auto_name(document)
    if auto:
        out += [(f"`{auto}` over the fastest peer, {task} %", at_recalls(document, figures.over_peers, auto, task),
                 PEERS_TARGET) for task in (name_in("random", 1), name_in("far", 1))]
        out += [(f"`{auto}` over `{scan}`, {task} %", at_recalls(document, figures.over_scan, auto, scan, task),
                 SCAN_TARGET)
                for task in (name_in(place, 0.01) for place in PLACES) for scan in figures.scan_names(document)]
    return [line for line in out if set(line[1]) != {NONE}]


def at_recalls(document, ratio, *of):
    """Texts of a ratio at every recall, with the peer that it is over where that varies."""
    return [ratio_text(ratio(document, *of, target)) for target in document["recalls"]]


def ratio_text(value):
    if value is None:
        return NONE
    return f"{value[0]:.2f} ({value[1]})" if isinstance(value, tuple) else f"{value:.2f}"


def auto_name(document):
    """The contender of the kind that `auto` chooses; None where it took no part."""
    name = f"{figures.OWN}{document['auto']}"
    return name if name in document["contenders"] else None


def plain_ratios(document):
    rows = [[what.replace("`", ""), *values, f"{target:g}"] for what, values, target in ratios(document)]
    head = [f"auto chooses {document['auto']}", *(f"at {recall}" for recall in document["recalls"]), "target"]
    return report.table(head, rows) if rows else "no ratios"


def plot_of(document):
    return BOOK / f"filters-qps-{document['data']['name']}.svg"


def cell_of_all(document, name, task):
    """QPS at each recall; once where no recall is reached."""
    return " / ".join(dict.fromkeys(cell(document, name, task, target) for target in document["recalls"]))


def place_table(document, place):
    """One line for each contender, one column for each share of the rows."""
    shares = percents(document, place)
    tasks = [name_in(place, p) for p in shares]
    head = [place, *(f"{p:g} %: {document['tasks'][t]['matches']:,}" for p, t in zip(shares, tasks, strict=True))]
    if place == "random" and UNFILTERED in document["tasks"]:
        tasks, head = [UNFILTERED, *tasks], [head[0], "no filter", *head[1:]]
    rows = [[f"`{name}`", *(cell_of_all(document, name, task) for task in tasks)] for name in document["contenders"]]
    return table(head, rows)


def ratio_table(document):
    rows = [[what, *values, f"{target:g}"] for what, values, target in ratios(document)]
    recalls = (f"at {recall}" for recall in document["recalls"])
    return table([f"ratios; `auto` chooses `{document['auto']}`", *recalls, "should be at least"], rows)


def conditions(document):
    """Set, date, processor, load and versions."""
    data, machine = document["data"], document["machine"]
    versions = {}
    for name, entry in document["contenders"].items():
        if entry["version"]:
            versions[name.split("-")[0] if not name.startswith(figures.SCAN) else name.split("-")[1]] = entry["version"]
    peers = ", ".join(f"{peer} {version}" for peer, version in versions.items())
    isa = ", ".join(machine["isa"]) or "no vector instructions that count"
    counts = sorted({task["queries"] for task in document["tasks"].values()})
    recalls = " and ".join(map(str, document["recalls"]))
    return wrapped(
        f"**{data['name']}**: {data['n']:,} x {data['dim']} {data['dtype']}, {data['metric']}, k = {document['k']}, "
        f"{' or '.join(map(str, counts))} queries; measured {document['date']} with StratANN {document['stratann']}, "
        f"{peers}; {machine['cpu']} ({isa}), {machine['cores']} cores, of which other programs took "
        f"{machine['other_cores']} meanwhile; rounds: {document['rounds']}. Queries per second of a core at recalls of "
        f"{recalls}, or, where they are not reached, in brackets the best recall and how many queries had too few "
        "results.")


def options(documents):
    """How each contender was built and searched, and who was left out."""
    listed, skipped = {}, {}
    for document in documents.values():
        for name, entry in document["contenders"].items():
            how = ", ".join(f"{key} {value}" for key, value in entry["options"].items())
            listed.setdefault(name, {})[how] = None
        for name, reason in document["skipped"].items():
            skipped[f"{name} on {document['data']['name']}: {reason}"] = None
    text = [f"- `{name}`: {'; or '.join(hows)}" for name, hows in listed.items()]
    return "\n".join(text + [f"- not measured: {line}" for line in skipped])


def block(documents):
    """The book's block: for each set its conditions, curves, tables and ratios."""
    parts = []
    for document in documents.values():
        tables = [place_table(document, place) for place in PLACES if percents(document, place)]
        plot = f"![Queries per second with filters of {document['data']['name']}]({plot_of(document).name})"
        parts.append("\n\n".join([conditions(document), plot, *tables, ratio_table(document)]))
    if not parts:
        return "Nothing is stored yet."
    return "\n\n".join([*parts, "How they were built and searched:", options(documents)])
