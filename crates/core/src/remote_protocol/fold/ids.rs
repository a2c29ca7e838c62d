//! Places of the ids of members, so that they can be read without vectors and links.

use alloc::vec::Vec;

use crate::format::hnsw::HnswLayout;
use crate::format::region::{ClusterPlace, Span};

/// Place of the ids of the members of a sub-HNSW in its bytes.
pub trait MemberIds {
    /// Bytes from the start of a sub-HNSW that tell where its ids are, at most.
    fn head_bytes(&self) -> u64;
    /// The range of the ids, from the start of the sub-HNSW. `None` for bytes that make no sense.
    fn place(&self, head: &[u8], cluster: ClusterPlace) -> Option<Span>;
    /// The ids in such a range, in the order of members.
    fn ids(&self, head: &[u8], cluster: ClusterPlace, bytes: &[u8]) -> Vec<u64>;
}

impl MemberIds for HnswLayout {
    fn head_bytes(&self) -> u64 {
        HnswLayout::HEAD_BYTES_MAX as u64
    }

    fn place(&self, head: &[u8], cluster: ClusterPlace) -> Option<Span> {
        let members = cluster.members as usize;
        let (at, each) = HnswLayout::ids(self, head, members, cluster.bytes as usize)?;
        Some(Span { offset: at as u64, bytes: (each * members) as u64 })
    }

    fn ids(&self, head: &[u8], cluster: ClusterPlace, bytes: &[u8]) -> Vec<u64> {
        let (members, own) = (cluster.members as usize, cluster.bytes as usize);
        let each = HnswLayout::ids(self, head, members, own).map_or(8, |(_, each)| each);
        let id = |id: &[u8]| id.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        bytes.chunks_exact(each).map(id).collect()
    }
}
