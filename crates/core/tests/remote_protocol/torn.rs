//! Writes into a region are read whole or not at all: torn at every byte, and with every other value of a byte.

use stratann_core::format::fresh::{FreshRecord, Tombstone, seed};
use stratann_core::format::region::{Address, ClusterPlace, Descriptor, Superblock};

const BUILD: u64 = 77;
const GROUP: u32 = 3;
const VECTOR_BYTES: usize = 20;
/// Bytes of a superblock that have a meaning.
const SUPERBLOCK_USED: usize = 8 * 20;

/// Something that is written, in the place of something older.
struct Written {
    name: &'static str,
    old: Vec<u8>,
    new: Vec<u8>,
    is_read: fn(&[u8]) -> bool,
}

fn record(id: u64, version: u32) -> Vec<u8> {
    let vector = [id as u8; VECTOR_BYTES];
    let own = FreshRecord { id, clock: 4 + id, cluster: 6, inverse_norm: 0.5, vector: &vector };
    let mut bytes = Vec::new();
    own.encode(seed(BUILD, GROUP, version), &mut bytes);
    bytes
}

fn descriptor(version: u32) -> Vec<u8> {
    let clusters = [ClusterPlace { members: 3, bytes: 1000 }, ClusterPlace { members: 4, bytes: 800 }];
    let at = Address::new(1, 4096 * u64::from(version));
    let own = Descriptor { version, capacity: 10, at, space: 8192, clock: u64::from(version), clusters };
    own.encode(BUILD, GROUP).to_vec()
}

fn superblock(sequence: u64) -> Vec<u8> {
    let own = Superblock {
        sequence,
        build: BUILD,
        nodes: 2,
        groups: 5,
        clusters: 9,
        record_bytes: 48,
        tombstones: 10,
        end: 1 << 20,
        ..Superblock::default()
    };
    own.with_sections().encode()[..SUPERBLOCK_USED].to_vec()
}

/// Records of an old version may be in the space of a new one.
fn all() -> [Written; 5] {
    let is_record = |bytes: &[u8]| FreshRecord::decode(seed(BUILD, GROUP, 2), VECTOR_BYTES, bytes).is_some();
    let is_tombstone = |bytes: &[u8]| Tombstone::decode(BUILD, bytes).is_some();
    let is_descriptor = |bytes: &[u8]| Descriptor::decode(BUILD, GROUP, 6, bytes).is_some();
    let is_superblock = |bytes: &[u8]| Superblock::decode(bytes).is_some();
    let tombstone = |id| Tombstone { id, clock: 9 + id }.encode(BUILD).to_vec();
    let zeros = vec![0; record(8, 2).len()];
    [
        Written { name: "record", old: zeros, new: record(8, 2), is_read: is_record },
        Written { name: "record over an old one", old: record(7, 1), new: record(8, 2), is_read: is_record },
        Written { name: "tombstone", old: tombstone(1), new: tombstone(2), is_read: is_tombstone },
        Written { name: "descriptor", old: descriptor(4), new: descriptor(6), is_read: is_descriptor },
        Written { name: "superblock", old: superblock(1), new: superblock(2), is_read: is_superblock },
    ]
}

#[test]
fn a_write_that_is_torn_at_any_byte_is_not_read() {
    for Written { name, old, new, is_read } in all() {
        assert!(is_read(&new), "{name}");
        let mut torn = 0;
        for cut in 0..new.len() {
            for (first, last) in [(&new, &old), (&old, &new)] {
                let bytes = [&first[..cut], &last[cut..]].concat();
                if bytes != old && bytes != new {
                    torn += 1;
                    assert!(!is_read(&bytes), "a {name} torn at byte {cut}");
                }
            }
        }
        assert!(torn >= 16, "{name}: {torn}");
    }
}

#[test]
fn every_other_value_of_every_byte_is_found() {
    for Written { name, new, is_read, .. } in all() {
        for at in 0..new.len() {
            for change in 1..=255 {
                let mut bytes = new.clone();
                bytes[at] ^= change;
                assert!(!is_read(&bytes), "a {name} with byte {at} changed by {change}");
            }
        }
        assert!((0..new.len()).all(|end| !is_read(&new[..end])), "a {name} that ends early");
    }
}
