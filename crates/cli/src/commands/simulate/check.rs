//! Options of `simulate` that exclude each other, and those of other kinds of index.

use stratann_capacity::servers::Mode;
use stratann_core::query::MAX_SEARCH_LIST;
use stratann_engine::kinds::kind::Kind;
use stratann_storage::{Error, Result};

use super::{Args, EntryName, ModeName, ScatterArgs};

/// The first option that is given although only servers have it.
fn given_for_servers(args: &Args) -> Option<&'static str> {
    let ScatterArgs { partitions, partition_list, match_recall } = &args.scatter;
    let all = [
        ("--servers", !args.servers.is_empty()),
        ("--mode", args.mode != [ModeName::Baton]),
        ("--rate", !args.rate.is_empty()),
        ("--in-flight", args.in_flight.is_some()),
        ("--replicas", args.replicas != 1),
        ("--overlap", args.overlap != 0.0),
        ("--partition", args.partition.is_some()),
        ("--entry", args.entry != EntryName::Any),
        ("--width", args.width != 1),
        ("--carry", args.carry.is_some()),
        ("--results", args.results.is_some()),
        ("--partitions", partitions.is_some()),
        ("--partition-list", partition_list.is_some()),
        ("--match-recall", *match_recall),
    ];
    all.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
}

/// The modes that a kind has: one without reads has nothing to fetch, and only a `hybrid-ivf` chooses whether lists of
/// other servers are scored there.
fn modes(kind: Option<Kind>) -> &'static [ModeName] {
    use ModeName::{Baton, Fetch, Forward, ScatterGather, Score};
    match kind {
        Some(Kind::HybridIvf) => &[Baton, Score, Forward, ScatterGather, Fetch],
        Some(Kind::GridIvf) => &[Baton, ScatterGather],
        _ => &[Baton, ScatterGather, Fetch],
    }
}

/// Checks for options that exclude each other.
pub(super) fn check(args: &Args, kind: Option<Kind>) -> Result<()> {
    let wrong = |what: String| Err(Error::bad_input(what));
    if kind == Some(Kind::RemoteHnsw) {
        return match given_for_servers(args) {
            Some(name) => wrong(format!(
                "{name} is for servers that hold parts of an index, and a remote-hnsw has compute nodes and memory \
                 nodes; leave it out, and give --compute-nodes"
            )),
            None => args.memory.check(&args.times),
        };
    }
    if args.servers.is_empty() || args.memory.is_given() {
        return wrong(format!(
            "--compute-nodes and the options of memory nodes are for a remote-hnsw, and {} is of kind {}; give \
             --servers",
            args.index.display(),
            kind.map_or("unknown", Kind::name)
        ));
    }
    if let Some(rate) = args.rate.iter().find(|&r| !(f64::MIN_POSITIVE..=1e9).contains(r)) {
        return wrong(format!("--rate is {rate}; use queries a second, above 0 and up to 1e9"));
    }
    let scatters = args.mode.contains(&ModeName::ScatterGather);
    let ScatterArgs { partitions, partition_list, match_recall } = &args.scatter;
    let possible = modes(kind);
    if let Some(mode) = args.mode.iter().find(|mode| !possible.contains(mode)) {
        let names: Vec<_> = possible.iter().map(|&mode| Mode::from(mode).name()).collect();
        return wrong(format!(
            "--mode {}: a {} does not work like this; use {}",
            Mode::from(*mode).name(),
            kind.map_or("index of an unknown kind", Kind::name),
            names.join(", ")
        ));
    }
    if !scatters && (partitions.is_some() || partition_list.is_some() || *match_recall) {
        return wrong(
            "--partitions, --partition-list and --match-recall belong to --mode scatter-gather; add it"
                .into(),
        );
    }
    if partitions.is_some() && args.servers.len() > 1 {
        return wrong("--partitions is for one number of servers; give only that number to --servers".into());
    }
    if let Some(list) = partition_list.filter(|l| !(1..=MAX_SEARCH_LIST).contains(l)) {
        return wrong(format!("--partition-list is {list}; use k to {MAX_SEARCH_LIST}"));
    }
    Ok(())
}
