//! Constants of a kind, whatever the index. Each kind has its own in its folder, and says there what differs from the
//! usual ones.

use crate::files;

/// Constants of a kind.
#[derive(Debug)]
pub struct KindFacts {
    /// Whether recall has a cost; otherwise every search is exact.
    pub has_curve: bool,
    /// Unit of the effort of a search.
    pub effort: EffortUnit,
    /// Name of the rule that ends a search early, and the unit of its share, as tables print them.
    pub stop_name: (&'static str, &'static str),
    /// Options that raise the highest recall of calibration.
    pub recall_options: &'static str,
    /// Name of a unit that a server holds as a whole, and of several.
    pub unit_names: (&'static str, &'static str),
    /// Name of several groups of units that stay together on a server.
    pub group_name: &'static str,
    /// Whether it can be partitioned over servers.
    pub is_spreadable: bool,
    /// Whether a planner divides its components over servers, too.
    pub is_sliced: bool,
    /// Whether its queries can ask other servers for scores of their units.
    pub scores_remotely: bool,
    /// Whether candidates are ranked by a scorer of codes, which may be a GPU.
    pub has_scorer: bool,
    /// Whether an open index can learn from its queries.
    pub learns: bool,
    /// Whether queries share their reads: those of a batch are gathered, and each is made once.
    pub shares_reads: bool,
    /// Share of the misses that a recall allows at which searches aim, where the curve is of queries made from rows.
    /// `None`: the hardest of these queries are measured apart, and have to reach the recall.
    pub(crate) misses_aimed: Option<f64>,
    /// Whether several processes can share a build.
    pub is_built_in_tasks: bool,
    /// Whether candidates are compared by their vectors from the start, without codes.
    pub(crate) compares_vectors: bool,
    /// Role of the file that queries read.
    pub(crate) data_role: &'static str,
    /// Whether all units that a server holds are in its memory.
    pub(crate) is_resident: bool,
    /// Whether blocks hold adjacency lists.
    pub(crate) has_adjacency_in_blocks: bool,
    /// Whether blocks hold whole vectors. Those of `hybrid-ivf` are pages of a file of lists.
    pub(crate) has_nodes_in_blocks: bool,
}

/// Unit of the effort of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffortUnit {
    /// Entries of a beam.
    Beam,
    /// Clusters that are visited.
    Clusters,
}

impl EffortUnit {
    /// The option that says how hard to search, where recall is not given.
    pub const fn option(self) -> &'static str {
        match self {
            EffortUnit::Beam => "--search-list",
            EffortUnit::Clusters => "--nprobe",
        }
    }

    /// The name of the effort, as tables print it.
    pub const fn name(self) -> &'static str {
        match self {
            EffortUnit::Beam => "list",
            EffortUnit::Clusters => "nprobe",
        }
    }
}

impl KindFacts {
    /// Facts of a kind of blocks without any capability, and of a kind that this program does not know.
    pub(crate) const USUAL: KindFacts = KindFacts {
        has_curve: true,
        effort: EffortUnit::Clusters,
        stop_name: ("patience", "L"),
        recall_options: "",
        unit_names: ("block", "blocks"),
        group_name: "blocks",
        is_spreadable: false,
        is_sliced: false,
        scores_remotely: false,
        has_scorer: false,
        learns: false,
        shares_reads: false,
        misses_aimed: None,
        is_built_in_tasks: false,
        compares_vectors: false,
        data_role: files::BLOCKS,
        is_resident: false,
        has_adjacency_in_blocks: false,
        has_nodes_in_blocks: true,
    };
}
