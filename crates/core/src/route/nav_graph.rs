//! The navigation graph: centroids and sampled members in RAM, each of which knows its cluster (OrchANN §5.2). The
//! nodes nearest to a query are sample hits of the clusters to visit.
//!
//! A sampled member costs its code alone: like the codes of the lists, it is of what the member's centroid leaves, so
//! that the distance to it is that to the centroid, plus what the code adds.

use alloc::vec::Vec;

/// Stands for no node, and for the member that a centroid is not.
pub const NONE: u32 = u32::MAX;

/// One version of the graph; never changed, but replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NavGraph {
    /// The cluster of each node. The first nodes are the centroids, in their order.
    pub cluster_of: Vec<u32>,
    /// The member that each node is; [`NONE`] for a centroid.
    pub ids: Vec<u32>,
    /// Addends to the distance from the centroid: a code's ‖r̂‖² + 2⟨c, r̂⟩, for a centroid what its members lie from
    /// it, by the mean of the squares.
    pub terms: Vec<f32>,
    /// Largest distance of each node from what its code stands for.
    pub radii: Vec<f32>,
    /// The codes of the nodes that are members, in their order.
    pub codes: Vec<u8>,
    /// Most neighbours of a node.
    pub degree: u32,
    /// `degree` for each node, [`NONE`] from the last neighbour on.
    pub neighbours: Vec<u32>,
    /// Entry of walks.
    pub entry: u32,
    /// Nodes that no refresh removes: the first so many.
    pub bootstrap: u32,
    /// Hotness of each of the others.
    pub scores: Vec<u32>,
}

impl NavGraph {
    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The neighbours of a node.
    pub fn list(&self, node: u32) -> &[u32] {
        let (at, degree) = (node as usize * self.degree as usize, self.degree as usize);
        let list = self.neighbours.get(at..at + degree).unwrap_or(&[]);
        &list[..list.iter().position(|&n| n == NONE).unwrap_or(degree)]
    }

    /// The code of a member: of the node that comes so many after the centroids. Empty where there is none.
    pub fn code(&self, member: u32, code_bytes: usize) -> &[u8] {
        let at = (member as usize).checked_mul(code_bytes);
        at.and_then(|at| self.codes.get(at..)?.get(..code_bytes)).unwrap_or(&[])
    }

    /// True when all numbers are within their ranges for `clusters` clusters of `members` members and codes of
    /// `code_bytes`; a graph from a file must be checked before use.
    pub fn is_consistent(&self, clusters: u32, members: u32, code_bytes: usize) -> bool {
        let n = self.ids.len();
        let c = clusters as usize;
        n >= c
            && c > 0
            && self.cluster_of.len() == n
            && self.terms.len() == n
            && self.radii.len() == n
            && self.codes.len() == (n - c) * code_bytes
            && Some(self.neighbours.len()) == n.checked_mul(self.degree as usize)
            && (self.entry as usize) < n
            && (c..=n).contains(&(self.bootstrap as usize))
            && self.scores.len() == n - self.bootstrap as usize
            && self.cluster_of[..c].iter().zip(0..).all(|(&cluster, i)| cluster == i)
            && self.cluster_of.iter().all(|&cluster| cluster < clusters)
            && self.ids[..c].iter().all(|&id| id == NONE)
            && self.ids[c..].iter().all(|&id| id < members)
            && self.neighbours.iter().all(|&m| m == NONE || (m as usize) < n)
            && self.terms.iter().chain(&self.radii).all(|x| x.is_finite())
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        4 * (4 * self.ids.len() + self.neighbours.len() + self.scores.len()) + self.codes.len()
    }
}
