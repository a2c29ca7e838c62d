"""Stored results of comparisons: what a session leaves in bench/results, and how it is read again."""
import json
import subprocess
from pathlib import Path

import report

FOLDER = Path(__file__).resolve().parent / "results"
PREFIX, FILTERS_PREFIX, DATABASES_PREFIX = "compare-", "filters-", "databases-"
DIGITS = 5
KEPT = ("date", "stratann", "machine", "isa_asked", "threads", "rounds", "k", "target", "data", "noise", "disk")


def name_of(results):
    """Name of a session: the set, the distribution of its queries, the threads, and instructions left out."""
    data, isa = results["data"], results["isa_asked"]
    return f"{PREFIX}{data['name']}-{data['distribution']}-{results['threads']}t" + (f"-{isa}" if isa else "")


def program_version(path):
    """The version that the program prints; None where there is no program."""
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.split()[-1] if done.stdout.split() else None


def rounded(value):
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def point(summary, rounds):
    """What is kept of a setting: medians over the rounds, and the processor time of each."""
    latency = summary["latency_us"] or {}
    kept = {"setting": summary["setting"], "recall": summary["recall"], "qps": summary["qps"],
            "cpu_us": summary["cpu_us"], "p50_us": latency.get("p50"), "p99_us": latency.get("p99"),
            "pages_read": summary["pages_read"], "net_rss_bytes": report.net_rss(summary),
            "cpu_us_of_rounds": [rounded(r["cpu_us"]) for r in rounds]}
    return {key: rounded(value) for key, value in kept.items()}


def compact(results):
    """The document that is stored: no paths, no round in full."""
    contenders = {}
    for name, entry in results["contenders"].items():
        build = entry["build"]
        contenders[name] = {
            "storage": entry["storage"], "version": entry["version"], "options": entry["options"],
            "build": {"seconds": rounded(build["seconds"]), "cpu_seconds": rounded(build["cpu_seconds"]),
                      "index_bytes": build["index_bytes"]},
            "points": [point(s, r) for s, r in zip(entry["sweep"], entry["rounds"], strict=True)]}
    return {key: results[key] for key in KEPT} | {"contenders": contenders, "skipped": results["skipped"]}


def write(path, results, folders):
    """Store a session, a line for each setting; the names of `folders` are cut from reasons. Returns the path."""
    document = compact(results)
    return write_lines(path, document, [entry["points"] for entry in document["contenders"].values()], folders)


def write_lines(path, document, lists, folders):
    """Write a document in which every element of some lists has a line of its own."""
    document["skipped"] = {name: without(reason, folders) for name, reason in document["skipped"].items()}
    lines = []
    for kept in lists:
        for i, element in enumerate(kept):
            lines.append(json.dumps(element))
            kept[i] = f"point {len(lines) - 1}"
    text = json.dumps(document, indent=1)
    for i, line in enumerate(lines):
        text = text.replace(f'"point {i}"', line)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


def without(reason, folders):
    for folder in folders:
        reason = reason.replace(f"{folder}/", "")
    return reason


def filters_name_of(results):
    """Name of the results of filters: the set, the threads, and instructions left out."""
    isa = results["isa_asked"]
    return f"{FILTERS_PREFIX}{results['data']['name']}-{results['threads']}t" + (f"-{isa}" if isa else "")


def write_filters(path, results, folders):
    """Store the results of filters, a line for each setting. Returns the path."""
    document = results | {"contenders": {}, "skipped": dict(results["skipped"])}
    lists = []
    for name, entry in results["contenders"].items():
        build = {key: rounded(entry["build"][key]) for key in ("seconds", "cpu_seconds", "index_bytes")}
        tasks = {task: [{key: rounded(value) for key, value in p.items()} for p in points]
                 for task, points in entry["tasks"].items()}
        lists += tasks.values()
        document["contenders"][name] = entry | {"build": build, "tasks": tasks}
    return write_lines(path, document, lists, folders)


def databases_name_of(results):
    """Name of the results of databases: the set, and instructions left out."""
    isa = results["isa_asked"]
    return f"{DATABASES_PREFIX}{results['data']['name']}" + (f"-{isa}" if isa else "")


def write_databases(path, results, folders):
    """Store the results of databases, a line for each setting. Returns the path."""
    document = results | {"contenders": {}, "skipped": dict(results["skipped"])}
    lists = []
    for name, entry in results["contenders"].items():
        kept = deeply_rounded(entry)
        for phase in ("tasks", "later"):
            lists += [points for found in kept.get(phase, {}).values() for points in found.values()]
        document["contenders"][name] = kept
    return write_lines(path, document, lists, folders)


def deeply_rounded(value):
    """A copy whose numbers are rounded."""
    if isinstance(value, dict):
        return {key: deeply_rounded(inner) for key, inner in value.items()}
    return [deeply_rounded(inner) for inner in value] if isinstance(value, list) else rounded(value)


def read(folder=FOLDER, prefix=PREFIX):
    """All stored sessions, {name: document}, in the order of their names."""
    return {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob(f"{prefix}*.json"))}
