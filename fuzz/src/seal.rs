//! Headers, lengths and checksums over mutated content, as a hostile sender would compute them.

use serde_json::Value;
use stratann_core::format::edges::edge_bytes;
use stratann_core::hash::{checksum, seeded_checksum};
use stratann_core::kinds::hybrid_ivf::View;
use stratann_core::peer::message;
use stratann_core::query::wire;
use stratann_engine::manifest::{BlockShape, Manifest};
use stratann_storage::durable::hex;

/// A query state with this body.
pub fn state(body: &[u8]) -> Vec<u8> {
    with_header(wire::VERSION, wire::seal(wire::VERSION, body), body)
}

/// A frame with this body.
pub fn frame(body: &[u8]) -> Vec<u8> {
    with_header(message::VERSION, checksum(body), body)
}

fn with_header(version: u32, sum: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// Recomputes the checksum in the first 8 bytes: of a block or of list codes with their seed, of a file of what was
/// learned with seed 0.
pub fn content(seed: u64, bytes: &mut [u8]) {
    if let Some((sum, content)) = bytes.split_at_mut_checked(8) {
        sum.copy_from_slice(&seeded_checksum(seed, content).to_le_bytes());
    }
}

/// The checksum of a record or of edges, which covers the id of their member too.
fn member_sum(seed: u64, id: u32, content: &[u8]) -> [u8; 4] {
    let sum = seeded_checksum(seed, content).wrapping_add(u64::from(id).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    ((sum ^ (sum >> 32)) as u32).to_le_bytes()
}

/// Recomputes the checksum at the end of the record of member `id`.
pub fn record(seed: u64, id: u32, bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(4) {
        let sum = member_sum(seed, id, &bytes[..at]);
        bytes[at..].copy_from_slice(&sum);
    }
}

/// Recomputes the checksum at the front of the edges of member `id`.
pub fn edges(seed: u64, id: u32, bytes: &mut [u8]) {
    if let Some((sum, content)) = bytes.split_at_mut_checked(4) {
        sum.copy_from_slice(&member_sum(seed, id, content));
    }
}

/// Recomputes the checksum of every block of a file.
pub fn blocks(shape: &BlockShape, file: &mut [u8]) {
    file.chunks_exact_mut(shape.bytes).for_each(|block| content(shape.checksum_seed, block));
}

/// Recomputes the checksums of all list codes, records and edges of a file, whose places are those of `view`.
pub fn lists(view: &View<'_>, file: &mut [u8]) {
    let (directory, shape, seed) = (view.directory, &view.shape, view.shape.checksum_seed);
    for list in 0..directory.list_count() {
        let at = directory.codes[list as usize] as usize;
        let length = shape.list_codes_bytes(directory.members(list) as usize);
        file.get_mut(at..at + length).into_iter().for_each(|bytes| content(seed, bytes));
        for id in directory.ids[list as usize]..directory.ids[list as usize + 1] {
            let at = directory.record_at(shape, id) as usize;
            file.get_mut(at..at + shape.record_bytes()).into_iter().for_each(|bytes| record(seed, id, bytes));
        }
    }
    for cluster in (0..directory.clusters()).filter(|&c| directory.has_edges(c)) {
        for (number, id) in (0..).zip(directory.members_of(cluster)) {
            let pages = directory.edges_at(cluster, number);
            let at = pages.first as usize * stratann_core::PAGE + pages.skip as usize;
            let length = edge_bytes(directory.degree as usize);
            file.get_mut(at..at + length).into_iter().for_each(|bytes| edges(seed, id, bytes));
        }
    }
}

/// Recomputes the checksum of every list of a file that baselines read; `pages` are the first pages of the lists, and
/// the end of the last.
pub fn posting_lists(seed: u64, pages: &[u32], file: &mut [u8]) {
    for bounds in pages.windows(2) {
        let [from, to] = [bounds[0], bounds[1]].map(|page| page as usize * stratann_core::PAGE);
        file.get_mut(from..to).into_iter().for_each(|bytes| content(seed, bytes));
    }
}

/// Recomputes the checksum of a JSON document, and the id of its content where it is a manifest.
pub fn json(document: &mut Value) {
    if let Some(fields) = document.as_object_mut() {
        fields.remove("checksum");
        if let Ok(manifest) = serde_json::from_value::<Manifest>(document.clone()) {
            document["build_id"] = manifest.content_id().to_string().into();
        }
        let sum = hex(checksum(document.to_string().as_bytes()));
        document["checksum"] = sum.into();
    }
}
