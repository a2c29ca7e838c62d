//! Structures of memory nodes: superblocks, words, descriptors, sub-HNSWs, fresh records and tombstones. Changed ones
//! are decoded, and a sub-HNSW whose header is sound is walked from every node.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::fresh::{FreshRecord, Tombstone};
use stratann_core::format::hnsw::{HnswLayout, HnswMember, HnswName, Layers, SubHnsw, write};
use stratann_core::format::region::{
    ClusterPlace, ControlWords, Descriptor, GroupWords, Reservations, SUPERBLOCK_BYTES, Superblock, Version,
};
use stratann_fuzz::edits;

const VECTOR_BYTES: usize = 16;
const BUILD: u64 = 77;

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    match choice % 5 {
        0 => superblock(data),
        1 => words(data),
        2 => descriptor(data),
        3 => records(data),
        _ => sub_hnsw(data, choice & 64 == 0),
    }
});

fn valid_superblock() -> Superblock {
    let own = Superblock {
        sequence: 3,
        build: BUILD,
        nodes: 2,
        groups: 5,
        clusters: 9,
        record_bytes: 48,
        tombstones: 10,
        meta_bytes: 1000,
        manifest_bytes: 500,
        end: 1 << 20,
        ..Superblock::default()
    };
    own.with_sections()
}

/// One that is accepted has all of its sections within the region.
fn superblock(data: &[u8]) {
    let own = valid_superblock();
    let valid = [own.encode(), Superblock { sequence: 4, ..own }.encode()].concat();
    let bytes = edits::bytes(&valid, data);
    let Some(found) = Superblock::newest(&bytes) else { return };
    assert!(found.groups_at <= found.end && found.meta_at + found.meta_bytes <= found.groups_at);
    assert!(found.headers_bytes() < found.end && SUPERBLOCK_BYTES < found.control_at);
}

fn words(data: &[u8]) {
    let bytes = edits::bytes(&GroupWords::default().encode(), data);
    if let Some(words) = GroupWords::decode(&bytes) {
        let reservations = words.reservations();
        assert!(reservations.used(0, 9) <= 9 && reservations.used(1, 9) <= 9);
    }
    let _ = ControlWords::decode(&bytes);
    if let Some(word) = bytes.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let _ = (Version(word).rebuilt_at(), Reservations(word).is_sealed());
        let _ = valid_superblock().descriptor_of(2, Version(word));
    }
}

/// One that is accepted is that of its group and version, and its parts follow each other.
fn descriptor(data: &[u8]) {
    let clusters = [ClusterPlace { members: 3, bytes: 1000 }, ClusterPlace { members: 4, bytes: 800 }];
    let valid = Descriptor { version: 6, capacity: 10, space: 8192, clusters, ..Descriptor::default() };
    let Some(found) = Descriptor::decode(BUILD, 2, 6, &edits::bytes(&valid.encode(BUILD, 2), data)) else {
        return;
    };
    assert_eq!(found.version, 6);
    assert!(found.fresh(0, u32::MAX, 48).bytes <= found.bytes(48));
}

fn records(data: &[u8]) {
    let own = FreshRecord { id: 9, clock: 4, cluster: 6, inverse_norm: 0.5, vector: &[7; VECTOR_BYTES] };
    let mut valid = Vec::new();
    own.encode(BUILD, &mut valid);
    let bytes = edits::bytes(&valid, data);
    if let Some(found) = FreshRecord::decode(BUILD, VECTOR_BYTES, &bytes) {
        assert_eq!(found.vector.len(), VECTOR_BYTES);
    }
    let bytes = edits::bytes(&Tombstone { id: 9, clock: 12 }.encode(BUILD), data);
    let _ = Tombstone::decode(BUILD, &bytes);
}

/// Fifty members in a ring, six of them on a layer above.
struct Ring {
    bottom: Vec<[u32; 2]>,
    above: Vec<u32>,
}

impl Ring {
    fn new() -> Ring {
        let bottom = (0..50u32).map(|n| [(n + 1) % 50, (n + 49) % 50]).collect();
        Ring { bottom, above: (0..50).step_by(9).collect() }
    }
}

impl Layers for Ring {
    fn nodes(&self) -> usize {
        self.bottom.len()
    }

    fn m(&self) -> usize {
        4
    }

    fn list(&self, layer: usize, node: u32) -> &[u32] {
        if layer == 0 { &self.bottom[node as usize] } else { &self.above[..2] }
    }

    fn upper(&self) -> Vec<Vec<u32>> {
        vec![self.above.clone()]
    }

    fn entry_slot(&self) -> u32 {
        1
    }
}

/// Every part that the header names is there, whatever the links say.
fn sub_hnsw(data: &[u8], norms: bool) {
    let layout = HnswLayout { vector_bytes: VECTOR_BYTES, norms };
    let name = HnswName { cluster: 4, version: 1, seed: BUILD };
    let vector = [3u8; VECTOR_BYTES];
    let member = |id| HnswMember { external_id: id, inverse_norm: 0.5, vector: &vector };
    let mut valid = Vec::new();
    write(&layout, &name, 8, &Ring::new(), (0..50).map(member), &mut valid);
    assert!(SubHnsw::verify(&layout, &name, &valid));
    let bytes = edits::bytes(&valid, data);
    assert!(bytes == valid || !SubHnsw::verify(&layout, &name, &bytes));
    let Some(found) = SubHnsw::open(&layout, &bytes) else { return };
    for number in 0..found.members() {
        assert_eq!(found.vector(number).len(), VECTOR_BYTES);
        let _ = (found.external_id(number), found.inverse_norm(number));
        found.each_neighbour(number, |_| {});
    }
    for layer in 0..=found.layers() {
        for slot in 0..found.nodes_of(layer) {
            if let Some(own) = found.slot(layer, slot) {
                found.each_slot(&own, |_| {});
            }
        }
    }
}
