//! The Vamana graph (DiskANN, NeurIPS 2019), built in parallel and reproducible for a seed with any number of threads.
//!
//! Points are inserted in batches that grow with the graph (ParlayANN, PPoPP 2024, §3): every point of a batch searches
//! the graph of the previous batch and prunes its visited nodes; then reverse edges are added, target by target, in the
//! order of their sources.

use rayon::prelude::*;

use stratann_core::build::prune::{Near, PruneScratch, Selected, prune_again};
use stratann_core::build::walk::{WalkScratch, greedy_walk};
use stratann_core::build::{Lists, Points, hash};
use stratann_storage::{Progress, Result};

use crate::parallel;

/// Options of a graph.
#[derive(Clone, Copy, Debug)]
pub struct VamanaOptions {
    /// Most neighbours of a node (R).
    pub degree: usize,
    /// Length of the beam that finds them (L).
    pub list: usize,
    /// Pruning factor of edges (α), on plain distances.
    pub alpha: f32,
    /// Number of passes over all points.
    pub passes: usize,
    /// Seed of the order of insertion.
    pub seed: u64,
}

/// Adjacency lists of a fixed capacity.
pub struct Graph {
    capacity: usize,
    lengths: Vec<u16>,
    /// Neighbours that the last pruning of a node selected, in its first and in its second round. They come first.
    selected: Vec<[u8; 2]>,
    ids: Vec<u32>,
    /// Entry point of searches.
    pub entry: u32,
}

impl Graph {
    /// A graph without edges.
    pub fn new(nodes: usize, degree: usize, entry: u32) -> Graph {
        let (lengths, selected, capacity) = (vec![0; nodes], vec![[0; 2]; nodes], capacity(degree));
        Graph { capacity, lengths, selected, ids: vec![0; nodes * capacity], entry }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.lengths.len()
    }

    fn set(&mut self, node: u32, list: &[u32]) {
        let at = node as usize * self.capacity;
        self.ids[at..at + list.len()].copy_from_slice(list);
        self.lengths[node as usize] = list.len() as u16;
    }

    /// Sets what a pruning has selected.
    fn set_selected(&mut self, node: u32, list: &Pruned) {
        self.set(node, &list.ids);
        self.selected[node as usize] = list.of_rounds();
    }

    /// What the last pruning of a node selected.
    fn selected(&self, node: u32) -> Selected<'_> {
        let [first, second] = self.selected[node as usize].map(usize::from);
        let (first, rest) = self.list(node).split_at(first);
        Selected { first, second: &rest[..second] }
    }

    fn push(&mut self, node: u32, id: u32) {
        let length = usize::from(self.lengths[node as usize]);
        self.ids[node as usize * self.capacity + length] = id;
        self.lengths[node as usize] += 1;
    }

    /// Bytes of a graph of `nodes` nodes while it is built.
    pub fn bytes(nodes: usize, degree: usize) -> u64 {
        nodes as u64 * (capacity(degree) as u64 * 4 + 4)
    }
}

impl Lists for Graph {
    fn list(&self, node: u32) -> &[u32] {
        let at = node as usize * self.capacity;
        &self.ids[at..at + usize::from(self.lengths[node as usize])]
    }
}

/// Space for reverse edges, so that a list is pruned once for several of them.
fn capacity(degree: usize) -> usize {
    degree + degree.div_ceil(4)
}

/// Largest share of all points in a batch, because its points do not see each other.
const BATCH_SHARE: usize = 50;
/// Nodes that a thread inserts at a time.
const TOGETHER: usize = 8;

/// A pruned list, in the order of selection.
#[derive(Clone, Default)]
struct Pruned {
    ids: Vec<u32>,
    /// Of the first round.
    first: usize,
}

impl Pruned {
    /// Numbers of each round. Those that are no `u8` count as none: their distances are computed again.
    fn of_rounds(&self) -> [u8; 2] {
        let (first, second) = (u8::try_from(self.first), u8::try_from(self.ids.len() - self.first));
        first.and_then(|first| Ok([first, second?])).unwrap_or_default()
    }
}

#[derive(Default)]
struct Scratch {
    walk: WalkScratch,
    prune: PruneScratch,
    near: Vec<Near>,
    distances: Vec<f32>,
    kept: Pruned,
}

impl Scratch {
    /// Adds nodes to the candidates, with their distances from `node`.
    fn add<P: Points>(&mut self, points: &P, node: u32, ids: &[u32]) {
        points.distances(node, ids, &mut self.distances);
        self.near.extend(ids.iter().zip(&self.distances).map(|(&id, &distance)| Near { distance, id }));
    }

    /// Prunes the candidates of a node, of which some were selected before.
    fn prune<P: Points>(
        &mut self,
        points: &P,
        node: u32,
        selected: Selected<'_>,
        options: &VamanaOptions,
    ) -> &Pruned {
        let Scratch { prune, near, kept, .. } = self;
        let limits = (options.degree, options.alpha);
        kept.first = prune_again(points, node, selected, near, limits, prune, &mut kept.ids);
        kept
    }
}

/// Builds the graph. Lists end up with at most `degree` ids, closest first. `progress` advances by one per point and
/// pass.
pub fn build<P: Points>(
    points: &P,
    entry: u32,
    options: &VamanaOptions,
    progress: &dyn Progress,
) -> Result<Graph> {
    let graph = Graph::new(points.len(), options.degree, entry);
    insert(points, graph, (0..points.len() as u32).collect(), options, progress)
}

/// Inserts nodes into a graph of all others, whose entry is one of these, or has all nodes inserted. Otherwise as
/// [`build`].
pub fn insert<P: Points>(
    points: &P,
    mut graph: Graph,
    mut nodes: Vec<u32>,
    options: &VamanaOptions,
    progress: &dyn Progress,
) -> Result<Graph> {
    let (n, count) = (points.len(), nodes.len());
    nodes.par_sort_unstable_by_key(|&i| (hash(options.seed, 1, u64::from(i)), i));
    for pass in 0..options.passes.max(1) {
        let mut done = 0;
        while done < count {
            progress.check_interrupted()?;
            // Batches may be larger once the graph is complete.
            let grown = if pass == 0 { (n - count + done).max(1) } else { n };
            let size = grown.min(n.div_ceil(BATCH_SHARE).max(64)).min(count - done);
            insert_batch(points, &mut graph, &nodes[done..done + size], options);
            progress.advance(size as u64);
            done += size;
        }
    }
    finish_lists(points, &mut graph, options);
    Ok(graph)
}

/// Sets the lists of nodes to these neighbours, or to a selection of them where they are more than the degree.
pub fn set_lists<P: Points>(
    points: &P,
    graph: &mut Graph,
    lists: &[(u32, Vec<u32>)],
    options: &VamanaOptions,
) {
    let long: Vec<&(u32, Vec<u32>)> = lists.iter().filter(|(_, list)| list.len() > options.degree).collect();
    let pruned = parallel::map_with(&long, Scratch::default, |scratch, (node, list)| {
        scratch.near.clear();
        scratch.add(points, *node, list);
        scratch.prune(points, *node, Selected::default(), options).clone()
    });
    lists
        .iter()
        .filter(|(_, list)| list.len() <= options.degree)
        .for_each(|(node, list)| graph.set(*node, list));
    long.iter().zip(&pruned).for_each(|((node, _), list)| graph.set_selected(*node, list));
}

fn insert_batch<P: Points>(points: &P, graph: &mut Graph, batch: &[u32], options: &VamanaOptions) {
    let found = parallel::map_with(batch.chunks(TOGETHER), Scratch::default, |scratch, nodes| {
        let found = nodes.iter().map(|&node| neighbours_of(points, graph, node, options, scratch));
        found.collect::<Vec<Pruned>>()
    });
    let found: Vec<Pruned> = found.into_iter().flatten().collect();
    let mut back: Vec<(u32, u32)> = Vec::with_capacity(found.iter().map(|list| list.ids.len()).sum());
    for (&node, list) in batch.iter().zip(&found) {
        graph.set_selected(node, list);
        back.extend(list.ids.iter().map(|&target| (target, node)));
    }
    drop(found);
    back.par_sort_unstable();
    add_back_edges(points, graph, &back, options);
}

fn neighbours_of<P: Points>(
    points: &P,
    graph: &Graph,
    node: u32,
    options: &VamanaOptions,
    scratch: &mut Scratch,
) -> Pruned {
    scratch.near.clear();
    let distances = |ids: &[u32], out: &mut Vec<f32>| points.distances(node, ids, out);
    let Scratch { walk, near, .. } = scratch;
    greedy_walk(points, graph, graph.entry, distances, options.list, walk, near);
    scratch.add(points, node, graph.list(node));
    scratch.prune(points, node, graph.selected(node), options).clone()
}

/// Adds the edges `(target, source)`, sorted: appended where there is space, otherwise the list is pruned with all new
/// edges.
fn add_back_edges<P: Points>(points: &P, graph: &mut Graph, back: &[(u32, u32)], options: &VamanaOptions) {
    let groups: Vec<&[(u32, u32)]> = back.chunk_by(|a, b| a.0 == b.0).collect();
    let overfull: Vec<&[(u32, u32)]> = groups
        .into_iter()
        .filter(|group| {
            let target = group[0].0;
            let fits = graph.list(target).len() + group.len() <= graph.capacity;
            if fits {
                for &(_, source) in *group {
                    if !graph.list(target).contains(&source) {
                        graph.push(target, source);
                    }
                }
            }
            !fits
        })
        .collect();
    let pruned = parallel::map_with(&overfull, Scratch::default, |scratch, group| {
        let target = group[0].0;
        scratch.near.clear();
        scratch.add(points, target, graph.list(target));
        let sources: Vec<u32> = group.iter().map(|g| g.1).collect();
        scratch.add(points, target, &sources);
        scratch.prune(points, target, graph.selected(target), options).clone()
    });
    overfull.iter().zip(&pruned).for_each(|(group, list)| graph.set_selected(group[0].0, list));
}

/// Prunes lists over the degree and sorts each list, closest first.
fn finish_lists<P: Points>(points: &P, graph: &mut Graph, options: &VamanaOptions) {
    const CHUNK: usize = 8192;
    for start in (0..graph.nodes()).step_by(CHUNK) {
        let end = (start + CHUNK).min(graph.nodes());
        let lists = parallel::map_with(start as u32..end as u32, Scratch::default, |scratch, node| {
            scratch.near.clear();
            scratch.add(points, node, graph.list(node));
            if scratch.near.len() > options.degree {
                scratch.prune(points, node, graph.selected(node), options);
                let Scratch { near, kept, .. } = scratch;
                near.retain(|c| kept.ids.contains(&c.id));
            } else {
                scratch.near.sort_unstable_by(Near::order);
            }
            scratch.near.iter().map(|c| c.id).collect::<Vec<u32>>()
        });
        lists.iter().enumerate().for_each(|(i, list)| graph.set((start + i) as u32, list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_storage::progress::Quiet;

    struct Plane(Vec<[f32; 4]>);

    impl Points for Plane {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn distance(&self, a: u32, b: u32) -> f32 {
            self.0[a as usize].iter().zip(&self.0[b as usize]).map(|(x, y)| (x - y) * (x - y)).sum()
        }
    }

    fn points(n: usize) -> Plane {
        let number = |i: usize, c: u64| (hash(3, c, i as u64) % 1000) as f32;
        Plane((0..n).map(|i| [number(i, 0), number(i, 1), number(i, 2), number(i, 3)]).collect())
    }

    const OPTIONS: VamanaOptions = VamanaOptions { degree: 12, list: 30, alpha: 1.2, passes: 1, seed: 1 };

    fn lists(threads: usize, n: usize, options: &VamanaOptions) -> Vec<Vec<u32>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let graph = pool.install(|| build(&points(n), 0, options, &Quiet)).unwrap();
        (0..n as u32).map(|i| graph.list(i).to_vec()).collect()
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let one = lists(1, 3000, &OPTIONS);
        assert_eq!(one, lists(2, 3000, &OPTIONS));
        assert_eq!(one, lists(3, 3000, &OPTIONS));
        assert_ne!(one, lists(1, 3000, &VamanaOptions { seed: 2, ..OPTIONS }));
    }

    #[test]
    fn lists_are_short_sorted_and_lead_to_the_nearest() {
        let set = points(2000);
        let graph = build(&set, 0, &OPTIONS, &Quiet).unwrap();
        let mut found = 0;
        for node in 0..2000u32 {
            let list = graph.list(node);
            assert!(list.len() <= 12 && !list.contains(&node));
            assert!(list.windows(2).all(|w| set.distance(node, w[0]) <= set.distance(node, w[1])));
            let mut near = Vec::new();
            let distances = |ids: &[u32], out: &mut Vec<f32>| set.distances(node, ids, out);
            greedy_walk(&set, &graph, 0, distances, 20, &mut WalkScratch::default(), &mut near);
            found += usize::from(near.iter().any(|c| c.id == node));
        }
        assert!(found > 1980, "{found} of 2000 nodes find themselves");
    }

    #[test]
    fn a_graph_grows_from_lists_that_are_there() {
        let (set, all) = (points(2000), OPTIONS);
        let first = Plane(set.0[..1500].to_vec());
        let half = build(&first, 0, &all, &Quiet).unwrap();
        let mut graph = Graph::new(2000, all.degree, 0);
        let lists: Vec<(u32, Vec<u32>)> = (0..1500).map(|node| (node, half.list(node).to_vec())).collect();
        set_lists(&set, &mut graph, &lists, &all);
        let before: Vec<&[u32]> = (0..1500).map(|node| graph.list(node)).collect();
        assert!(before.iter().zip(&lists).all(|(own, (_, list))| own == list));
        let graph = insert(&set, graph, (1500..2000).collect(), &all, &Quiet).unwrap();
        let found = (0..2000u32).filter(|node| {
            let (mut near, mut scratch) = (Vec::new(), WalkScratch::default());
            let distances = |ids: &[u32], out: &mut Vec<f32>| set.distances(*node, ids, out);
            greedy_walk(&set, &graph, 0, distances, 20, &mut scratch, &mut near);
            near.iter().any(|found| found.id == *node)
        });
        let found = found.count();
        assert!(found > 1980, "{found} of 2000 nodes find themselves");
        assert!((0..2000).all(|node| graph.list(node).len() <= all.degree));
        // More neighbours than the degree are pruned.
        let mut one = Graph::new(2000, all.degree, 0);
        set_lists(&set, &mut one, &[(7, (0..400).collect())], &all);
        let list = one.list(7);
        assert!(!list.is_empty() && list.len() <= all.degree && !list.contains(&7), "{list:?}");
    }

    #[test]
    fn tiny_and_identical_sets_work() {
        for n in 1..5 {
            assert_eq!(lists(2, n, &OPTIONS).len(), n);
        }
        let same = Plane(vec![[1.0; 4]; 500]);
        let graph = build(&same, 0, &OPTIONS, &Quiet).unwrap();
        assert!((0..500).all(|i| !graph.list(i).is_empty()));
    }
}
