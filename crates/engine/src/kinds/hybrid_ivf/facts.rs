//! Facts of a `hybrid-ivf` in the manifest besides those of every index.

use crate::files;
use crate::kinds::facts::KindFacts;
use serde::{Deserialize, Serialize};
use stratann_storage::profile::{LocalCosts, Measurement, Profile};

/// Constants of the kind.
pub(crate) const FACTS: KindFacts = KindFacts {
    stop_name: ("early stop", "M"),
    recall_options: "more --code-bytes or --nav-samples",
    unit_names: ("list", "lists"),
    group_name: "clusters",
    is_spreadable: true,
    scores_remotely: true,
    learns: true,
    data_role: files::LISTS,
    has_nodes_in_blocks: false,
    ..KindFacts::USUAL
};

pub use crate::clusterings::sizes::SizeStats;
use crate::units::ranges_bytes;

/// The section of a `hybrid-ivf` in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListSection {
    /// Lists, clusters and reads.
    #[serde(rename = "clusters")]
    pub facts: ListFacts,
    /// Why its clusters have the local indexes that they have; absent in indexes from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
}

/// Lists, clusters and reads of a `hybrid-ivf`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListFacts {
    /// Inverted lists.
    pub lists: u32,
    /// Clusters whose local index is flat, a graph, an inverted file.
    pub kinds: [u32; 3],
    /// Sizes of the clusters.
    pub sizes: SizeStats,
    /// Nodes of the navigation graph.
    pub nav_nodes: u32,
    /// Bytes of a code.
    pub code_bytes: usize,
    /// Bytes of one read at most.
    pub read_max: u32,
    /// Unwanted bytes that are read rather than splitting a read in two.
    pub gap_max: u32,
}

impl ListFacts {
    /// Number of clusters.
    pub(crate) fn clusters(&self) -> u32 {
        self.kinds.iter().fold(0, |sum: u32, &count| sum.saturating_add(count))
    }

    /// Bytes of a table of the ranges of all lists: codes and records of each, edges of each graph.
    pub(crate) fn ranges_bytes(&self) -> u64 {
        ranges_bytes(2 * u64::from(self.lists) + u64::from(self.kinds[1]))
    }
}

/// Choice of the local indexes: kept in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// RAM for what may lie in RAM or on disk, bytes; none when no budget was given and nothing but small tables was
    /// to lie in RAM.
    pub budget_bytes: Option<u64>,
    /// RAM that the plan takes of it.
    pub ram_bytes: u64,
    /// Predicted cost of the visits of a query that visits clusters in proportion to their weights, microseconds a
    /// visit.
    pub visit_us: f64,
    /// No plan under this budget costs less.
    pub bound_us: f64,
    /// Clusters that each way to hold a cluster was chosen for.
    pub ways: Vec<WayReport>,
    /// Predicted cost of uniform plans on disk, microseconds a visit: flat, graph, ivf; none where it does not fit in
    /// the budget.
    pub uniform_us: [Option<f64>; 3],
    /// Whether weights are observed visits; otherwise they are the sizes.
    pub observed: bool,
    /// The constants that were fitted.
    pub local: LocalCosts,
    /// A read under load, microseconds; and for each KiB of it.
    pub read_us: f64,
    /// See `read_us`.
    pub kib_us: f64,
    /// A distance to a full vector, microseconds.
    pub distance_us: f64,
    /// Profile that the plan was made by; absent in indexes from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<PlanProfile>,
}

impl PlanReport {
    /// Share of the members whose codes are planned to lie in RAM.
    pub(crate) fn resident_share(&self) -> f64 {
        let of = |ways: &mut dyn Iterator<Item = &WayReport>| ways.map(|way| way.members as f64).sum::<f64>();
        of(&mut self.ways.iter().filter(|way| way.in_ram)) / of(&mut self.ways.iter()).max(1.0)
    }
}

/// The profile that a plan was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanProfile {
    /// Model of the processor.
    pub cpu: String,
    /// Kind of the file system, and the mounted device.
    pub file_system: String,
    /// See `file_system`.
    pub device: String,
    /// I/O back end of the reads that were measured.
    pub io_backend: String,
    /// Time of the measurement; absent in profiles of before it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Measurement>,
    /// Reads under way, what a read took then, microseconds, and what each of its bytes did, nanoseconds.
    pub depth: u32,
    /// See `depth`.
    pub fixed_us: f64,
    /// See `depth`.
    pub ns_per_byte: f64,
}

impl PlanProfile {
    pub(crate) fn of(profile: &Profile) -> PlanProfile {
        let (origin, loaded) = (profile.origin.clone(), profile.disk.loaded);
        PlanProfile {
            cpu: origin.cpu,
            file_system: origin.file_system,
            device: origin.device,
            io_backend: origin.io_backend,
            measurement: profile.measurement.clone(),
            depth: loaded.depth,
            fixed_us: loaded.fixed_us,
            ns_per_byte: loaded.ns_per_byte,
        }
    }
}

/// Clusters that one way to hold a cluster was chosen for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WayReport {
    /// `flat`, `graph` or `ivf`.
    pub kind: String,
    /// Whether its codes lie in RAM.
    pub in_ram: bool,
    /// Clusters.
    pub clusters: u64,
    /// Members of these clusters.
    pub members: u64,
    /// Members of the smallest and the largest of them.
    pub sizes: [u64; 2],
    /// Predicted cost of a visit, microseconds, by weight.
    pub visit_us: f64,
    /// RAM.
    pub ram_bytes: u64,
}
