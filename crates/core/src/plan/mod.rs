//! One page per kind of index: which rooms its queries go through.

pub mod disk_graph;
pub mod flat;

use stratann_kernel::codes::Codebook;
use stratann_kernel::{DType, Metric};

use crate::format::block;
use crate::format::block_map::BlockMap;
use crate::place::Here;
use crate::query::{Arrival, Arrived, Loss, Outcome, QueryState, Scratch};
use crate::route::HeadGraph;

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
    pub block: block::Shape,
    /// What `disk-graph` has besides its blocks; `flat` has none.
    pub graph: Option<GraphView<'a>>,
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
    match &view.graph {
        Some(graph) => disk_graph::step(state, view, graph, scratch, arrived),
        None => flat::step(state, view, scratch, arrived),
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
    let mut order = core::mem::take(&mut scratch.order);
    order.clear();
    order.extend(0..arrived.len() as u32);
    order.sort_unstable_by_key(|&i| arrived[i as usize].tag);
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
