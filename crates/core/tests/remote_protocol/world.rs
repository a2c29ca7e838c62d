//! A small index in remote memory, whose sub-HNSWs are plain lists with the same seeds and checksums.

use std::collections::BTreeMap;

use stratann_core::format::fresh::{FreshRecord, record_bytes, seed};
use stratann_core::format::region::{
    Address, ClusterPlace, Descriptor, GROUP_ALIGN, GROUP_WORDS_BYTES, GroupWords, Span, Superblock, has_bit,
};
use stratann_core::format::seeded_checksum;
use stratann_core::remote_protocol::{Answer, Contents, Groups, MemberIds, NewGroup, Op, Places};

use crate::history::History;
use crate::memory::{Dice, Memory};

pub(crate) const VECTOR_BYTES: usize = 16;
pub(crate) const GROUPS: u64 = 2;
const BUILD: u64 = 77;

pub(crate) struct Settings {
    pub(crate) capacity: u32,
    pub(crate) tombstones: u64,
    /// Pages of a node after the loaded groups.
    pub(crate) spare_pages: u64,
    /// Nodes over which the groups are divided.
    pub(crate) data_nodes: u8,
    pub(crate) members: u64,
}

/// The cluster of a value: values of one id fall into different clusters.
pub(crate) fn cluster_of(value: u64) -> u32 {
    (stratann_core::hash::hash(5, value, 0) % (2 * GROUPS)) as u32
}

pub(crate) fn vector_of(id: u64, value: u64) -> Vec<u8> {
    [id.to_le_bytes(), value.to_le_bytes()].concat()
}

fn value_of(id: u64, vector: &[u8]) -> u64 {
    let number = |at: usize| u64::from_le_bytes(vector[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(number(0), id, "the vector of another id");
    number(8)
}

/// The list that stands for a sub-HNSW.
fn list(seed: u64, side: u64, members: &[(u64, u64)]) -> Vec<u8> {
    let mut out = vec![0; 8];
    out.extend_from_slice(&(members.len() as u64).to_le_bytes());
    members.iter().for_each(|(id, value)| out.extend(vector_of(*id, *value)));
    let sum = seeded_checksum(seed ^ side, &out[8..]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
    out
}

fn members(seed: u64, side: u64, bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let sum = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (sum == seeded_checksum(seed ^ side, &bytes[8..])).then_some(())?;
    let member = |vector: &[u8]| {
        let id = u64::from_le_bytes(vector[..8].try_into().expect("eight bytes"));
        (id, value_of(id, vector))
    };
    Some(bytes[16..].chunks_exact(VECTOR_BYTES).map(member).collect())
}

pub(crate) fn load(settings: &Settings, history: &mut History, dice: &mut Dice) -> (Places, Memory) {
    let first = Superblock {
        sequence: 1,
        build: BUILD,
        nodes: settings.data_nodes.into(),
        groups: GROUPS,
        clusters: 2 * GROUPS,
        record_bytes: record_bytes(VECTOR_BYTES) as u64,
        tombstones: settings.tombstones,
        ..Superblock::default()
    }
    .with_sections();
    let mut lists = vec![Vec::new(); 2 * GROUPS as usize];
    for id in 0..settings.members {
        let value = dice.below(u64::MAX);
        lists[cluster_of(value) as usize].push((id, value));
        history.loaded(id, value);
    }
    let empty = Superblock { groups: 0, clusters: 0, tombstones: 0, ..first };
    let others =
        (1..settings.data_nodes).map(|node| Superblock { node: node.into(), ..empty }.with_sections());
    let mut nodes: Vec<Superblock> = std::iter::once(first).chain(others).collect();
    let mut regions: Vec<Vec<u8>> = nodes.iter().map(|own| vec![0; own.groups_at as usize]).collect();
    for group in 0..GROUPS as u32 {
        let node = group as usize % nodes.len();
        let region = &mut regions[node];
        let seed = seed(BUILD, group, 0);
        let [a, b] = [0, 1].map(|side| list(seed, side, &lists[2 * group as usize + side as usize]));
        let place = |side: u32, bytes: &[u8]| ClusterPlace {
            members: lists[(2 * group + side) as usize].len() as u32,
            bytes: bytes.len() as u32,
        };
        let at = Address::new(node as u8, region.len() as u64);
        let clusters = [place(0, &a), place(1, &b)];
        let mut own =
            Descriptor { version: 0, capacity: settings.capacity, at, space: 0, clock: 0, clusters };
        own.space = own.bytes_with_marks(first.record_bytes).next_multiple_of(GROUP_ALIGN);
        region.extend(&a);
        region.resize(region.len() + settings.capacity as usize * first.record_bytes as usize, 0);
        region.extend(&b);
        region.resize((at.offset() + own.space) as usize, 0);
        let (first, region) = (&nodes[0], &mut regions[0]);
        let words_at = first.words_at(group) as usize;
        region[words_at..words_at + GROUP_WORDS_BYTES as usize]
            .copy_from_slice(&GroupWords::default().encode());
        let at = first.descriptor_at(group, 0) as usize;
        region[at..at + 64].copy_from_slice(&own.encode(BUILD, group));
    }
    for (own, region) in nodes.iter_mut().zip(&mut regions) {
        let used_pages = region.len() as u64 / GROUP_ALIGN;
        region.resize(region.len() + (settings.spare_pages * GROUP_ALIGN) as usize, 0);
        own.end = region.len() as u64;
        region.resize((own.end + own.page_bits_bytes()) as usize, 0);
        for page in 0..used_pages {
            region[(own.end + page / 8) as usize] |= 1 << (page % 8);
        }
    }
    let is_dead = vec![false; regions.len()];
    let places = Places { nodes, vector_bytes: VECTOR_BYTES };
    (places, Memory { nodes: regions, is_dead })
}

/// Places of ids in a list: before each value.
pub(crate) struct ListIds;

impl MemberIds for ListIds {
    fn head_bytes(&self) -> u64 {
        16
    }

    fn place(&self, head: &[u8], cluster: ClusterPlace) -> Option<Span> {
        let count = u64::from_le_bytes(head.get(8..16)?.try_into().ok()?);
        (count == u64::from(cluster.members))
            .then_some(Span { offset: 16, bytes: count * VECTOR_BYTES as u64 })
    }

    fn ids(&self, _: &[u8], _: ClusterPlace, bytes: &[u8]) -> Vec<u64> {
        let id = |vector: &[u8]| u64::from_le_bytes(vector[..8].try_into().expect("eight bytes"));
        bytes.chunks_exact(VECTOR_BYTES).map(id).collect()
    }
}

/// Builds the lists of a group anew.
pub(crate) fn build(group: u32, contents: &Contents, capacity: u32) -> NewGroup {
    let old = seed(BUILD, group, contents.version - 1);
    let new = seed(BUILD, group, contents.version);
    let mut built = NewGroup { capacity, ..NewGroup::default() };
    for side in 0..2 {
        let bytes = &contents.clusters[side];
        let mut all =
            members(old, side as u64, bytes.get(..used_bytes(bytes)).unwrap_or(&[])).expect("an old list");
        let mut kept = (0..).zip(&all).map(|(member, (id, _))| contents.keeps(side, member, *id));
        let kept: Vec<bool> = kept.by_ref().collect();
        let mut kept = kept.into_iter();
        all.retain(|_| kept.next() == Some(true));
        let records = contents.records.iter().filter(|record| record.cluster == 2 * group + side as u32);
        all.extend(records.map(|record| (record.id, value_of(record.id, &record.vector))));
        built.members[side] = all.len() as u32;
        built.clusters[side] = list(new, side as u64, &all);
    }
    built
}

fn used_bytes(bytes: &[u8]) -> usize {
    let count =
        bytes.get(8..16).map_or(0, |count| u64::from_le_bytes(count.try_into().expect("eight bytes")));
    (count as usize).saturating_mul(VECTOR_BYTES).saturating_add(16)
}

/// The loads of a batch: the clusters and the used fresh records of all groups.
pub(crate) fn loads(places: &Places, seen: &Groups) -> Vec<Op> {
    let mut ops = Vec::new();
    let bytes = places.nodes[0].record_bytes;
    for (group, own) in (0..).zip(&seen.groups) {
        for side in 0..2 {
            let used = seen.used(group, side);
            for span in [own.descriptor.cluster(side, bytes), own.descriptor.fresh(side, used, bytes)] {
                let at = Address::new(own.descriptor.at.node(), span.offset);
                ops.push(Op::Read { at, bytes: span.bytes });
            }
        }
    }
    ops
}

/// Copies of each id that no tombstone deletes, the latest first; and whether something was not as it must be.
pub(crate) fn found(seen: &Groups, answers: Vec<Answer>) -> (BTreeMap<u64, Vec<u64>>, bool) {
    let mut copies: BTreeMap<u64, Vec<(u64, bool, u64)>> = BTreeMap::new();
    let mut is_suspect = false;
    let mut answers = answers.into_iter().map(|answer| match answer {
        Answer::Bytes(bytes) => bytes,
        other => panic!("{other:?} for a read"),
    });
    let mut slots = Vec::new();
    for (group, own) in (0..).zip(&seen.groups) {
        let seed = seed(BUILD, group, own.version.number());
        for side in 0..2 {
            let (base, fresh) = (answers.next().expect("a cluster"), answers.next().expect("its records"));
            let all = members(seed, side, &base);
            is_suspect |= all.is_none();
            let marks = seen.marks_of(group);
            for (mark, (id, value)) in
                (own.descriptor.member_mark(side as usize)..).zip(all.unwrap_or_default())
            {
                if !has_bit(marks, mark) && !seen.is_deleted(id, own.descriptor.clock) {
                    copies.entry(id).or_default().push((own.descriptor.clock, false, value));
                }
            }
            let first_mark = own.descriptor.slot_mark(side as usize, seen.used(group, side as usize));
            for (mark, slot) in (first_mark..).zip(fresh.chunks_exact(record_bytes(VECTOR_BYTES))) {
                match FreshRecord::decode(seed, VECTOR_BYTES, slot) {
                    // Ranges of both sides share slots once the overflow is full.
                    Some(record) if !slots.contains(&slot.to_vec()) => {
                        slots.push(slot.to_vec());
                        let value = value_of(record.id, record.vector);
                        assert_eq!(record.cluster, cluster_of(value), "a record of another cluster");
                        if !has_bit(marks, mark) && !seen.is_deleted(record.id, record.clock) {
                            copies.entry(record.id).or_default().push((record.clock, true, value));
                        }
                    }
                    Some(_) => {}
                    None => is_suspect = true,
                }
            }
        }
    }
    let latest_first = |(id, mut all): (u64, Vec<(u64, bool, u64)>)| {
        all.sort_unstable_by(|a, b| b.cmp(a));
        (id, all.into_iter().map(|copy| copy.2).collect())
    };
    (copies.into_iter().map(latest_first).collect(), is_suspect)
}
