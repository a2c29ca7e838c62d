//! The default first homes: many small cells, and a cut through the graph of cells.
//!
//! BatANN (§4.3) cuts a graph over cells with a balanced partitioner, after Gottesbüren et al. ("Unleashing Graph
//! Partitioning for Large-Scale Nearest Neighbor Search", 2024). Here the cells hold blocks, and what two cells weigh
//! for each other is the number of the index's own edges between them: these are what a search will follow.

use rayon::prelude::*;
use stratann_storage::{Error, Result};

use super::divide::Shares;
use super::source::Source;
use crate::clusterings::kmeans;
use crate::parallel;

/// With up to so many blocks each is a cell of its own.
pub(super) const CELLS_MAX: usize = 8000;
const CELLS_MIN: usize = 2000;
const BLOCKS_PER_CELL: usize = 16;
const ITERATIONS: usize = 6;
/// Pairs of cells that are kept, for each cell; the lightest are forgotten.
const PAIRS_PER_CELL: usize = 128;
/// Counted edges that wait to be merged.
const PENDING: usize = 1 << 18;
/// Weights of all edges together stay below this: the partitioner sums in 32 bits.
const WEIGHT_MAX: u64 = 1 << 30;

/// Number of cells that suits so many blocks.
pub(super) fn count(blocks: usize) -> usize {
    if blocks <= CELLS_MAX { blocks } else { (blocks / BLOCKS_PER_CELL).clamp(CELLS_MIN, CELLS_MAX) }
}

/// Bytes of the graph of cells and of the partitioner, whose coarser graphs take about as much again.
pub(super) fn graph_bytes(cells: usize) -> u64 {
    let pairs = (cells * PAIRS_PER_CELL) as u64;
    // A list of pairs while counting, twice while merging; later the same as adjacency of both ends, and METIS.
    let counting = 2 * pairs * PAIR_BYTES + 2 * PENDING as u64 * PAIR_BYTES;
    let cutting = pairs * PAIR_BYTES + 2 * pairs * 8 * 4 + cells as u64 * 64;
    counting.max(cutting)
}

/// The server of every block: cells, their graph, its cut. `sample` blocks train the cells.
pub(super) fn divide(
    source: &Source<'_>,
    shares: &Shares,
    cells: usize,
    sample: usize,
    seed: u64,
) -> Result<Vec<u8>> {
    let cell_of = assign(source, cells, sample, seed)?;
    let graph = CellGraph::count(source, &cell_of, cells)?;
    let mut weights = vec![0u32; cells];
    cell_of.iter().for_each(|&c| weights[usize::from(c)] += 1);
    let part = cut(&graph.pairs, (&weights, 1), shares, seed)?;
    Ok(cell_of.iter().map(|&c| part[usize::from(c)]).collect())
}

/// The cell of every block.
fn assign(source: &Source<'_>, cells: usize, sample: usize, seed: u64) -> Result<Vec<u16>> {
    if cells >= source.len() {
        return Ok((0..source.len()).map(|b| b as u16).collect());
    }
    let dim = source.coder.dim();
    let sample = source.sample(sample)?;
    let centroids = kmeans::kmeans(&sample, dim, cells, ITERATIONS, seed, source.progress)?;
    drop(sample);
    let mut out = Vec::with_capacity(source.len());
    source.for_each_mean("dividing into cells", |_, means| {
        out.extend(kmeans::assign(means, dim, &centroids).into_iter().map(|c| c as u16));
        Ok(())
    })?;
    Ok(out)
}

/// Two cells, the smaller number first, and the edges between them.
pub(super) type Pair = ((u16, u16), u32);
const PAIR_BYTES: u64 = size_of::<Pair>() as u64;

/// The edges between cells, counted in bounded memory.
struct CellGraph {
    /// Ascending.
    pairs: Vec<Pair>,
    pending: Vec<Pair>,
    most: usize,
}

impl CellGraph {
    fn count(source: &Source<'_>, cell_of: &[u16], cells: usize) -> Result<CellGraph> {
        let most = cells * PAIRS_PER_CELL;
        let mut graph = CellGraph { pairs: Vec::new(), pending: Vec::new(), most };
        source.stream("edges between cells", |first, targets, _| {
            let counted = parallel::map(targets.iter().enumerate(), |(i, targets)| {
                pairs_of(cell_of[first + i], targets, cell_of)
            });
            for pairs in counted {
                graph.pending.extend(pairs);
                if graph.pending.len() >= PENDING {
                    graph.merge();
                }
            }
            Ok(())
        })?;
        graph.merge();
        Ok(graph)
    }

    /// Adds the pending pairs to the counted ones, and forgets the lightest pairs beyond the bound.
    fn merge(&mut self) {
        self.pairs.append(&mut self.pending);
        self.pairs.par_sort_unstable();
        add_up(&mut self.pairs);
        if self.pairs.len() > self.most {
            let heaviest = |a: &Pair, b: &Pair| b.1.cmp(&a.1).then(a.0.cmp(&b.0));
            self.pairs.select_nth_unstable_by(self.most, heaviest);
            self.pairs.truncate(self.most);
            self.pairs.par_sort_unstable();
        }
    }
}

/// The pairs that one block's edges make.
fn pairs_of(own: u16, targets: &[u32], cell_of: &[u16]) -> Vec<Pair> {
    let cells = targets.iter().map(|&t| cell_of[t as usize]).filter(|&c| c != own);
    let mut pairs: Vec<Pair> = cells.map(|c| ((own.min(c), own.max(c)), 1)).collect();
    pairs.sort_unstable();
    add_up(&mut pairs);
    pairs
}

/// Joins entries of the same pair, which stand next to each other.
pub(super) fn add_up(pairs: &mut Vec<Pair>) {
    pairs.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = kept.1.saturating_add(next.1);
        }
        same
    });
}

/// Whether a graph of so many cells can be cut.
pub(super) fn can_cut(cells: usize) -> bool {
    cfg!(feature = "metis") && (2..1 << 16).contains(&cells)
}

/// The part of every cell: as few edges as possible cut, parts of nearly equal weight (multilevel k-way partitioning,
/// Karypis and Kumar, SIAM J. Sci. Comput. 1998). Each cell has `kinds` weights, one after the other, of which each is
/// balanced.
pub(super) fn cut(
    pairs: &[Pair],
    (weights, kinds): (&[u32], usize),
    shares: &Shares,
    seed: u64,
) -> Result<Vec<u8>> {
    let (cells, servers) = (weights.len() / kinds, shares.servers());
    if servers == 1 {
        return Ok(vec![0; cells]);
    }
    let heaviest: u64 = pairs.iter().map(|p| 2 * u64::from(p.1)).sum();
    let divisor = heaviest.div_ceil(WEIGHT_MAX).max(1);
    let mut starts = vec![0i32; cells + 1];
    for ((a, b), _) in pairs {
        starts[usize::from(*a) + 1] += 1;
        starts[usize::from(*b) + 1] += 1;
    }
    for c in 0..cells {
        starts[c + 1] += starts[c];
    }
    let mut next = starts.clone();
    let mut neighbours = vec![0i32; 2 * pairs.len()];
    let mut edges = vec![1i32; 2 * pairs.len()];
    for &((a, b), count) in pairs {
        let weight = (u64::from(count) / divisor).max(1) as i32;
        for (from, to) in [(a, b), (b, a)] {
            let at = &mut next[usize::from(from)];
            neighbours[*at as usize] = i32::from(to);
            edges[*at as usize] = weight;
            *at += 1;
        }
    }
    let divisor = |kind: usize| {
        let total: u64 = weights.iter().skip(kind).step_by(kinds).map(|&w| u64::from(w)).sum();
        total.div_ceil(WEIGHT_MAX).max(1) as u32
    };
    let divisors: Vec<u32> = (0..kinds).map(divisor).collect();
    let scaled = |(at, &w): (usize, &u32)| (w / divisors[at % kinds]).max(1) as i32;
    let weights: Vec<i32> = weights.iter().enumerate().map(scaled).collect();
    let parts = part_kway((&starts, &neighbours), &edges, (&weights, kinds), shares, seed)?;
    Ok(parts.into_iter().map(|p| p.clamp(0, servers as i32 - 1) as u8).collect())
}

/// The part of every node of a graph in adjacency form (starts, neighbours), with weights of its edges and nodes.
#[cfg(feature = "metis")]
pub(super) fn part_kway(
    (starts, neighbours): (&[i32], &[i32]),
    edges: &[i32],
    (weights, kinds): (&[i32], usize),
    shares: &Shares,
    seed: u64,
) -> Result<Vec<i32>> {
    use metis::Graph;
    use metis::option::{NCuts, Seed, UFactor};

    /// Thousandths by which the largest part may exceed the mean.
    const IMBALANCE: i32 = 30;
    /// Cuts that the partitioner tries.
    const CUTS: i32 = 4;
    /// METIS draws from the C library's generator, which all threads share: two cuts at a time would disturb each
    /// other.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let failed = |e: &dyn std::fmt::Display| {
        Error::bad_input(format!("dividing the cells failed ({e}); use --method kmeans"))
    };
    let mut part = vec![0i32; weights.len() / kinds];
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    // Every kind of weight is shared alike.
    let targets: Vec<f32> =
        shares.targets().into_iter().flatten().flat_map(|share| std::iter::repeat_n(share, kinds)).collect();
    let mut graph =
        Graph::new(kinds as i32, shares.servers() as i32, starts, neighbours).map_err(|e| failed(&e))?;
    if !targets.is_empty() {
        graph = graph.set_tpwgts(&targets);
    }
    graph
        .set_vwgt(weights)
        .set_adjwgt(edges)
        .set_option(Seed((seed & 0x7FFF_FFFF) as i32))
        .set_option(UFactor(IMBALANCE))
        .set_option(NCuts(CUTS))
        .part_kway(&mut part)
        .map_err(|e| failed(&e))?;
    Ok(part)
}

#[cfg(not(feature = "metis"))]
pub(super) fn part_kway(
    _: (&[i32], &[i32]),
    _: &[i32],
    _: (&[i32], usize),
    _: &Shares,
    _: u64,
) -> Result<Vec<i32>> {
    Err(Error::bad_input("this program was compiled without METIS; use --method kmeans"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_add_up_and_the_lightest_are_forgotten() {
        let cell_of = [0u16, 1, 1, 2, 0];
        assert_eq!(pairs_of(1, &[0, 2, 3, 4, 4], &cell_of), [((0, 1), 3), ((1, 2), 1)]);
        let mut graph = CellGraph { pairs: vec![((0, 1), 3), ((1, 2), 1)], pending: vec![], most: 2 };
        graph.pending = vec![((0, 2), 2), ((0, 1), 1)];
        graph.merge();
        assert_eq!(graph.pairs, [((0, 1), 4), ((0, 2), 2)]);
    }

    #[cfg(feature = "metis")]
    #[test]
    fn a_cut_goes_between_communities() {
        // Eight communities of 20 cells, dense inside, joined in a ring by single edges.
        let mut pairs: Vec<Pair> = Vec::new();
        for community in 0..8u16 {
            for a in 0..20 {
                pairs.extend((a + 1..20).map(|b| ((20 * community + a, 20 * community + b), 5)));
            }
            let (a, b) = (20 * community, (20 * community + 20) % 160);
            pairs.push(((a.min(b), a.max(b)), 1));
        }
        pairs.sort_unstable();
        let parts = cut(&pairs, (&[3; 160], 1), &Shares::new(&[], 4), 1).unwrap();
        let between = pairs.iter().filter(|p| parts[usize::from(p.0.0)] != parts[usize::from(p.0.1)]).count();
        assert!(between <= 8, "{between} of {} are cut", pairs.len());
        for server in 0..4 {
            assert!(parts.iter().filter(|&&p| p == server).count() <= 42);
        }
        assert_eq!(cut(&pairs, (&[3; 160], 1), &Shares::new(&[], 4), 1).unwrap(), parts);
    }

    #[cfg(feature = "metis")]
    #[test]
    fn more_parts_than_the_graph_can_fill_are_no_failure() {
        assert_eq!(cut(&[], (&[1; 5], 1), &Shares::new(&[], 5), 1).unwrap().len(), 5);
        assert_eq!(cut(&[((0, 1), 1)], (&[1, 1], 1), &Shares::new(&[], 2), 1).unwrap().len(), 2);
        assert_eq!(
            cut(&[((0, 1), u32::MAX), ((1, 2), u32::MAX)], (&[u32::MAX; 3], 1), &Shares::new(&[], 2), 9)
                .unwrap()
                .len(),
            3
        );
    }
}
