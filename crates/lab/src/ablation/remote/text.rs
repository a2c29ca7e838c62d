//! The figures as tables.

use stratann_capacity::memory_nodes::rows::{Against, Row};
use stratann_cli::output::{count, table};
use stratann_storage::budget::size;

use super::Document;
use super::cache::AtStream;
use super::fresh::{AtFresh, Fresh};
use super::measure::Measured;
use super::overflow::AtOverflow;

pub(super) fn text(document: &Document<'_>) -> String {
    let at = if document.memory.is_empty() { "its folder".into() } else { document.memory.join(", ") };
    let mut out = format!(
        "{} vectors of {} components in {} clusters, meta-HNSW {}; {} of them searched for a query, from {at}\n",
        count(document.rows),
        document.dim,
        count(document.clusters.into()),
        size(document.meta_bytes),
        document.nprobe,
    );
    out += &format!(
        "batches of {}, doorbells of {}, a cache for {} % of the clusters, {} threads; for each query:\n\n",
        count(document.batch as u64),
        document.doorbell,
        100.0 * document.cache_share,
        document.threads
    );
    out += "where the time goes, and exact counters (tables 1 and 2)\n";
    out += &table(&HEAD, &document.breakdown.iter().map(row).collect::<Vec<_>>());
    out += "\nagainst naive: time that naive takes over that of the scheme, and shares of its counters\n";
    out += &against(&document.breakdown);
    out += "\nrecall and time over lengths of the beam (figure 6)\n";
    out += &table(&HEAD, &document.curve.iter().map(row).collect::<Vec<_>>());
    out += &partitions(document);
    out += &doorbells(document);
    out += "\nroom for fresh records of a group, computed from these counters: bytes of a query where loads read\n";
    out += "the whole room as in the paper, and where they read the part that is used\n";
    out += &table(
        &["room", "of the region", "whole", "unused", "half used", "all used"],
        &document.overflow.iter().map(room).collect::<Vec<_>>(),
    );
    out += &document.fresh.as_ref().map_or(String::new(), fresh);
    out += &caches(document);
    out += &model(document);
    out + "\ntime: of all threads for a batch, over its queries. meta-HNSW: choosing clusters; sub-HNSW: searching \
           them;\nnetwork: the rest, waiting for loads, checking and delivering them\n"
}

const HEAD: [&str; 12] = [
    "",
    "k",
    "ef",
    "recall",
    "time us",
    "network us",
    "sub-HNSW us",
    "meta-HNSW us",
    "round trips",
    "bytes",
    "loads",
    "needs",
];

/// A number with four digits that count.
fn short(number: f64) -> String {
    match number {
        0.0 => "0".into(),
        n if n >= 1000.0 => count(n as u64),
        n if n >= 1.0 => format!("{n:.2}"),
        n if n >= 0.001 => format!("{n:.5}"),
        n => format!("{n:.3e}"),
    }
}

fn row(of: &Measured) -> Vec<String> {
    vec![
        of.scheme.to_string(),
        of.k.to_string(),
        of.ef.to_string(),
        format!("{:.4}", of.recall),
        short(of.time_us),
        short(of.network_us),
        short(of.sub_hnsw_us),
        short(of.meta_hnsw_us),
        short(of.round_trips),
        short(of.bytes),
        short(of.loads),
        short(of.needs),
    ]
}

fn against(all: &[Measured]) -> String {
    let part = |share: Option<f64>| share.map_or("-".into(), short);
    let row = |of: &Measured| {
        vec![
            of.scheme.to_string(),
            of.k.to_string(),
            of.speedup.map_or("-".into(), |times| format!("{times:.2} x")),
            part(of.round_trips_of_naive),
            part(of.bytes_of_naive),
            part(of.loads_of_naive),
        ]
    };
    table(&["", "k", "faster", "round trips", "bytes", "loads"], &all.iter().map(row).collect::<Vec<_>>())
}

fn partitions(document: &Document<'_>) -> String {
    if document.partitions.is_empty() {
        return "\nnumbers of clusters (figure 7): not measured; give --vectors and --output\n".into();
    }
    let rows: Vec<Vec<String>> = document
        .partitions
        .iter()
        .map(|at| {
            let mut cells = row(&at.measured);
            cells[0] = at.partitions.to_string();
            cells.push(size(at.meta_bytes));
            cells
        })
        .collect();
    let mut head = HEAD.to_vec();
    head[0] = "clusters";
    head.push("meta-HNSW");
    format!("\nnumbers of clusters (figure 7)\n{}", table(&head, &rows))
}

fn doorbells(document: &Document<'_>) -> String {
    let alone = &document.doorbells.alone_us;
    let rows: Vec<Vec<String>> = document
        .doorbells
        .lengths
        .iter()
        .map(|at| {
            vec![
                at.doorbell.to_string(),
                short(at.time_us),
                short(at.round_trips),
                size(at.doorbell_bytes),
                at.foreground_queries.to_string(),
                short(at.foreground_us.p50),
                short(at.foreground_us.p99),
            ]
        })
        .collect();
    let head = ["doorbell", "time us", "round trips", "memory", "singles", "p50 us", "p99 us"];
    format!(
        "\nlengths of the doorbell, with single queries meanwhile; alone these take {} us by the median, {} by the \
         99th percentile\n{}",
        short(alone.p50),
        short(alone.p99),
        table(&head, &rows)
    )
}

fn room(at: &AtOverflow) -> Vec<String> {
    vec![
        format!("{}{}", size(at.overflow_bytes), if at.is_own { " (its own)" } else { "" }),
        size(at.region_bytes),
        size(at.bytes_whole as u64),
        size(at.bytes_used_0 as u64),
        size(at.bytes_used_50 as u64),
        size(at.bytes_used_100 as u64),
    ]
}

fn fresh(of: &Fresh) -> String {
    let row = |at: &AtFresh| {
        vec![
            at.fresh.to_string(),
            short(at.members),
            short(at.scanned_comparisons),
            format!("{:.4}", at.scanned_recall),
            short(at.linked_comparisons),
            format!("{:.4}", at.linked_recall),
            short(at.link_comparisons),
            at.pays_after_queries.map_or("never".into(), short),
        ]
    };
    let head = ["fresh", "vectors", "scanned", "recall", "linked", "recall", "to link", "pays after"];
    format!(
        "\nfresh records of a cluster, scanned or linked into its graph when it is loaded: distances of a query\n\
         there, those that linking takes, and the queries of a load after which it pays; a load serves {}\n\
         queries\n{}",
        short(of.queries_per_load),
        table(&head, &of.numbers.iter().map(row).collect::<Vec<_>>())
    )
}

fn caches(document: &Document<'_>) -> String {
    let row = |at: &AtStream| {
        vec![
            at.name().to_string(),
            at.batch.to_string(),
            short(at.wanted),
            short(at.loads_without),
            short(at.loads_lru),
            short(at.loads),
        ]
    };
    let head = ["queries", "batch", "clusters of a batch", "no cache", "LRU", "this cache"];
    format!(
        "\nloads of a query: without a cache, with an exact LRU of as many bytes, and with the cache as it is\n{}",
        table(&head, &document.caches.iter().map(row).collect::<Vec<_>>())
    )
}

fn model(document: &Document<'_>) -> String {
    let model = &document.model;
    let scheme = |of: &Row| {
        let against = model.against_naive.iter().find(|against| against.scheme == of.scheme);
        let times =
            |of: &dyn Fn(&Against) -> f64| against.map_or("-".into(), |own| format!("{:.1} x", of(own)));
        vec![
            of.scheme.to_string(),
            short(of.network_us),
            short(of.sub_hnsw_us),
            short(of.meta_hnsw_us),
            short(of.time_us),
            times(&|of| of.time),
            times(&|of| of.network),
        ]
    };
    let node = |at: &Row| {
        let qps = count(at.qps as u64);
        vec![at.scheme.to_string(), at.compute_nodes.to_string(), qps, at.bottleneck.clone()]
    };
    let head = ["", "network us", "sub-HNSW us", "meta-HNSW us", "time us", "faster", "network faster"];
    format!(
        "\nmodel, not measured: batches replayed on a compute node for each of {} clients, and on few; one memory \
         node\n{}\n{}\n{}",
        model.clients,
        table(&head, &model.schemes.iter().map(scheme).collect::<Vec<_>>()),
        table(&["", "compute nodes", "QPS", "bound by"], &model.nodes.iter().map(node).collect::<Vec<_>>()),
        model.costs.text(),
    )
}
