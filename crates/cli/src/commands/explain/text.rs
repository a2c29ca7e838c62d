//! The trace of a query as text, event by event.

use stratann_core::PAGE;
use stratann_engine::search::{PriceUnit, SieveWay};
use stratann_engine::trace::{
    BlockRead, BlockRound, BlockRounds, BlockSearch, ClusterChoice, ClusterLoads, ClusterVisit, Event,
    FilterTrace, FoundResult, HeadWalk, Left, ListRound, ListRounds, ListSearch, MiniBatch, Navigation,
    PageRead, RankedList, Ranking, ReadFor, Reranking, RowFilter, Scan, Scans, Stop, Trace, Visit, Visits,
};

use stratann_storage::budget::size;

use crate::filter::FiltersReport;
use crate::output::{count, table};

/// Most candidates or lists of a route that are printed.
const ROUTE_PRINTED: usize = 8;

/// Renders the trace of the query with this number.
pub(super) fn text(number: usize, trace: &Trace, block_bytes: usize) -> String {
    let events = trace.events.iter();
    let said: String = events.clone().map(|event| said(event, trace)).collect();
    let sums: String = events.map(|event| sums(event, trace, block_bytes)).collect();
    let results = (1..).zip(trace.results.all());
    let results: String = results.map(|(rank, result)| result_line(rank, result)).collect();
    format!("query {number}: k {}{said}{sums}{results}", trace.k)
}

/// Renders an event. The first ends the line of the query.
fn said(event: &Event, trace: &Trace) -> String {
    match event {
        Event::BlockSearch(begin) => block_search(begin),
        Event::RowFilter(RowFilter { filter }) => row_filter(filter),
        Event::HeadWalk(walk) if walk.head.is_empty() => String::new(),
        Event::HeadWalk(walk) => head_walk(walk),
        Event::BlockRounds(BlockRounds { rounds }) => {
            (1..).zip(rounds).map(|(step, round)| block_round(step, round, trace.k)).collect()
        }
        Event::ListSearch(begin) => list_search(begin),
        Event::Navigation(walk) => {
            navigation(walk, trace.event::<ListSearch>().map_or("", |begin| begin.order))
        }
        Event::Visits(all) => visits(all),
        Event::ListRounds(ListRounds { rounds }) => {
            (1..).zip(rounds).map(|(step, round)| list_round(step, round, trace.k)).collect()
        }
        Event::Stop(Stop { stop }) => format!("stop: {stop}\n\n"),
        Event::Scans(all) => scans(all, trace.stats.components_unpruned),
        Event::Ranking(ranking) => ranked(ranking, trace.stats.code_comparisons),
        Event::Reranking(all) => batches(all),
        Event::ClusterChoice(choice) => clusters(choice),
        Event::ClusterLoads(loads) => cluster_loads(loads),
    }
}

/// Sums over a query, after its rounds.
fn sums(event: &Event, trace: &Trace, block_bytes: usize) -> String {
    let s = &trace.stats;
    match event {
        Event::BlockRounds(_) => format!(
            "{} reads of {} KiB in {} hops; {} codes and {} full vectors compared, {} nodes expanded\n\
             {} pages of {PAGE} bytes\n\n",
            s.reads,
            block_bytes / 1024,
            s.hops,
            count(s.code_comparisons),
            count(s.full_comparisons),
            s.expanded,
            s.pages_read
        ),
        Event::Visits(Visits { list_reads, candidate_reads, .. }) => format!(
            "{} lists visited, {} of them useful, {} scans with sub-lists\n\
             {} reads of codes and edges ({} KiB), {} of candidates ({} KiB), {} vectors in RAM instead, in {} hops\n\
             {} codes and {} full vectors compared, {} vectors pruned before they were read\n\n",
            s.clusters,
            s.fruitful_clusters,
            s.lists,
            list_reads.reads,
            count(kib(list_reads.pages)),
            candidate_reads.reads,
            count(kib(candidate_reads.pages)),
            s.pinned_hits,
            s.hops,
            count(s.code_comparisons),
            count(s.full_comparisons),
            count(s.pruned)
        ),
        Event::Scans(scans) => format!(
            "\n{} lists scanned; {} vectors compared whole, {} dropped before\n\
             {} components compared, {} of those in the lists; {} of them first, for a threshold\n\n",
            s.lists,
            count(s.full_comparisons),
            count(s.pruned),
            count(s.components),
            share(s.components, s.components_unpruned),
            count(scans.prewarmed_components)
        ),
        _ => String::new(),
    }
}

fn result_line(rank: usize, result: &FoundResult) -> String {
    let how = result.found.map_or(String::new(), |found| match (found.candidate, found.batch) {
        (Some(candidate), Some(batch)) => format!(": candidate {candidate}, mini-batch {batch}"),
        (None, Some(batch)) => format!(": in a block of mini-batch {batch}"),
        _ => ": in a list".into(),
    });
    format!("{rank:>4}. id {}, distance {:.6}{how}\n", result.id, result.distance)
}

fn kib(pages: u64) -> u64 {
    pages * PAGE as u64 / 1024
}

/// A part of a whole, in percent.
fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// The first of some numbered things, with their distances.
fn nearest<T>(all: &[T], number_and_distance: impl Fn(&T) -> (u32, f32)) -> String {
    let first = all.iter().take(ROUTE_PRINTED).map(|one| {
        let (number, distance) = number_and_distance(one);
        format!("{number} ({distance:.4})")
    });
    let more = if all.len() > ROUTE_PRINTED { ", …" } else { "" };
    first.collect::<Vec<_>>().join(", ") + more
}

/// The distance of the k-th result after a round.
fn kth(distance: Option<f32>, results: usize, k: u32) -> String {
    match distance {
        Some(distance) => format!("k-th distance {distance:.4}"),
        None => format!("{results} of {k} results"),
    }
}

fn rows<T>(all: &[T], row: impl Fn(&T) -> Vec<String>) -> Vec<Vec<String>> {
    all.iter().map(row).collect()
}

fn block_search(begin: &BlockSearch) -> String {
    let slack = begin.stop_slack.map_or(String::new(), |s| format!(", slack {s:.2}"));
    let patience = if begin.patience > 0 { format!(", patience {}", begin.patience) } else { String::new() };
    format!(", search list {}{slack}{patience}\n", begin.search_list)
}

/// The plan of a filter, the prices by which it was chosen, and what came of it.
fn row_filter(filter: &FilterTrace) -> String {
    let mut out = FiltersReport::Shared(filter.plan).text();
    if let Some(prices) = filter.plan.prices {
        let unit = match prices.unit {
            PriceUnit::Us => "us",
            PriceUnit::Lists => "lists",
        };
        let price = |(way, price): (SieveWay, f64)| format!("{} {price:.0} {unit}", way.name());
        out += &format!("prices: {}\n", prices.all().map(price).collect::<Vec<_>>().join(", "));
    }
    if filter.seeds > 0 {
        out += &format!(
            "the nearest nodes had too few rows that match: a second walk among these began at {} from all \
             parts of the index\n",
            count(filter.seeds)
        );
    }
    if filter.gave_way {
        out +=
            "the search cost as much as another way, or found too few rows that match, and gave way to it\n";
    }
    if filter.vain_blocks > 0 {
        out += &format!("{} blocks were used and had no row that matches\n", count(filter.vain_blocks));
    }
    out
}

fn head_walk(walk: &HeadWalk) -> String {
    format!(
        "route: the head graph compared {} codes and gave {} candidates: node (code distance) {}\n",
        walk.head_code_comparisons,
        walk.head.len(),
        nearest(&walk.head, |guess| (guess.node, guess.code_distance))
    )
}

fn block_round(step: usize, round: &BlockRound, k: u32) -> String {
    let read = |read: &BlockRead| {
        let why = read
            .asked_by
            .map(|g| format!(" for node {} (rank {}, code distance {:.4})", g.node, g.rank, g.code_distance));
        format!("block {} at offset {}{}", read.block, read.offset, why.unwrap_or_default())
    };
    format!(
        "step {step}: {}; {} scored, {} expanded; {}\n",
        round.reads.iter().map(read).collect::<Vec<_>>().join(", "),
        round.scored,
        round.expanded,
        kth(round.kth_distance, round.results, k)
    )
}

fn list_search(begin: &ListSearch) -> String {
    let slack = begin.stop_slack.map_or("exact bounds".into(), |s| format!("slack {s:.2}"));
    let early = match (begin.early_stop, begin.patience) {
        (Some(share), Some(patience)) => {
            format!("early stop {share:.2} (after {patience:.1} consecutive lists without a new result)")
        }
        _ => "no early stop".into(),
    };
    format!(", nprobe {}, {early}, bounds {}, {slack}\n", begin.nprobe, begin.bounds)
}

fn navigation(walk: &Navigation, order: &str) -> String {
    format!(
        "route: {} comparisons in a navigation graph of {} nodes, {} of them learnt; order of lists: {order}\n\n",
        count(walk.nav_comparisons),
        count(u64::from(walk.nav_nodes)),
        count(u64::from(walk.nav_learned))
    )
}

fn visits(all: &Visits) -> String {
    let row = |visit: &Visit| {
        vec![
            visit.cluster.to_string(),
            visit.kind.into(),
            count(visit.members),
            format!("{:.4}", visit.centroid_distance),
            format!("{:.4}", visit.ranked_distance),
            visit.sample_hits.to_string(),
            format!("{} of {}", visit.lists_scanned, visit.lists),
            visit.lists_in_ram.to_string(),
            count(visit.scanned),
            count(visit.kept),
            visit.reads.to_string(),
            if visit.fruitful { "yes" } else { "no" }.into(),
            visit.results.map_or("-".into(), |n| n.to_string()),
        ]
    };
    let headings = [
        "list",
        "kind",
        "members",
        "distance",
        "ranked",
        "sample hits",
        "sub-lists",
        "in RAM",
        "scanned",
        "kept",
        "reads",
        "useful",
        "results",
    ];
    let others = all.results_unvisited.filter(|&n| n > 0).map_or(String::new(), |others| {
        format!("{others} further results come from the navigation graph, of lists that were not visited\n")
    });
    table(&headings, &rows(&all.visits, row)) + &others + "\n"
}

fn list_round(step: usize, round: &ListRound, k: u32) -> String {
    format!(
        "step {step}: {}; {} codes, {} vectors compared, {} pruned, {} candidates left; {}\n",
        round.reads.iter().map(page_read).collect::<Vec<_>>().join(", "),
        count(round.code_comparisons),
        round.scored,
        count(round.pruned),
        round.candidates,
        kth(round.kth_distance, round.results, k)
    )
}

fn page_read(read: &PageRead) -> String {
    let purpose = match read.purpose {
        ReadFor::Lists { cluster, lists } => format!(" for codes of list {cluster} ({lists} lists)"),
        ReadFor::Candidates { vectors } => format!(" for {vectors} candidates"),
        ReadFor::Run { cluster, vectors } => format!(" for {vectors} vectors of list {cluster}"),
        ReadFor::Edges { cluster } => format!(" for edges of list {cluster}"),
        ReadFor::Other => String::new(),
    };
    format!("{} KiB at {}{purpose}", kib(read.pages.into()), read.offset)
}

fn scans(all: &Scans, unpruned: u64) -> String {
    let members: u64 = all.lists.iter().map(|list| u64::from(list.members)).sum();
    let dim = unpruned / members.max(1);
    let scan = |scan: &Scan| {
        vec![
            scan.list.to_string(),
            format!("{:.4}", scan.centroid_distance),
            count(scan.members.into()),
            count(scan.finished.into()),
            count(scan.components),
            share(scan.components, u64::from(scan.members) * dim),
        ]
    };
    let left = |left: &Left| {
        let after = match left.components {
            0 => "pilot or codes".to_string(),
            components => format!("{components} components"),
        };
        vec![after, count(left.vectors), share(left.vectors, members)]
    };
    let headings = ["list", "distance", "members", "compared whole", "components", "share"];
    let lists = table(&headings, &rows(&all.lists, scan));
    let left = table(&["after", "vectors left", "share"], &rows(&all.left, left));
    format!(", nprobe {}\n\n{lists}\n{left}", all.nprobe)
}

fn ranked(ranking: &Ranking, code_comparisons: u64) -> String {
    let members: u64 = ranking.lists.iter().map(|l| u64::from(l.own + l.replicas)).sum();
    format!(
        ", nprobe {}, up to {} candidates, rule {}\n\
         route: {} lists, the nearest {}\n\
         access: {} members, {} of them repeated; {} codes compared, centroids included; {} bytes to the scorer and \
         back\n\n",
        ranking.nprobe,
        ranking.candidates,
        ranking.rule,
        ranking.lists.len(),
        nearest(&ranking.lists, |l: &RankedList| (l.list, l.centroid_distance)),
        count(members),
        count(ranking.duplicates),
        count(code_comparisons),
        count(ranking.gpu_bytes)
    )
}

fn batches(all: &Reranking) -> String {
    let row = |(number, b): &(usize, &MiniBatch)| {
        let numbers = [b.candidates, b.reads, b.shared, b.known, b.changed];
        std::iter::once(number.to_string()).chain(numbers.map(|n| n.to_string())).collect()
    };
    let numbered: Vec<(usize, &MiniBatch)> = all.batches.iter().enumerate().collect();
    let headings = ["mini-batch", "candidates", "reads", "same read", "read before", "new results"];
    table(&headings, &rows(&numbered, row)) + "\n"
}

fn clusters(choice: &ClusterChoice) -> String {
    let bytes = |visit: &ClusterVisit| u64::from(visit.bytes) + u64::from(visit.fresh_bytes);
    let row = |visit: &ClusterVisit| {
        vec![
            visit.cluster.to_string(),
            visit.group.to_string(),
            format!("{:.4}", visit.distance),
            count(visit.members.into()),
            visit.fresh.to_string(),
            size(bytes(visit)),
            count(visit.comparisons),
            count(visit.expanded),
        ]
    };
    let headings = ["cluster", "group", "distance", "members", "fresh", "bytes", "compared", "expanded"];
    format!(
        ", nprobe {}, ef {}\n\
         route: {} representatives compared, {} clusters chosen\n\n\
         {}\n{} in all\n",
        choice.nprobe,
        choice.ef,
        count(choice.meta_comparisons),
        choice.clusters.len(),
        table(&headings, &rows(&choice.clusters, row)),
        size(choice.clusters.iter().map(bytes).sum())
    )
}

fn cluster_loads(cost: &ClusterLoads) -> String {
    let headers = cost.headers.map_or(String::new(), |headers| {
        let (trips, bytes) = (count(headers.round_trips), size(headers.bytes));
        format!("before them the headers of all groups: {bytes} in {trips} round trips\n")
    });
    format!(
        "{} loads of {} in {} round trips of up to {} loads; {} cache hits\n{headers}\n",
        count(cost.loads),
        size(cost.loaded_bytes),
        count(cost.round_trips),
        cost.doorbell,
        count(cost.cache_hits)
    )
}
