//! `stratann-lab cut`: how many hops leave their server, and how many would at best.

use std::path::PathBuf;

use rayon::prelude::*;
use serde::Serialize;
use stratann_cli::Verdict;
use stratann_cli::output::{Named, Output, table};
use stratann_cli::progress::ProgressPrinter;
use stratann_cli::queries::Queries;
use stratann_engine::explain::explain;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::whole::whole_cuts;
use stratann_engine::spread::{self, PartitionOptions};
use stratann_engine::trace::{BlockRounds, Trace};
use stratann_params::IndexKind;
use stratann_storage::{Error, Progress, Result};

/// Compare the division of a disk-graph over servers with what a cut of its whole graph gives
///
/// Queries are traced at width 1, block by block. A hop leaves when its block is on another server than that of the hop
/// before. Two cuts by METIS are the limits: that of the graph of all blocks bounds the division, that of the graph of
/// all nodes what another packing of nodes into blocks could give.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of a disk-graph
    index: PathBuf,
    /// Queries
    queries: PathBuf,
    /// Servers
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=64))]
    servers: u64,
    /// Length of the beam
    #[arg(long, value_name = "L", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    search_list: u32,
    /// Queries, from the first on
    #[arg(long, value_name = "N", default_value_t = 1000)]
    most_queries: usize,
    /// Seed of the division and of the cuts
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A hop: the block that it reads, and the node that asks for it.
#[derive(Clone, Copy)]
struct Hop {
    block: u32,
    node: u32,
}

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    servers: u64,
    search_list: u32,
    queries: usize,
    hops_per_query: f64,
    /// Shares of hops that leave their server.
    division: f64,
    limit_blocks: f64,
    limit_nodes: f64,
    division_over_limit_blocks: f64,
    division_over_limit_nodes: f64,
}

/// Runs `stratann-lab cut`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let index = Index::open(&args.index, OpenOptions::default())?;
    if index.manifest().kind() != Some(IndexKind::DiskGraph) {
        return Err(Error::bad_input(format!("{} is no disk-graph", args.index.display())));
    }
    let printer = ProgressPrinter::new(output);
    let hops = hops(args, &index, &printer, output)?;
    let options = PartitionOptions { seed: args.seed, ..PartitionOptions::new(args.servers as usize) };
    let placed = spread::place(&index, &options, &printer)?;
    let cuts = whole_cuts(&args.index, args.servers as usize, args.seed, &printer)?;
    printer.finish();
    let first_home = |hop: &Hop| placed.placement.replicas(hop.block).trailing_zeros();
    let division = leaving(&hops, first_home);
    let limit_blocks = leaving(&hops, |hop| cuts.blocks[hop.block as usize]);
    let limit_nodes = leaving(&hops, |hop| cuts.nodes[hop.node as usize]);
    let document = Document {
        index: Named(&args.index),
        servers: args.servers,
        search_list: args.search_list,
        queries: hops.len(),
        hops_per_query: hops.iter().map(Vec::len).sum::<usize>() as f64 / hops.len().max(1) as f64,
        division,
        limit_blocks,
        limit_nodes,
        division_over_limit_blocks: division / limit_blocks,
        division_over_limit_nodes: division / limit_nodes,
    };
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

/// The hops of all queries.
fn hops(args: &Args, index: &Index, progress: &dyn Progress, output: Output) -> Result<Vec<Vec<Hop>>> {
    let queries = Queries::open(&args.queries, index.manifest(), output)?;
    let count = queries.count().min(args.most_queries);
    let mut rows = Vec::new();
    queries.read(0, count, &mut rows)?;
    let options = SearchOptions {
        effort: Effort::SearchList(args.search_list, None),
        width: stratann_engine::exec::Width::Fixed(1),
        ..SearchOptions::default()
    };
    progress.stage("tracing queries", count as u64, "queries");
    let traced = rows.par_chunks(rows.len() / count.max(1)).map(|row| {
        let trace = explain(index, row, &options)?;
        progress.advance(1);
        if trace.complete { Ok(hops_of(&trace)) } else { Err(Error::corrupt(trace.failure)) }
    });
    traced.collect()
}

fn hops_of(trace: &Trace) -> Vec<Hop> {
    let rounds = trace.event::<BlockRounds>().map_or(&[][..], |all| &all.rounds);
    let reads = rounds.iter().flat_map(|round| &round.reads);
    reads.filter_map(|read| Some(Hop { block: read.block, node: read.asked_by?.node })).collect()
}

/// Share of all hops whose server is not that of the hop before.
fn leaving<S: PartialEq>(queries: &[Vec<Hop>], server: impl Fn(&Hop) -> S) -> f64 {
    let hops: usize = queries.iter().map(Vec::len).sum();
    let pairs = queries.iter().flat_map(|hops| hops.windows(2));
    let left = pairs.filter(|pair| server(&pair[0]) != server(&pair[1])).count();
    left as f64 / hops.max(1) as f64
}

fn text(document: &Document<'_>) -> String {
    let row = |what: &str, share: f64| {
        vec![what.into(), format!("{:.1} %", 100.0 * share), format!("{:.2}", document.division / share)]
    };
    let rows = [
        row("this division", document.division),
        row("limit: whole graph of blocks", document.limit_blocks),
        row("limit: whole graph of nodes", document.limit_nodes),
    ];
    format!(
        "{} servers, {} queries of {:.1} hops\n{}",
        document.servers,
        document.queries,
        document.hops_per_query,
        table(&["", "hops that leave", "division over it"], &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_that_leave_are_counted() {
        let hops = |nodes: &[u32]| nodes.iter().map(|&node| Hop { block: node / 10, node }).collect();
        let queries: Vec<Vec<Hop>> = vec![hops(&[1, 2, 11, 25]), hops(&[30]), hops(&[])];
        assert_eq!(leaving(&queries, |hop| hop.block), 2.0 / 5.0);
        assert_eq!(leaving(&queries, |hop| hop.node), 3.0 / 5.0);
    }
}
