"""Recall that is asked for, and recall that is reached.

For an index, queries and ground truth: for each k and each recall asked for, the recall reached, its cost, and the cost
of the cheapest fixed setting with the same mean recall. A fixed setting spends the same effort on every query. All
figures are counters, so they do not depend on the machine.
"""

import argparse
import json
import math
import subprocess
import sys

RECALLS = ("0.9", "0.95", "0.99")
# Slacks of bounds of the fixed settings.
SLACKS = ("1", "1.5", "2.5")
# Beams of the fixed settings in clusters, beyond k.
BEAMS = (2, 14, 40, 100, 300, 1000)
# The recall reached may be lower than asked by so much, and its cost higher than the cheapest by this factor.
MISS_MAX = 0.02
COST_MAX = 1.15


def search(args, k, *effort):
    """Runs `stratann search` and returns its runs."""
    command = [args.stratann, "search", args.index, args.queries, "--groundtruth", args.groundtruth, "--json"]
    command += ["-k", str(k), "--cache-budget", "0", "--width", "1", *effort]
    if args.kind == "hybrid-ivf":
        command.append("--no-learning")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)["runs"]


def fixed_paths(args, k):
    """Runs with fixed efforts: for each of the other settings, in ascending order of effort."""
    if args.kind == "disk-graph":
        lists = sorted({max(k, round(k * (1 + 0.5 * i) + 2**i)) for i in range(0, 11)})
        return [search(args, k, "--search-list", ",".join(map(str, lists)))]
    lists = ",".join(str(2**i) for i in range(1, args.probes + 1))
    if args.kind == "remote-hnsw":
        return [search(args, k, "--nprobe", lists, "--ef", str(k + beyond)) for beyond in BEAMS]
    orders = ("evidence", "expected")
    return [
        search(args, k, "--nprobe", lists, "--order", order, "--stop-slack", slack)
        for order in orders
        for slack in SLACKS
    ]


def cost(run, counter):
    """The cost of a run in one counter. A remote-hnsw has no codes, and the queries of a batch share its reads."""
    per_query = run["per_query"]
    if counter == "reads":
        return per_query["shared_reads"] or per_query["reads"]
    return per_query["code_comparisons"] or per_query["full_comparisons"]


def cheapest(paths, recall, counter):
    """The cost at which fixed efforts reach a recall; None where they do not.

    Between two efforts of a path that follow each other it is interpolated by misses. Efforts farther apart would give
    a cost that no setting between them has.
    """
    best = math.inf
    for runs in paths:
        for index, run in enumerate(runs):
            high, dear = run["recall"], cost(run, counter)
            if high < recall:
                continue
            best = min(best, dear)
            low, cheap = (runs[index - 1]["recall"], cost(runs[index - 1], counter)) if index else (high, dear)
            if low < recall:
                miss = [math.log(max(1 - r, 1e-4)) for r in (low, recall, high)]
                share = (miss[0] - miss[1]) / (miss[0] - miss[2]) if miss[0] > miss[2] else 1.0
                best = min(best, cheap + share * (dear - cheap))
    return best if math.isfinite(best) else None


def main():
    """Prints a table; fails where a recall or a cost is out of bounds and --check is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index")
    parser.add_argument("queries")
    parser.add_argument("groundtruth")
    parser.add_argument("--stratann", default="stratann", help="the program")
    parser.add_argument("-k", default="1,10,100", help="numbers of results")
    parser.add_argument("--check", action="store_true", help="fail where recall or cost is out of bounds")
    args = parser.parse_args()
    info = subprocess.run([args.stratann, "info", args.index, "--json"], capture_output=True, text=True, check=True)
    args.kind = json.loads(info.stdout)["kind"]
    args.probes = 10
    is_good = True
    print(f"{'k':>4} {'asked':>6} {'got':>7} {'reads':>8} {'cheapest':>9} {'ratio':>6} {'codes':>8} {'ratio':>6}")
    for k in map(int, args.k.split(",")):
        fixed = fixed_paths(args, k)
        for asked, run in zip(RECALLS, search(args, k, "--recall", ",".join(RECALLS)), strict=True):
            least = {counter: cheapest(fixed, run["recall"], counter) for counter in ("reads", "codes")}
            ratio = {c: cost(run, c) / least[c] if least[c] else math.nan for c in least}
            reads, codes = cost(run, "reads"), cost(run, "codes")
            print(
                f"{k:>4} {asked:>6} {run['recall']:>7.4f} {reads:>8.1f} {least['reads'] or math.nan:>9.1f} "
                f"{ratio['reads']:>6.2f} {codes:>8.0f} {ratio['codes']:>6.2f}",
                flush=True,
            )
            is_good &= run["recall"] >= float(asked) - MISS_MAX and not ratio["reads"] > COST_MAX
    if args.check and not is_good:
        sys.exit("recall or cost out of bounds")


if __name__ == "__main__":
    main()
