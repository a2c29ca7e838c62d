//! Packing: which nodes of a graph share a block.

use stratann_core::PAGE;
use stratann_core::build::{Lists, pack};
use stratann_core::format::block::{self, BlockLayout};
use stratann_storage::Result;

use crate::stages::blocks::graph_file::{Cell, GraphReader, Records};
use crate::stages::blocks::placement::Packed;

/// Inputs of the number of nodes per block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    /// Nodes in the index.
    pub(crate) nodes: u64,
    /// Mean length of the adjacency lists.
    pub(crate) mean_list: f64,
    /// Whether the design assumes compressed lists, or 4 bytes per id.
    pub(crate) compressed: bool,
    /// Share of the lists that must fit; lists of a fuller block are cut at their far ends.
    pub(crate) keep: f64,
}

impl Density {
    /// Expected bytes of a node's adjacency list.
    fn list_bytes(&self) -> f64 {
        let kept = self.mean_list * self.keep;
        if !self.compressed {
            return 2.0 + 4.0 * kept;
        }
        let bits = 2.0 + (self.nodes as f64 / kept.max(1.0)).max(1.0).log2();
        (13.0 + 32.0 + bits * (kept - 1.0).max(0.0)) / 8.0
    }

    /// Nodes per block of this layout; at least one.
    pub(crate) fn nodes_per_block(&self, shape: &BlockLayout) -> usize {
        let each = shape.node_bytes() as f64 + if shape.adjacency { self.list_bytes() } else { 0.0 };
        ((shape.payload_bytes() as f64 / each) as usize).clamp(1, usize::from(u16::MAX))
    }

    /// Pages per block: the fewest that hold one node with its whole list.
    pub(crate) fn pages_per_block(&self, shape: &BlockLayout) -> usize {
        let one = (Density { keep: 1.0, ..*self }).list_bytes()
            + shape.node_bytes() as f64
            + block::HEADER as f64
            + 2.0;
        (one / PAGE as f64).ceil() as usize
    }
}

/// A subset of rows, numbered in their order: a bit per row, and half as much for counts.
struct Numbered {
    words: Vec<u64>,
    before: Vec<u32>,
}

impl Numbered {
    /// The rows that `members` give.
    fn new(rows: usize, members: impl Iterator<Item = u32>) -> Numbered {
        let mut words = vec![0u64; rows.div_ceil(64)];
        members.for_each(|row| words[row as usize / 64] |= 1 << (row % 64));
        let mut before = Vec::with_capacity(words.len());
        let mut sum = 0;
        for word in &words {
            before.push(sum);
            sum += word.count_ones();
        }
        Numbered { words, before }
    }

    /// Returns the number of a row in the subset; `None` for other rows.
    fn of(&self, row: u32) -> Option<u32> {
        let (at, bit) = (row as usize / 64, 1u64 << (row % 64));
        let word = self.words[at];
        (word & bit != 0).then(|| self.before[at] + (word & (bit - 1)).count_ones())
    }
}

/// Lists of a cell with local numbers; neighbours in other cells are left out.
struct CellLists {
    starts: Vec<u32>,
    ids: Vec<u32>,
}

impl CellLists {
    /// Renumbers the lists of the records at `places`.
    fn new(records: &Records, numbers: &Numbered, places: &[u32]) -> CellLists {
        let mut lists = CellLists { starts: vec![0], ids: Vec::new() };
        for &at in places {
            lists.ids.extend(records.list(at as usize).iter().filter_map(|&row| numbers.of(row)));
            lists.starts.push(lists.ids.len() as u32);
        }
        lists
    }
}

impl Lists for CellLists {
    fn list(&self, node: u32) -> &[u32] {
        &self.ids[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }
}

/// Options of the grouping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing<'a> {
    /// Nodes of a block, at most.
    pub(crate) nodes_per_block: usize,
    /// Group by the graph; otherwise nodes follow their rows.
    pub(crate) packed: bool,
    /// Make every block reachable: few nodes share one, and none of them may be a neighbour of another.
    pub(crate) make_reachable: bool,
    /// Calibration rows (ascending), which share blocks with each other only. Otherwise a row would find its neighbours
    /// in its own block, unlike real queries.
    pub(crate) apart: &'a [u32],
}

/// Groups a cell's `members` (ascending), of a set of `rows` rows, into blocks.
pub(crate) fn pack_cell(
    graph: &GraphReader,
    cell: (usize, &Cell),
    members: &[u32],
    rows: usize,
    packing: &Packing<'_>,
) -> Result<Packed> {
    let is_apart = |row: &u32| packing.packed && packing.apart.binary_search(row).is_ok();
    let (alone, together): (Vec<u32>, Vec<u32>) =
        (0..members.len() as u32).partition(|&l| is_apart(&members[l as usize]));
    let chunks = |of: &[u32]| of.chunks(packing.nodes_per_block).map(<[u32]>::to_vec).collect::<Vec<_>>();
    let mut groups = if packing.packed {
        let numbers = Numbered::new(rows, together.iter().map(|&l| members[l as usize]));
        let records = graph.read(cell.0, cell.1)?;
        let lists = CellLists::new(&records, &numbers, &together);
        drop((records, numbers));
        let mut groups = pack::pack(&lists, together.len(), packing.nodes_per_block, EXCHANGE_PASSES);
        if packing.make_reachable {
            pack::make_reachable(&lists, &mut groups);
        }
        groups.into_iter().map(|g| g.into_iter().map(|i| together[i as usize]).collect()).collect()
    } else {
        chunks(&together)
    };
    groups.extend(chunks(&alone));
    Ok(Packed {
        counts: groups.iter().map(|g| g.len() as u16).collect(),
        rows: groups.iter().flatten().map(|&l| members[l as usize]).collect(),
    })
}

/// Rounds of exchange after the greedy growth; further ones change very little.
const EXCHANGE_PASSES: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Agrees with a plain table.
        #[test]
        fn rows_are_numbered_in_their_order(
            rows in 1usize..300,
            chosen in prop::collection::btree_set(0u32..300, 0..200),
        ) {
            let chosen: Vec<u32> = chosen.into_iter().filter(|&r| (r as usize) < rows).collect();
            let numbers = Numbered::new(rows, chosen.iter().copied());
            for row in 0..rows as u32 {
                prop_assert_eq!(numbers.of(row), chosen.binary_search(&row).ok().map(|at| at as u32));
            }
        }
    }
}
