//! One page per kind of index: which rooms its queries go through.

pub mod disk_graph;
pub mod flat;
pub mod hybrid_ivf;

use alloc::sync::Arc;
use alloc::vec::Vec;

use stratann_kernel::codes::Codebook;
use stratann_kernel::{DType, Metric};

use crate::format::block;
use crate::format::block_map::BlockMap;
use crate::format::directory::Directory;
use crate::format::inverted_list;
use crate::place::Here;
use crate::query::{Arrival, Arrived, Loss, Outcome, QueryState, Scratch};
use crate::route::{HeadGraph, NavGraph};

/// The part of an index that lies in RAM, as a query sees it.
#[derive(Clone, Copy, Debug)]
pub struct IndexView<'a> {
    /// Distance.
    pub metric: Metric,
    /// Element type.
    pub dtype: DType,
    /// Components of a vector.
    pub dim: usize,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// What all blocks have in common.
    pub block: block::BlockLayout,
    /// What `disk-graph` has besides its blocks; `flat` has none.
    pub graph: Option<GraphView<'a>>,
    /// What `hybrid-ivf` has.
    pub clusters: Option<ClusterView<'a>>,
    /// Where in a cluster the query is stepped; `None` where every block is at hand.
    pub here: Option<Here<'a>>,
}

/// What `disk-graph` keeps in RAM.
#[derive(Clone, Copy, Debug)]
pub struct GraphView<'a> {
    /// How to read the codes.
    pub codebook: &'a Codebook,
    /// Where the codes of nodes are.
    pub codes: Codes<'a>,
    /// Which block holds a node.
    pub map: &'a BlockMap,
    /// Mean squared error of the codes.
    pub code_error: f32,
    /// Where to begin.
    pub head: &'a HeadGraph,
}

/// What `hybrid-ivf` keeps in RAM.
#[derive(Clone, Copy, Debug)]
pub struct ClusterView<'a> {
    /// Where the lists lie.
    pub directory: &'a Directory,
    /// What all lists have in common.
    pub shape: inverted_list::ListLayout,
    /// How to read the codes.
    pub codebook: &'a Codebook,
    /// `clusters × dim` f16 as bytes.
    pub centroids: &'a [u8],
    /// For each cluster that is divided how many of its lists a visit scans.
    pub lists_planned: &'a [u32],
    /// Where the lists of clusters that are divided lie in space.
    pub sublists: &'a SubLists,
    /// Which clusters to visit.
    pub nav: &'a NavGraph,
    /// Heads that lie in RAM.
    pub resident: Resident<'a>,
    /// Lists whose records lie in RAM.
    pub resident_records: Resident<'a>,
    /// Hot members whose records lie in RAM.
    pub pinned: Pinned<'a>,
    /// Bytes that one read takes at most.
    pub read_max: u32,
    /// Bytes that are read in vain rather than making two reads of one.
    pub gap_max: u32,
}

/// The centroids of lists of divided clusters, each as a code of what its cluster's centroid leaves of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubLists {
    /// For each cluster its first entry in the tables below.
    pub first: Vec<u32>,
    /// ‖r̂‖² + 2⟨c, r̂⟩.
    pub terms: Vec<f32>,
    /// Codes, one after another.
    pub codes: Vec<u8>,
}

impl SubLists {
    /// Whether a cluster of so many lists has an entry for each.
    pub fn has_all(&self, cluster: u32, lists: usize) -> bool {
        let first = self.first.get(cluster as usize).map_or(usize::MAX, |&first| first as usize);
        first.checked_add(lists).is_some_and(|end| end <= self.terms.len())
    }
}

/// Heads, or records, of lists in RAM: for each list `None` when it is on disk. Empty when all are.
pub type Resident<'a> = &'a [Option<Arc<[u8]>>];

/// Records of hot members in RAM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinned<'a> {
    /// The members, ascending.
    pub ids: &'a [u32],
    /// Their records, in the same order.
    pub records: &'a [Arc<[u8]>],
}

impl<'a> Pinned<'a> {
    /// The record of a member.
    pub fn get(&self, id: u32) -> Option<&'a [u8]> {
        let at = self.ids.binary_search(&id).ok()?;
        self.records.get(at).map(|record| &record[..])
    }
}

impl<'a> ClusterView<'a> {
    /// Mean squared distance of a cluster's members to its centroid.
    pub(crate) fn spread(&self, cluster: u32) -> f32 {
        self.nav.terms.get(cluster as usize).copied().unwrap_or(0.0)
    }

    /// A centroid, `dim` f16 as bytes.
    pub fn centroid(&self, cluster: u32) -> &'a [u8] {
        let size = 2 * self.shape.dim;
        &self.centroids[cluster as usize * size..(cluster as usize + 1) * size]
    }

    /// The head of a list, when it lies in RAM.
    pub fn resident_head(&self, list: u32) -> Option<&'a [u8]> {
        self.resident.get(list as usize)?.as_deref()
    }

    /// The record of a member that lies in RAM.
    pub fn record_in_ram(&self, id: u32) -> Option<&'a [u8]> {
        if self.resident_records.is_empty() {
            return self.pinned.get(id);
        }
        let (list, size) = (self.directory.list_of(id) as usize, self.shape.record_bytes());
        match self.resident_records.get(list)? {
            None => self.pinned.get(id),
            Some(records) => {
                let at = (id - self.directory.ids[list]) as usize * size;
                records.get(at..at + size)
            }
        }
    }

    /// Where what is read of a list ends: its head, with the records where these follow.
    pub(crate) fn list_end(&self, list: u32) -> u64 {
        let members = self.directory.members(list) as usize;
        let at = self.directory.codes[list as usize] + self.shape.list_codes_bytes(members) as u64;
        if self.directory.is_whole(&self.shape, list) {
            at + (members * self.shape.record_bytes()) as u64
        } else {
            at
        }
    }
}

/// Where codes are. Distances are the same wherever a code comes from.
#[derive(Clone, Copy, Debug)]
pub enum Codes<'a> {
    /// In RAM: one per node.
    All(&'a [u8]),
    /// In the blocks, beside the ids that their lists name; in RAM those of the head graph's nodes alone, in their order there.
    Head(&'a [u8]),
}

impl IndexView<'_> {
    /// Whether the distance of any candidate can be computed here, so that a state may come without.
    pub fn rescores(&self) -> bool {
        !matches!(self.graph, Some(GraphView { codes: Codes::Head(_), .. }))
    }
}

/// The transition of whichever kind this is.
pub(crate) fn step(
    state: &mut QueryState,
    view: &IndexView<'_>,
    scratch: &mut Scratch,
    arrived: &[Arrival<'_>],
) {
    match (&view.graph, &view.clusters) {
        (Some(graph), _) => disk_graph::step(state, view, graph, scratch, arrived),
        (None, Some(clusters)) => hybrid_ivf::step(state, view, clusters, scratch, arrived),
        (None, None) => flat::step(state, view, scratch, arrived),
    }
}

/// Takes the arrivals in the order of their tags, so that the order of arrival does not matter, and gives each block that
/// came to `absorb`. A block that was lost, or that `absorb` finds senseless, is looked for at another home; where there is none the query ends.
pub(crate) fn take_in(
    state: &mut QueryState,
    view: &IndexView<'_>,
    scratch: &mut Scratch,
    arrived: &[Arrival<'_>],
    mut absorb: impl FnMut(&mut QueryState, &mut Scratch, &block::Block<'_>) -> Option<()>,
) {
    let order = in_order(scratch, arrived);
    for &i in &order {
        let arrival = &arrived[i as usize];
        let Some(at) = state.outstanding.iter().position(|o| o.tag == arrival.tag) else { continue };
        let block = state.outstanding.swap_remove(at).block;
        let lost = match arrival.what {
            Arrived::Lost(loss) => Some(loss),
            Arrived::Bytes(bytes) => match block::Block::open(&view.block, bytes) {
                Ok(opened) => absorb(state, scratch, &opened).is_none().then_some(Loss::Damaged),
                Err(_) => Some(Loss::Damaged),
            },
        };
        match lost {
            None => state.found(block),
            Some(loss) if state.lose(view, block, loss) => {}
            Some(loss) => {
                state.finish(Outcome::Lost { block, loss });
                break;
            }
        }
    }
    scratch.order = order;
}

/// The places of the arrivals by their tags; goes back to `scratch.order`.
fn in_order(scratch: &mut Scratch, arrived: &[Arrival<'_>]) -> Vec<u32> {
    let mut order = core::mem::take(&mut scratch.order);
    order.clear();
    order.extend(0..arrived.len() as u32);
    order.sort_unstable_by_key(|&i| arrived[i as usize].tag);
    order
}
