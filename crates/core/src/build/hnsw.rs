//! HNSW (Malkov and Yashunin, TPAMI 2020): nodes are inserted one by one into layers, each of which has a share of
//! 1 / M of the nodes of the layer below.

use alloc::vec::Vec;

use super::prune::{Near, PruneScratch, robust_prune};
use super::walk::{WalkScratch, greedy_walk};
use super::{Lists, Points, hash};
use crate::format::hnsw::{Layers, UPPER_MAX};

/// Options of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HnswOptions {
    /// Most neighbours on upper layers (M); twice as many on the bottom layer.
    pub m: usize,
    /// Length of the beam that finds them (efConstruction).
    pub ef_construction: usize,
    /// Seed of the layers.
    pub seed: u64,
    /// The number of upper layers, whatever is drawn; `None` for as many as are drawn.
    pub upper_layers: Option<usize>,
}

impl HnswOptions {
    /// The uppermost layer of a node. It depends on the seed and on the number of the node alone.
    pub fn layer_of(&self, node: u32) -> usize {
        if let (0, Some(layers)) = (node, self.upper_layers) {
            return layers.min(UPPER_MAX);
        }
        let drawn = hash(self.seed, 21, u64::from(node));
        let (m, most) = (self.m.max(2) as u64, self.upper_layers.unwrap_or(UPPER_MAX).min(UPPER_MAX));
        let (mut layer, mut below) = (0, u64::MAX / m);
        while layer < most && drawn < below {
            layer += 1;
            below /= m;
        }
        layer
    }

    /// Nodes of each upper layer of a graph of so many nodes, the lowest first.
    pub fn upper_counts(&self, nodes: usize) -> Vec<u32> {
        let mut counts = Vec::new();
        for node in 0..nodes as u32 {
            let layer = self.layer_of(node);
            if counts.len() < layer {
                counts.resize(layer, 0);
            }
            counts[..layer].iter_mut().for_each(|count| *count += 1);
        }
        counts
    }
}

/// A graph under construction.
#[derive(Clone, Debug, Default)]
pub struct Hnsw {
    m: usize,
    /// Uppermost layer of each node.
    layer_of: Vec<u8>,
    /// Lowest lists of all nodes, 2M + 1 numbers each: a count, then neighbours.
    bottom: Vec<u32>,
    /// Start of the lists of each node on upper layers; M + 1 numbers each, the lowest layer first.
    upper_at: Vec<u32>,
    upper: Vec<u32>,
    entry: u32,
}

/// Reusable memory of insertions.
#[derive(Clone, Debug, Default)]
pub struct HnswScratch {
    walk: WalkScratch,
    prune: PruneScratch,
    near: Vec<Near>,
    list: Vec<Near>,
    kept: Vec<u32>,
    pruned: Vec<u32>,
}

/// One layer of a graph.
struct Layer<'a> {
    graph: &'a Hnsw,
    layer: usize,
}

impl Lists for Layer<'_> {
    fn list(&self, node: u32) -> &[u32] {
        self.graph.list(self.layer, node)
    }
}

impl Hnsw {
    /// A graph of all points, inserted in their order.
    pub fn build<P: Points>(points: &P, options: &HnswOptions, scratch: &mut HnswScratch) -> Hnsw {
        let mut graph = Hnsw::new(points.len(), options);
        (0..points.len() as u32).for_each(|node| graph.insert(points, node, options, scratch));
        graph.finish(points, options, scratch);
        graph
    }

    /// Links nodes that no walk from the entry reaches on the bottom layer: pruning has dropped the last link to them,
    /// which happens where many points are equal. Called once, after the last insertion.
    pub fn finish<P: Points>(&mut self, points: &P, options: &HnswOptions, scratch: &mut HnswScratch) {
        let mut seen = alloc::vec![false; self.nodes()];
        if seen.is_empty() {
            return;
        }
        let mut next = alloc::vec![self.entry];
        self.mark(&mut seen, &mut next);
        for node in 0..self.nodes() as u32 {
            if seen[node as usize] {
                continue;
            }
            let HnswScratch { walk, near, .. } = scratch;
            near.clear();
            let own = Layer { graph: self, layer: 0 };
            let distances = |ids: &[u32], out: &mut Vec<f32>| points.distances(node, ids, out);
            greedy_walk(points, &own, self.entry, distances, options.ef_construction, walk, near);
            near.sort_unstable_by(Near::order);
            let has_room = |id: &u32| self.list(0, *id).len() < 2 * self.m;
            let reached = (0..).zip(&seen).filter(|(_, is_seen)| **is_seen).map(|(id, _)| id);
            let Some(from) = near.iter().map(|near| near.id).chain(reached).find(has_room) else { return };
            let (at, count) = (from as usize * (2 * self.m + 1), self.list(0, from).len());
            self.bottom[at] += 1;
            self.bottom[at + 1 + count] = node;
            next.push(node);
            self.mark(&mut seen, &mut next);
        }
    }

    /// Marks all nodes that can be reached from those in `next`.
    fn mark(&self, seen: &mut [bool], next: &mut Vec<u32>) {
        while let Some(node) = next.pop() {
            if !core::mem::replace(&mut seen[node as usize], true) {
                next.extend(self.list(0, node));
            }
        }
    }

    /// A graph of no nodes, with room for `nodes`.
    pub fn new(nodes: usize, options: &HnswOptions) -> Hnsw {
        let mut graph = Hnsw { m: options.m, ..Hnsw::default() };
        graph.layer_of.reserve(nodes);
        graph.bottom.reserve(nodes * (2 * options.m + 1));
        graph.upper_at.reserve(nodes);
        graph
    }

    /// Bytes of a graph of so many nodes while it is built.
    pub fn memory_bytes(nodes: usize, m: usize) -> u64 {
        // Of the nodes, a share of 1 / (M - 1) has a list on an upper layer.
        nodes as u64 * (4 * (2 * m as u64 + 1) + 5 + 4 * (m as u64 + 1) / (m as u64).saturating_sub(1).max(1))
    }

    /// Position of the list of a node, and its length with the count.
    fn slot(&self, layer: usize, node: u32) -> Option<(usize, usize)> {
        let node = node as usize;
        if layer == 0 {
            let size = 2 * self.m + 1;
            return Some((node * size, size));
        }
        let is_there = layer <= usize::from(*self.layer_of.get(node)?);
        let size = self.m + 1;
        is_there.then(|| (self.upper_at[node] as usize + (layer - 1) * size, size))
    }

    fn set(&mut self, layer: usize, node: u32, list: &[u32]) {
        let Some((at, size)) = self.slot(layer, node) else { return };
        let own = if layer == 0 { &mut self.bottom } else { &mut self.upper };
        let list = &list[..list.len().min(size - 1)];
        own[at] = list.len() as u32;
        own[at + 1..at + 1 + list.len()].copy_from_slice(list);
    }

    /// Number of upper layers.
    fn layers(&self) -> usize {
        self.layer_of.get(self.entry as usize).map_or(0, |&layer| usize::from(layer))
    }

    /// Inserts the next node: its number is that of the nodes before it.
    pub fn insert<P: Points>(
        &mut self,
        points: &P,
        node: u32,
        options: &HnswOptions,
        scratch: &mut HnswScratch,
    ) {
        let layer = options.layer_of(node);
        let before = self.nodes();
        let top = self.layers();
        self.layer_of.push(layer as u8);
        self.bottom.resize(self.bottom.len() + 2 * self.m + 1, 0);
        self.upper_at.push(self.upper.len() as u32);
        self.upper.resize(self.upper.len() + layer * (self.m + 1), 0);
        if before == 0 {
            self.entry = node;
            return;
        }
        let distance = |id: u32| points.distance(node, id);
        let mut entry = Near { distance: distance(self.entry), id: self.entry };
        for above in (layer + 1..=top).rev() {
            entry = self.descend(above, entry, distance);
        }
        for layer in (0..=layer.min(top)).rev() {
            entry = self.connect(points, (layer, node), entry, options, scratch);
        }
        if layer > top {
            self.entry = node;
        }
    }

    /// The nearest node of a layer, as far as steps to nearer neighbours lead.
    fn descend(&self, layer: usize, from: Near, distance: impl Fn(u32) -> f32) -> Near {
        let mut nearest = from;
        loop {
            let near = self.list(layer, nearest.id).iter().map(|&id| Near { distance: distance(id), id });
            match near.min_by(Near::order) {
                Some(near) if near.order(&nearest).is_lt() => nearest = near,
                _ => return nearest,
            }
        }
    }

    /// Links a node to its neighbours on a layer, both ways. Returns the nearest.
    fn connect<P: Points>(
        &mut self,
        points: &P,
        (layer, node): (usize, u32),
        entry: Near,
        options: &HnswOptions,
        scratch: &mut HnswScratch,
    ) -> Near {
        let HnswScratch { walk, prune, near, list, kept, pruned } = scratch;
        near.clear();
        let own = Layer { graph: self, layer };
        let distances = |ids: &[u32], out: &mut Vec<f32>| points.distances(node, ids, out);
        greedy_walk(points, &own, entry.id, distances, options.ef_construction, walk, near);
        // What was expanded on the way and fell out of the beam is no candidate.
        near.sort_unstable_by(Near::order);
        near.truncate(options.ef_construction);
        let nearest = near.first().copied().unwrap_or(entry);
        robust_prune(points, node, near, self.m, 1.0, prune, kept);
        self.set(layer, node, kept);
        let room = if layer == 0 { 2 * self.m } else { self.m };
        for &other in kept.iter() {
            let Some((at, _)) = self.slot(layer, other) else { continue };
            let held = self.list(layer, other);
            let count = held.len();
            if count < room {
                let all = if layer == 0 { &mut self.bottom } else { &mut self.upper };
                all[at] += 1;
                all[at + 1 + count] = node;
                continue;
            }
            list.clear();
            let all = held.iter().copied().chain([node]);
            list.extend(all.map(|id| Near { distance: points.distance(other, id), id }));
            robust_prune(points, other, list, room, 1.0, prune, pruned);
            self.set(layer, other, pruned);
        }
        nearest
    }
}

impl Layers for Hnsw {
    fn nodes(&self) -> usize {
        self.layer_of.len()
    }

    fn m(&self) -> usize {
        self.m
    }

    fn list(&self, layer: usize, node: u32) -> &[u32] {
        let own = self.slot(layer, node).and_then(|(at, size)| {
            let all = if layer == 0 { &self.bottom } else { &self.upper };
            all.get(at..at + size)?.split_first()
        });
        own.map_or(&[], |(&count, list)| &list[..list.len().min(count as usize)])
    }

    fn upper(&self) -> Vec<Vec<u32>> {
        let on = |layer: usize| move |&(_, &own): &(u32, &u8)| usize::from(own) >= layer;
        let nodes = |layer| (0..).zip(&self.layer_of).filter(on(layer)).map(|(node, _)| node).collect();
        (1..=self.layers()).map(nodes).collect()
    }

    fn entry_slot(&self) -> u32 {
        let layers = self.layers();
        let before = &self.layer_of[..self.entry as usize];
        before.iter().filter(|&&layer| usize::from(layer) >= layers).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn lists_are_within_their_layers_and_lengths(n in 1usize..300, m in 2usize..9, seed: u64, layers in 0usize..4) {
            let upper_layers = layers.checked_sub(1);
            let options = HnswOptions { m, ef_construction: 20, seed, upper_layers };
            let graph = Hnsw::build(&points(n), &options, &mut HnswScratch::default());
            let upper = graph.upper();
            let counts: Vec<u32> = upper.iter().map(|nodes| nodes.len() as u32).collect();
            prop_assert_eq!(counts, options.upper_counts(n));
            if let Some(layers) = upper_layers {
                prop_assert_eq!(upper.len(), layers);
            }
            for layer in 0..=upper.len() {
                let on: BTreeSet<u32> = match layer {
                    0 => (0..n as u32).collect(),
                    _ => upper[layer - 1].iter().copied().collect(),
                };
                for node in 0..n as u32 {
                    let list = graph.list(layer, node);
                    let most = if layer == 0 { 2 * m } else { m };
                    prop_assert!(list.len() <= most);
                    prop_assert!(list.iter().all(|other| *other != node && on.contains(other)));
                    prop_assert!(on.contains(&node) || list.is_empty());
                    let distinct: BTreeSet<&u32> = list.iter().collect();
                    prop_assert_eq!(distinct.len(), list.len());
                }
            }
            if let Some(top) = upper.last() {
                prop_assert!((graph.entry_slot() as usize) < top.len());
            }
        }
    }

    #[test]
    fn layers_are_drawn_with_the_share_of_m() {
        let options = HnswOptions { m: 16, ef_construction: 20, seed: 8, upper_layers: None };
        let counts = options.upper_counts(160_000);
        assert!((9_500..10_500).contains(&counts[0]), "{counts:?}");
        assert!((500..750).contains(&counts[1]), "{counts:?}");
        let other = HnswOptions { seed: 9, ..options };
        assert_ne!(counts, other.upper_counts(160_000));
    }

    #[test]
    fn a_search_of_the_graph_finds_each_node() {
        let set = points(3000);
        let options = HnswOptions { m: 8, ef_construction: 60, seed: 1, upper_layers: None };
        let mut scratch = HnswScratch::default();
        let graph = Hnsw::build(&set, &options, &mut scratch);
        assert_eq!(
            graph.bottom,
            Hnsw::build(&set, &options, &mut scratch).bottom,
            "reused memory changes nothing"
        );
        let mut found = 0;
        for node in 0..3000u32 {
            let (mut near, layer) = (Vec::new(), Layer { graph: &graph, layer: 0 });
            let distances = |ids: &[u32], out: &mut Vec<f32>| set.distances(node, ids, out);
            greedy_walk(&set, &layer, graph.entry, distances, 30, &mut scratch.walk, &mut near);
            found += usize::from(near.iter().any(|c| c.id == node));
        }
        assert!(found > 2985, "{found} of 3000 nodes find themselves");
    }

    #[test]
    fn equal_points_are_all_reached() {
        let options = HnswOptions { m: 4, ef_construction: 30, seed: 1, upper_layers: None };
        let graph = Hnsw::build(&Plane(vec![[1.0; 4]; 400]), &options, &mut HnswScratch::default());
        let mut seen = vec![false; 400];
        graph.mark(&mut seen, &mut vec![graph.entry]);
        assert!(seen.iter().all(|&is_seen| is_seen));
    }
}
