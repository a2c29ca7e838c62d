//! The journal of a region's file: changes that are durable before their image is.
//!
//! | bytes | content of a record |
//! |---|---|
//! | 8 | magic number |
//! | 8 | number of the record; each has one more than the record before |
//! | 4 + 4 | 0: writes, 1: sums; reserved |
//! | 8 | bytes of the body |
//! | 8 | XXH3 of all above and the body |
//! | | body: writes (offset u64, length u32, bytes), or sums of chunks (chunk u64, sum u64) |
//! | 0–7 | zeros up to a multiple of 8 |
//!
//! A record is appended only when the record before is durable. So a damaged record with nothing behind it was never
//! acknowledged and is dropped; one with a sound record behind it is damage.

use xxhash_rust::xxh3::Xxh3;

const MAGIC: u64 = u64::from_le_bytes(*b"STRATJNL");
const HEADER: usize = 40;

/// What a record holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// Writes, in order.
    Writes(Vec<(u64, &'a [u8])>),
    /// Sums of the chunks that the image is about to get.
    Sums(Vec<(u64, u64)>),
}

/// Starts a record of writes.
pub(super) fn begin(record: &mut Vec<u8>) {
    record.clear();
    record.resize(HEADER, 0);
}

/// Adds a write to a record.
pub(super) fn add(record: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    record.extend_from_slice(&offset.to_le_bytes());
    record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    record.extend_from_slice(bytes);
}

/// Whether a record has no writes.
pub(super) fn is_empty(record: &[u8]) -> bool {
    record.len() <= HEADER
}

/// Seals a record of writes.
pub(super) fn seal(record: &mut Vec<u8>, number: u64) {
    finish(record, number, 0);
}

/// A record of sums.
pub(super) fn sums(number: u64, sums: &[(u64, u64)]) -> Vec<u8> {
    let mut record = vec![0; HEADER];
    for (chunk, sum) in sums {
        record.extend_from_slice(&chunk.to_le_bytes());
        record.extend_from_slice(&sum.to_le_bytes());
    }
    finish(&mut record, number, 1);
    record
}

fn finish(record: &mut Vec<u8>, number: u64, kind: u32) {
    let body = (record.len() - HEADER) as u64;
    record[..8].copy_from_slice(&MAGIC.to_le_bytes());
    record[8..16].copy_from_slice(&number.to_le_bytes());
    record[16..20].copy_from_slice(&kind.to_le_bytes());
    record[24..32].copy_from_slice(&body.to_le_bytes());
    let sum = checksum(record);
    record[32..40].copy_from_slice(&sum.to_le_bytes());
    record.resize(record.len().next_multiple_of(8), 0);
}

fn checksum(record: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&record[..32]);
    sum.update(&record[HEADER..]);
    sum.digest()
}

/// Number, kind and body of the record at the front of `bytes`, and the bytes that it takes, if it is sound.
fn front(bytes: &[u8]) -> Option<(u64, u32, &[u8], usize)> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if word(0)? != MAGIC {
        return None;
    }
    let end = usize::try_from(word(24)?).ok()?.checked_add(HEADER)?;
    let record = bytes.get(..end)?;
    if checksum(record) != word(32)? {
        return None;
    }
    let kind = u32::from_le_bytes(record[16..20].try_into().ok()?);
    Some((word(8)?, kind, &record[HEADER..], end.checked_next_multiple_of(8)?))
}

fn writes(mut body: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut found = Vec::new();
    while let Some((head, rest)) = body.split_first_chunk::<12>() {
        let offset = u64::from_le_bytes(head[..8].try_into().ok()?);
        let length = u32::from_le_bytes(head[8..].try_into().ok()?) as usize;
        found.push((offset, rest.get(..length)?));
        body = &rest[length..];
    }
    body.is_empty().then_some(found)
}

fn pairs(body: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (pairs, rest) = body.as_chunks::<16>();
    let word = |pair: &[u8; 16], at: usize| u64::from_le_bytes(std::array::from_fn(|i| pair[at + i]));
    rest.is_empty().then(|| pairs.iter().map(|pair| (word(pair, 0), word(pair, 8))).collect())
}

/// Reads all records, up to the end or the last one, which may be cut. Returns the number that the next record gets.
///
/// # Errors
/// The place of a damaged record that has a sound one behind it.
pub(super) fn read(bytes: &[u8]) -> Result<(Vec<Record<'_>>, u64), usize> {
    let (mut records, mut at, mut next) = (Vec::new(), 0, None);
    while let Some((number, kind, body, length)) = front(&bytes[at..]) {
        if next.is_some_and(|next| number != next) {
            break;
        }
        let record = match kind {
            0 => writes(body).map(Record::Writes),
            _ => pairs(body).map(Record::Sums),
        };
        records.push(record.ok_or(at)?);
        next = Some(number + 1);
        at = bytes.len().min(at + length);
    }
    let expected = next.unwrap_or(0);
    let is_later = |place: usize| front(&bytes[place..]).is_some_and(|(number, ..)| number >= expected);
    match (at.next_multiple_of(8)..bytes.len()).step_by(8).find(|&place| is_later(place)) {
        Some(_) => Err(at),
        None => Ok((records, next.unwrap_or(1))),
    }
}
