//! Directory of an index's inverted lists: their offsets in the file and their grouping.
//!
//! The vectors of one k-means cell form a cluster of vectors. It is one inverted list, or several sub-lists where the
//! cell is divided. Lists are numbered by cell, members by list, so a few ascending tables describe all of them.

use alloc::vec::Vec;

use super::edges;
use super::inverted_list::ListLayout;
use crate::PAGE;

/// Local index of a cluster of vectors: OrchANN §5.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LocalKind {
    /// All codes are scanned.
    #[default]
    Flat = 0,
    /// A graph over the members is searched.
    Graph = 1,
    /// The cluster is divided into sub-lists; the nearest are scanned.
    Ivf = 2,
}

impl LocalKind {
    /// Every kind, in the order of its number.
    pub const ALL: [LocalKind; 3] = [LocalKind::Flat, LocalKind::Graph, LocalKind::Ivf];

    /// The name used in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            LocalKind::Flat => "flat",
            LocalKind::Graph => "graph",
            LocalKind::Ivf => "ivf",
        }
    }
}

/// A range of whole pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Number of the first page.
    pub first: u32,
    /// Number of pages.
    pub count: u32,
    /// Offset of the first byte within the pages.
    pub skip: u32,
}

impl Pages {
    /// Pages that hold `length` bytes from `offset` on.
    pub fn of(offset: u64, length: u64) -> Pages {
        let page = PAGE as u64;
        let first = offset / page;
        Pages {
            first: first as u32,
            count: ((offset + length).div_ceil(page) - first) as u32,
            skip: (offset % page) as u32,
        }
    }
}

/// Directory of one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Offset of each list's codes in the file.
    pub codes: Vec<u64>,
    /// Offset of each list's records in the file; records are contiguous.
    pub records: Vec<u64>,
    /// Id of the first member of each list, and the end of the last.
    pub ids: Vec<u32>,
    /// First list of each cluster, and the end of the last.
    pub lists: Vec<u32>,
    /// Local index of each cluster.
    pub kinds: Vec<LocalKind>,
    /// Most neighbours of a member in a local graph.
    pub degree: u32,
    /// Offset of the edges of each cluster, see [`super::edges`]; [`NO_EDGES`] where it has none.
    pub edges: Vec<u64>,
    /// Default entry point of each cluster's graph, as a member number within the cluster.
    pub entries: Vec<u32>,
}

/// Offset that stands for absent edges.
pub const NO_EDGES: u64 = u64::MAX;

impl Directory {
    /// Number of clusters.
    pub fn clusters(&self) -> u32 {
        self.kinds.len() as u32
    }

    /// Number of lists.
    pub fn list_count(&self) -> u32 {
        self.codes.len() as u32
    }

    /// Number of members of a list.
    pub fn members(&self, list: u32) -> u32 {
        let at = list as usize;
        self.ids.get(at + 1).map_or(0, |end| end - self.ids[at])
    }

    /// The list that holds a member.
    pub fn list_of(&self, id: u32) -> u32 {
        (self.ids.partition_point(|&first| first <= id) as u32).saturating_sub(1)
    }

    /// The cluster that a list belongs to.
    pub fn cluster_of(&self, list: u32) -> u32 {
        (self.lists.partition_point(|&first| first <= list) as u32).saturating_sub(1)
    }

    /// The lists of a cluster.
    pub fn lists_of(&self, cluster: u32) -> core::ops::Range<u32> {
        let at = cluster as usize;
        match self.lists.get(at..at + 2) {
            Some(ends) => ends[0]..ends[1],
            None => 0..0,
        }
    }

    /// The ids of a cluster's members.
    pub fn members_of(&self, cluster: u32) -> core::ops::Range<u32> {
        let lists = self.lists_of(cluster);
        self.ids[lists.start as usize]..self.ids[lists.end as usize]
    }

    /// Whether a cluster is a graph whose edges are stored.
    pub fn has_edges(&self, cluster: u32) -> bool {
        let at = cluster as usize;
        self.kinds[at] == LocalKind::Graph && self.edges[at] != NO_EDGES
    }

    /// Pages with the edges of the `number`-th member of a cluster that has edges.
    pub fn edges_at(&self, cluster: u32, number: u32) -> Pages {
        edges::place(self.degree as usize, self.edges[cluster as usize], number)
    }

    /// The adjacency lists of a cluster in one page: the number of the first member, and how many. `None` when there
    /// are none. A page may hold those of several clusters.
    pub fn edges_in_page(&self, cluster: u32, page: u32) -> Option<(u32, u32)> {
        let members = self.members_of(cluster).len() as u64;
        let first = self.edges_at(cluster, 0);
        let per_page = u64::from(edges::per_page(self.degree as usize));
        let skipped = u64::from(first.skip) / edges::edge_bytes(self.degree as usize) as u64;
        let slot = u64::from(page.checked_sub(first.first)?) * per_page;
        let from = slot.saturating_sub(skipped);
        let to = (slot + per_page - skipped).min(members);
        (from < to).then(|| (from as u32, (to - from) as u32))
    }

    /// Offset of a member's record.
    pub fn record_at(&self, shape: &ListLayout, id: u32) -> u64 {
        let list = self.list_of(id) as usize;
        let slot = id - self.ids[list];
        self.records[list] + u64::from(slot) * shape.record_bytes() as u64
    }

    /// Whether a list's records follow its codes, so that one read covers both.
    pub fn is_whole(&self, shape: &ListLayout, list: u32) -> bool {
        let at = list as usize;
        self.records[at] == self.codes[at] + shape.list_codes_bytes(self.members(list) as usize) as u64
    }

    /// Returns whether all numbers are valid for a file of `bytes` bytes with `nodes` members. A directory that was
    /// read from a file must be checked before use.
    pub fn is_consistent(&self, shape: &ListLayout, nodes: u32, bytes: u64) -> bool {
        let lists = self.codes.len();
        let ascends = |table: &[u32], end: u32| {
            table.first() == Some(&0) && table.last() == Some(&end) && table.windows(2).all(|w| w[0] <= w[1])
        };
        self.records.len() == lists
            && self.ids.len() == lists + 1
            && self.lists.len() == self.kinds.len() + 1
            && ascends(&self.ids, nodes)
            && ascends(&self.lists, lists as u32)
            && (0..lists as u32).all(|list| {
                let members = self.members(list) as usize;
                let fits =
                    |at: u64, length: usize| at.checked_add(length as u64).is_some_and(|end| end <= bytes);
                fits(self.codes[list as usize], shape.list_codes_bytes(members))
                    && fits(self.records[list as usize], members * shape.record_bytes())
            })
            && self.are_edges_consistent(bytes)
    }

    fn are_edges_consistent(&self, bytes: u64) -> bool {
        let (clusters, degree) = (self.kinds.len(), self.degree as usize);
        degree <= edges::MAX_DEGREE
            && self.edges.len() == clusters
            && self.entries.len() == clusters
            && (0..clusters as u32).all(|cluster| {
                let start = self.edges[cluster as usize];
                let members = self.members_of(cluster).len() as u32;
                start == NO_EDGES
                    || start <= bytes
                        && edges::is_start(degree, start)
                        && edges::end_of(degree, start, members) <= bytes
                        && self.entries[cluster as usize] < members.max(1)
            })
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        16 * self.codes.len() + 4 * (self.ids.len() + self.lists.len()) + 13 * self.kinds.len()
    }
}
