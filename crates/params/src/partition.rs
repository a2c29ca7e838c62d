//! Parameters of partitions over servers.

use std::path::PathBuf;

use crate::choices::IndexKind::DiskGraph;
use crate::choices::{DivisionName, IndexKind, MethodName};
use crate::{Level, Stage, Unit};

params! {
    /// Partitions over servers
    #[derive()]
    pub struct PartitionSettings: Partition of [DiskGraph, HybridIvf, GridIvf] {
        /// Servers that hold each block or list; further replicas are placed where they save hand-overs
        replicas: usize = 1,
            { shown: "R", role: "replicas", also: &[Stage::Simulate], level: Level::Usual };
        /// Limit of all memory of this command, such as 512MiB
        ///
        /// When memory is short, incoming edges of blocks have no weights and there are fewer cells: a few more edges
        /// are cut.
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", level: Level::Usual };
        /// Capacities of the servers in proportion, such as 2,2,1 where the third has half of the memory of the others
        capacities: Vec<f64> = Vec::new(),
            { shown: "N,…", usual: "equal", role: "replicas", kinds: &[DiskGraph], level: Level::Usual };
        /// Seed of all random choices
        seed: u64 = 1, { kinds: &IndexKind::ALL, also: &[Stage::Simulate], level: Level::Usual };
        /// Threads; they do not change the result
        threads: Option<usize> = None, { range: 1.0..=1024.0, usual: "all cores", level: Level::Usual };
        /// Replace the index in DIR
        force: bool = false, { level: Level::Usual };
    }
}

params! {
    /// Partitions of disk-graph and hybrid-ivf
    #[derive(Copy)]
    pub struct PlacementSettings: Partition of [DiskGraph, HybridIvf] {
        /// Share of the blocks with one additional replica: those with the most cut edges
        overlap: f64 = 0.0,
            { shown: "SHARE", range: 0.0..=1.0, role: "replicas", kinds: &[DiskGraph], also: &[Stage::Simulate] };
        /// Partitioning method
        method: MethodName = MethodName::Cells, { role: "division", also: &[Stage::Simulate] };
    }
}

params! {
    /// Partitions of hybrid-ivf
    #[derive()]
    pub struct TrafficSettings: Partition of [HybridIvf] {
        /// Deal inverted lists by what queries have visited, too
        ///
        /// A hybrid-ivf counts visits while it is searched (learnt.bin).
        traffic: bool = true,
            { off: "Deal inverted lists by their bytes alone, not also by what queries have visited" };
        /// Deal inverted lists by what the servers of an earlier partition in DIR have learnt, too (repeatable)
        traffic_from: Vec<PathBuf> = Vec::new(),
            { option: Some("traffic"), shown: "DIR", role: "queries to come", conflicts: &["traffic"] };
    }
}

params! {
    /// Separate indexes of disk-graph
    #[derive(Copy)]
    pub struct SeparateSettings: Partition of [DiskGraph] {
        /// Build a separate index per server over its own rows instead, for scatter-gather (to compare)
        ///
        /// Rows are divided like blocks, and each server's index is built with the parameters of the source.
        /// DIR/server-00, DIR/server-01, … are ordinary indexes.
        scatter_gather: bool = false;
        /// Number of separate indexes; each is partitioned over an equal share of the servers
        ///
        /// A query is asked of every part, and handed over within each. --replicas and --overlap hold within a part.
        parts: Option<usize> = None, { shown: "N", usual: "one per server", requires: &["scatter_gather"] };
    }
}

params! {
    /// Plans of grid-ivf
    #[derive()]
    pub struct DivisionSettings: Partition of [GridIvf] {
        /// Plan of the division
        mode: DivisionName = DivisionName::Harmony, { role: "division" };
        /// Queries as they will come, for the planner
        queries: Option<PathBuf> = None,
            { shown: "FILE", usual: "vectors of the index", role: "queries to come" };
        /// Lists that a query of the sample visits
        nprobe: Option<u32> = None,
            { shown: "N", range: 1.0..=65_536.0, usual: "as calibrated for recall 0.95, or 16" };
        /// Recall that queries ask for: visit as many lists as were calibrated for it
        recall: Option<f64> = None, { shown: "RECALL", usual: "0.95", conflicts: &["nprobe"] };
        /// Prices of work and messages from FILE, which `stratann simulate --json` printed
        ///
        /// Equal costs, index and queries give equal plans.
        costs: Option<PathBuf> = None, { shown: "FILE", usual: "timed" };
        /// Weight of the imbalance of servers against the work of all
        alpha: Option<f64> = None,
            { shown: "FACTOR", range: 0.0..=f64::MAX, usual: "the number of servers" };
        /// Microseconds of a message, for the planner
        message_us: Option<f64> = None,
            { shown: "TIME", range: 0.0..=f64::MAX, usual: "measured on the loopback interface" };
        /// Nanoseconds of each byte of a message, for the planner
        byte_ns: Option<f64> = None,
            { shown: "TIME", range: 0.0..=f64::MAX, usual: "measured on the loopback interface" };
    }
}
