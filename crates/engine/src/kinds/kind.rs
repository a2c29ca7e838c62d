//! The names of the kinds, and what holds for a kind whatever the index.

use crate::files;

/// Kind of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A graph on disk, searched by codes in RAM.
    DiskGraph,
    /// Inverted lists on disk, each cluster of vectors with a local index of its own.
    HybridIvf,
    /// Inverted lists in memory, scanned group of components by group.
    GridIvf,
    /// Codes with a scorer, on a GPU or in RAM; vectors on disk.
    GpuIvf,
    /// Clusters of vectors, each with a graph, laid out for the memory of other machines.
    RemoteHnsw,
    /// All vectors, scanned.
    Flat,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::DiskGraph, Kind::HybridIvf, Kind::GridIvf, Kind::GpuIvf, Kind::RemoteHnsw, Kind::Flat];
    /// Those whose vectors are on disk, among which `--kind auto` chooses.
    pub const ON_DISK: [Kind; 3] = [Kind::DiskGraph, Kind::HybridIvf, Kind::Flat];

    /// The name used in manifests and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::DiskGraph => "disk-graph",
            Kind::HybridIvf => "hybrid-ivf",
            Kind::GridIvf => "grid-ivf",
            Kind::GpuIvf => "gpu-ivf",
            Kind::RemoteHnsw => "remote-hnsw",
            Kind::Flat => "flat",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether recall has a cost. Answers of `flat` are exact.
    pub const fn has_curve(self) -> bool {
        match self {
            Kind::DiskGraph | Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw => true,
            Kind::Flat => false,
        }
    }

    /// Whether it can be partitioned over servers.
    pub const fn is_spreadable(self) -> bool {
        match self {
            Kind::DiskGraph | Kind::HybridIvf | Kind::GridIvf => true,
            Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => false,
        }
    }

    /// Whether a planner divides its components over servers, too.
    pub const fn is_sliced(self) -> bool {
        match self {
            Kind::GridIvf => true,
            Kind::DiskGraph | Kind::HybridIvf | Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => false,
        }
    }

    /// Whether its queries can ask other servers for scores of what is there.
    pub const fn scores_remotely(self) -> bool {
        match self {
            Kind::HybridIvf | Kind::GridIvf => true,
            Kind::DiskGraph | Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => false,
        }
    }

    /// Whether candidates are ranked by a scorer of codes, which may be a GPU.
    pub const fn has_scorer(self) -> bool {
        match self {
            Kind::GpuIvf => true,
            Kind::DiskGraph | Kind::HybridIvf | Kind::GridIvf | Kind::RemoteHnsw | Kind::Flat => false,
        }
    }

    /// Whether candidates are compared by their vectors from the start, without codes.
    pub(crate) const fn compares_vectors(self) -> bool {
        match self {
            Kind::RemoteHnsw => true,
            Kind::DiskGraph | Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::Flat => false,
        }
    }

    /// What a server holds as a whole: the name of one, and of several.
    pub const fn unit_names(self) -> (&'static str, &'static str) {
        match self {
            Kind::DiskGraph | Kind::GpuIvf | Kind::Flat => ("block", "blocks"),
            Kind::HybridIvf | Kind::GridIvf => ("list", "lists"),
            Kind::RemoteHnsw => ("cluster", "clusters"),
        }
    }

    /// What stays together on a server, several of them.
    pub const fn group_name(self) -> &'static str {
        match self {
            Kind::DiskGraph | Kind::GpuIvf | Kind::Flat => "blocks",
            Kind::HybridIvf | Kind::RemoteHnsw => "clusters",
            Kind::GridIvf => "lists",
        }
    }

    /// Whether an open index can learn from its queries.
    pub const fn learns(self) -> bool {
        match self {
            Kind::DiskGraph | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => false,
            Kind::HybridIvf => true,
        }
    }

    /// Whether queries share their reads: those of a batch are gathered, and each is made once.
    pub const fn shares_reads(self) -> bool {
        match self {
            Kind::RemoteHnsw => true,
            Kind::DiskGraph | Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::Flat => false,
        }
    }

    /// Whether all reads of an index have the same length.
    pub const fn has_equal_reads(self) -> bool {
        match self {
            Kind::DiskGraph | Kind::GridIvf | Kind::GpuIvf | Kind::Flat => true,
            Kind::HybridIvf | Kind::RemoteHnsw => false,
        }
    }

    /// Whether several processes can share a build.
    pub const fn is_built_in_tasks(self) -> bool {
        match self {
            Kind::DiskGraph | Kind::Flat => true,
            Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw => false,
        }
    }

    /// The option that says how hard to search, where recall is not given.
    pub const fn effort_option(self) -> &'static str {
        match self {
            Kind::DiskGraph | Kind::Flat => "--search-list",
            Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw => "--nprobe",
        }
    }

    /// What raises the highest recall that calibration reaches.
    pub const fn recall_options(self) -> &'static str {
        match self {
            Kind::DiskGraph => "more --code-bytes or --degree",
            Kind::HybridIvf => "more --code-bytes or --nav-samples",
            Kind::GridIvf => "fewer --lists",
            Kind::GpuIvf => "more --code-bytes or --epsilon",
            Kind::RemoteHnsw => "more --ef-construction, or fewer --partitions",
            Kind::Flat => "nothing: every search is exact",
        }
    }

    /// The name of the effort of a search, as tables print it.
    pub const fn effort_name(self) -> &'static str {
        match self {
            Kind::DiskGraph | Kind::Flat => "list",
            Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw => "nprobe",
        }
    }

    /// The name of the rule that ends a search early, and the unit of its share, as tables print them.
    pub const fn stop_name(self) -> (&'static str, &'static str) {
        match self {
            Kind::DiskGraph | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => {
                ("patience", "L")
            }
            Kind::HybridIvf => ("early stop", "M"),
        }
    }

    /// The role of the file that queries read.
    pub(crate) const fn data_role(self) -> &'static str {
        match self {
            Kind::DiskGraph | Kind::GpuIvf | Kind::Flat => files::BLOCKS,
            Kind::HybridIvf => files::LISTS,
            Kind::GridIvf => files::GRID,
            Kind::RemoteHnsw => files::REGION,
        }
    }

    /// Whether all units that a server holds are in its memory.
    pub(crate) const fn is_resident(self) -> bool {
        match self {
            Kind::GridIvf => true,
            Kind::DiskGraph | Kind::HybridIvf | Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => false,
        }
    }

    /// Whether blocks hold adjacency lists.
    pub(crate) const fn has_adjacency_in_blocks(self) -> bool {
        match self {
            Kind::DiskGraph => true,
            Kind::HybridIvf | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw | Kind::Flat => false,
        }
    }

    /// Whether blocks hold whole vectors. Those of `hybrid-ivf` are pages of a file of lists.
    pub(crate) const fn has_nodes_in_blocks(self) -> bool {
        match self {
            Kind::DiskGraph | Kind::GpuIvf | Kind::Flat => true,
            Kind::HybridIvf | Kind::GridIvf | Kind::RemoteHnsw => false,
        }
    }
}
