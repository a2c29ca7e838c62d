//! A refresh of the navigation graph: a new version from the old one and what an epoch of queries came by (OrchANN
//! §5.2, Online Update). Pure: who calls it publishes the result, and queries go on with the old version meanwhile.
//!
//! Hot members come in, the coldest of those that came in before go out; centroids and the members that the build
//! drew stay. The graph is patched where they were: edges to a node that went lead to its neighbours (FreshDiskANN,
//! Singh et al. 2021, algorithm 4), one that comes is inserted as a build would insert it.

use alloc::vec;
use alloc::vec::Vec;

use stratann_kernel::DType;
use stratann_kernel::coder::Coder;
use stratann_kernel::distance::l2_f32;
use stratann_kernel::element::{narrow_f16, widen};

use crate::build::prune::{Near, PruneScratch, robust_prune};
use crate::build::walk::{WalkScratch, each, greedy_walk};
use crate::build::{Lists, Points, hash};
use crate::route::{NONE, NavGraph};

/// A member that may come in.
#[derive(Clone, Debug, PartialEq)]
pub struct Newcomer {
    /// Id of the member.
    pub id: u32,
    /// Score of the member in this epoch.
    pub score: u32,
    /// Cluster of the member.
    pub cluster: u32,
    /// Term of the member, as in [`NavGraph::terms`].
    pub term: f32,
    /// Radius of the member, as in [`NavGraph::radii`].
    pub radius: f32,
    /// Code of the member, of what the cluster's centroid leaves.
    pub code: Vec<u8>,
}

/// Places of nodes.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// How vectors are encoded.
    pub coder: &'a Coder,
    /// `clusters × dim` f16 as bytes.
    pub centroids: &'a [u8],
}

const ALPHA: f32 = 1.2;
/// Beam that finds a newcomer's neighbours.
const LIST: usize = 48;

/// The nodes of a graph as points of rotated space, where distances are the same.
struct Decoded<'a> {
    nav: &'a NavGraph,
    coder: &'a Coder,
    // `clusters × dim` f16 as bytes.
    rotated: &'a [u8],
}

impl Decoded<'_> {
    fn point(&self, node: u32, out: &mut [f32]) {
        let dim = self.coder.dim();
        let count = self.rotated.len() / (2 * dim);
        let cluster = self.nav.cluster_of[node as usize] as usize;
        let mut centroid = vec![0f32; dim];
        widen(DType::F16, &self.rotated[cluster * 2 * dim..][..2 * dim], &mut centroid);
        match (node as usize).checked_sub(count) {
            None => out.fill(0.0),
            Some(at) => {
                let size = self.coder.code_bytes();
                self.coder.decode_rotated(&self.nav.codes[at * size..(at + 1) * size], out);
            }
        }
        out.iter_mut().zip(&centroid).for_each(|(x, c)| *x += c);
    }

    fn to(&self, target: &[f32], node: u32) -> f32 {
        let mut point = vec![0f32; self.coder.dim()];
        self.point(node, &mut point);
        l2_f32(target, bytemuck::cast_slice(&point))
    }
}

impl Points for Decoded<'_> {
    fn len(&self) -> usize {
        self.nav.ids.len()
    }

    fn distance(&self, a: u32, b: u32) -> f32 {
        let mut point = vec![0f32; self.coder.dim()];
        self.point(a, &mut point);
        self.to(&point, b)
    }
}

impl Lists for NavGraph {
    fn list(&self, node: u32) -> &[u32] {
        NavGraph::list(self, node)
    }
}

/// Centroids in rotated space, f16 as they were before: what neighbours are chosen by need not be exact.
fn rotate(places: &Places<'_>) -> Vec<u8> {
    let dim = places.coder.dim();
    let mut rotated = Vec::with_capacity(places.centroids.len());
    let (mut wide, mut turned) = (vec![0f32; dim], vec![0f32; dim]);
    for row in places.centroids.chunks_exact(2 * dim) {
        widen(DType::F16, row, &mut wide);
        places.coder.rotate(&wide, &mut turned);
        rotated.extend(narrow_f16(&turned));
    }
    rotated
}

/// Bytes that a refresh takes besides the old version and the new one.
pub fn refresh_bytes(clusters: u64, dim: u64) -> u64 {
    clusters * dim * 2 + (1 << 20)
}

/// The next version. `newcomers` are the hottest members of the epoch, `score_of` gives the score of any; at most
/// `capacity` hot members are kept. Scores halve with every epoch: so many have ended since the last refresh.
pub fn refresh(
    old: &NavGraph,
    places: &Places<'_>,
    newcomers: &[Newcomer],
    score_of: impl Fn(u32) -> u32,
    (capacity, epochs): (usize, u32),
    seed: u64,
) -> NavGraph {
    let mut nav = old.clone();
    let first = nav.bootstrap as usize;
    for (score, &id) in nav.scores.iter_mut().zip(&nav.ids[first..]) {
        *score = score.checked_shr(epochs).unwrap_or(0) + score_of(id);
    }
    let mut known: Vec<u32> = nav.ids.iter().copied().filter(|&id| id != NONE).collect();
    known.sort_unstable();
    let mut coming: Vec<&Newcomer> =
        newcomers.iter().filter(|n| known.binary_search(&n.id).is_err()).collect();
    coming.sort_by(|a, b| b.score.cmp(&a.score).then(a.id.cmp(&b.id)));
    coming.truncate(capacity);
    let going = choose_going(&nav, &mut coming, capacity);
    nav.reserve(coming.len() - going.len(), places.coder.code_bytes());
    let rotated = rotate(places);
    let mut patch = Patch::new(places.coder, &rotated);
    patch.remove(&mut nav, &going);
    // Not by score: neighbours of one hot spot would come one after another.
    coming.sort_by_key(|n| hash(seed, 31, n.id.into()));
    let mut free = going;
    for newcomer in coming {
        patch.insert(&mut nav, newcomer, free.pop());
    }
    debug_assert!(free.is_empty());
    nav
}

/// The hot nodes that make room: as many as there are newcomers without, and only for those that are hotter.
fn choose_going(nav: &NavGraph, coming: &mut Vec<&Newcomer>, capacity: usize) -> Vec<u32> {
    let room = capacity.saturating_sub(nav.scores.len());
    let mut cold: Vec<(u32, u32)> = nav.scores.iter().copied().zip(nav.bootstrap..).collect();
    cold.sort_unstable();
    let mut going = Vec::new();
    let mut kept = coming.len().min(room);
    for (newcomer, &(score, node)) in coming.iter().skip(room).zip(&cold) {
        if newcomer.score <= score {
            break;
        }
        going.push(node);
        kept += 1;
    }
    coming.truncate(kept);
    going
}

struct Patch<'a> {
    coder: &'a Coder,
    rotated: &'a [u8],
    walk: WalkScratch,
    prune: PruneScratch,
    near: Vec<Near>,
    kept: Vec<u32>,
}

impl<'a> Patch<'a> {
    fn new(coder: &'a Coder, rotated: &'a [u8]) -> Patch<'a> {
        Patch {
            coder,
            rotated,
            walk: WalkScratch::default(),
            prune: PruneScratch::default(),
            near: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn decoded<'n>(&self, nav: &'n NavGraph) -> Decoded<'n>
    where
        'a: 'n,
    {
        Decoded { nav, coder: self.coder, rotated: self.rotated }
    }

    /// Takes nodes out of all lists; their own become empty.
    fn remove(&mut self, nav: &mut NavGraph, going: &[u32]) {
        if going.is_empty() {
            return;
        }
        let mut sorted = going.to_vec();
        sorted.sort_unstable();
        let goes = |n: &u32| sorted.binary_search(n).is_ok();
        for node in 0..nav.nodes() {
            if goes(&node) || !nav.list(node).iter().any(goes) {
                continue;
            }
            let mut around: Vec<u32> = Vec::new();
            for &n in nav.list(node) {
                if goes(&n) {
                    around.extend(nav.list(n).iter().filter(|n| !goes(n)));
                } else {
                    around.push(n);
                }
            }
            self.set_pruned(nav, node, &around);
        }
        for &node in going {
            nav.set_list(node, &[]);
        }
        if goes(&nav.entry) {
            nav.entry = 0;
        }
    }

    /// Gives `node` the best of `around` as its neighbours.
    fn set_pruned(&mut self, nav: &mut NavGraph, node: u32, around: &[u32]) {
        let decoded = self.decoded(nav);
        let mut target = vec![0f32; self.coder.dim()];
        decoded.point(node, &mut target);
        let near = around.iter().map(|&id| Near { distance: decoded.to(&target, id), id });
        self.near.clear();
        self.near.extend(near);
        let degree = nav.degree as usize;
        robust_prune(&decoded, node, &mut self.near, degree, ALPHA, &mut self.prune, &mut self.kept);
        nav.set_list(node, &self.kept);
    }

    /// Puts a newcomer in the place of a node that went, or at the end.
    fn insert(&mut self, nav: &mut NavGraph, newcomer: &Newcomer, place: Option<u32>) {
        let node = nav.put(newcomer, place, self.coder.code_bytes());
        let mut visited = Vec::new();
        {
            let decoded = self.decoded(nav);
            let mut target = vec![0f32; self.coder.dim()];
            decoded.point(node, &mut target);
            let distance = |id| decoded.to(&target, id);
            greedy_walk(&decoded, nav, nav.entry, each(distance), LIST, &mut self.walk, &mut visited);
        }
        let around: Vec<u32> = visited.iter().map(|n| n.id).filter(|&id| id != node).collect();
        self.set_pruned(nav, node, &around);
        for neighbour in self.kept.clone() {
            let list = nav.list(neighbour);
            if list.contains(&node) {
                continue;
            }
            let mut longer = list.to_vec();
            longer.push(node);
            if longer.len() <= nav.degree as usize {
                nav.set_list(neighbour, &longer);
            } else {
                self.set_pruned(nav, neighbour, &longer);
            }
        }
    }
}

impl NavGraph {
    fn set_list(&mut self, node: u32, list: &[u32]) {
        let (at, degree) = (node as usize * self.degree as usize, self.degree as usize);
        let own = &mut self.neighbours[at..at + degree];
        own.fill(NONE);
        own.iter_mut().zip(list).for_each(|(o, &n)| *o = n);
    }

    /// Makes room for so many more nodes, and no more.
    fn reserve(&mut self, more: usize, code_bytes: usize) {
        for words in [&mut self.cluster_of, &mut self.ids, &mut self.scores] {
            words.reserve_exact(more);
        }
        for floats in [&mut self.terms, &mut self.radii] {
            floats.reserve_exact(more);
        }
        self.codes.reserve_exact(more * code_bytes);
        self.neighbours.reserve_exact(more * self.degree as usize);
    }

    /// Writes a newcomer to `place`, or appends it. Its list is empty.
    fn put(&mut self, n: &Newcomer, place: Option<u32>, code_bytes: usize) -> u32 {
        let node = place.unwrap_or_else(|| {
            let end = self.nodes();
            self.cluster_of.push(0);
            self.ids.push(NONE);
            self.terms.push(0.0);
            self.radii.push(0.0);
            self.scores.push(0);
            self.codes.resize(self.codes.len() + code_bytes, 0);
            self.neighbours.resize(self.neighbours.len() + self.degree as usize, NONE);
            end
        });
        let at = node as usize;
        self.cluster_of[at] = n.cluster;
        self.ids[at] = n.id;
        self.terms[at] = n.term;
        self.radii[at] = n.radius;
        self.scores[at - self.bootstrap as usize] = n.score;
        let count = self.ids.len() - self.codes.len() / code_bytes.max(1);
        let from = (at - count) * code_bytes;
        self.codes[from..from + code_bytes].copy_from_slice(&n.code);
        node
    }
}
