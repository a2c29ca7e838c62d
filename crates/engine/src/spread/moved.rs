//! Bytes of a server's part in a new version that its part in an old version has: where only the placement has changed,
//! most of them. Blocks and lists are ranges of the same file of the whole index, in the same order in every part.

use std::path::Path;

use stratann_storage::Result;
use stratann_storage::data_file::read_file;

use crate::manifest::Manifest;
use crate::units::{UnitRange, UnitRanges};
use crate::{files, kinds};

/// A server's part of a partitioned index.
#[derive(Clone, Copy, Debug)]
pub struct PartOf<'a> {
    /// The folder with the index, or with what this server has of it.
    pub folder: &'a Path,
    /// Manifest of the part.
    pub manifest: &'a Manifest,
    /// The server.
    pub server: usize,
}

/// Source of bytes of a new part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the old part, from this offset on.
    Old(u64),
    /// Only in the new part.
    New,
    /// Zeros, up to a whole page.
    Zeros,
}

/// Bytes of a new part. Pieces follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Source of the bytes.
    pub origin: Origin,
    /// The number of bytes.
    pub bytes: u64,
}

/// A new part, compared with an old one.
pub struct MovedUnits {
    ranges: UnitRanges,
    old: HeldUnits,
    new: HeldUnits,
    new_bytes: u64,
}

/// The units of one server, as its placement is stored: one byte a unit for up to eight servers.
struct HeldUnits {
    bytes: Vec<u8>,
    width: usize,
    server: usize,
}

impl HeldUnits {
    /// Reads a placement, which is compared with its manifest; `None` when it does not fit the index.
    fn read(part: PartOf<'_>) -> Result<Option<HeldUnits>> {
        let (name, entry) = part.manifest.file(files::PLACEMENT)?;
        let bytes = read_file(part.folder, name, entry)?;
        let servers = part.manifest.spread.as_ref().map_or(0, |spread| spread.servers);
        let width = servers.div_ceil(8);
        let expected = files::PLACEMENT_HEADER + width * part.manifest.units() as usize;
        let fits = part.server < servers && bytes.len() == expected;
        Ok(fits.then_some(HeldUnits { bytes, width, server: part.server }))
    }

    fn holds(&self, unit: u32) -> bool {
        let at = files::PLACEMENT_HEADER + unit as usize * self.width + self.server / 8;
        self.bytes.get(at).is_some_and(|replicas| replicas >> (self.server % 8) & 1 == 1)
    }
}

/// Compares a new part, whose folder has all files but the part itself, with an old one. `None` when they were not made
/// from the same build.
///
/// # Errors
/// A file that cannot be read, or is damaged.
pub fn moved(old: PartOf<'_>, new: PartOf<'_>) -> Result<Option<MovedUnits>> {
    let source = |part: PartOf<'_>| part.manifest.spread.as_ref().map(|spread| spread.source);
    let is_alike = old.manifest.kind == new.manifest.kind
        && old.manifest.blocks == new.manifest.blocks
        && old.manifest.section == new.manifest.section
        && old.manifest.units() == new.manifest.units();
    if source(old).is_none() || source(old) != source(new) || !is_alike {
        return Ok(None);
    }
    let new_bytes = new.manifest.file(&new.manifest.part_role(new.server))?.1.bytes;
    let (Some(old), Some(held)) = (HeldUnits::read(old)?, HeldUnits::read(new)?) else { return Ok(None) };
    let ranges = kinds::kind_of(new.manifest).unit_ranges(new.folder, new.manifest)?;
    Ok(Some(MovedUnits { ranges, old, new: held, new_bytes }))
}

impl MovedUnits {
    /// All bytes of the new part, in order. Pieces are as long as can be.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let (mut number, mut old_at, mut written) = (0, 0u64, 0u64);
        let mut next_range = move || -> Option<Piece> {
            while number < self.ranges.len() {
                let UnitRange { unit, bytes, .. } = self.ranges.get(number);
                let (is_old, is_new) = (self.old.holds(unit), self.new.holds(unit));
                let origin = if is_old { Origin::Old(old_at) } else { Origin::New };
                number += 1;
                old_at += if is_old { bytes } else { 0 };
                if is_new && bytes > 0 {
                    written += bytes;
                    return Some(Piece { origin, bytes });
                }
            }
            let bytes = self.new_bytes.saturating_sub(written);
            written += bytes;
            (bytes > 0).then_some(Piece { origin: Origin::Zeros, bytes })
        };
        let mut waiting = next_range();
        std::iter::from_fn(move || {
            let mut piece = waiting?;
            loop {
                waiting = next_range();
                match waiting.and_then(|next| joined(piece, next)) {
                    Some(both) => piece = both,
                    None => return Some(piece),
                }
            }
        })
    }
}

/// Two pieces as one, where the second follows the first in their file.
fn joined(first: Piece, second: Piece) -> Option<Piece> {
    let follows = match (first.origin, second.origin) {
        (Origin::Old(a), Origin::Old(b)) => a + first.bytes == b,
        (Origin::New, Origin::New) => true,
        _ => false,
    };
    follows.then_some(Piece { bytes: first.bytes + second.bytes, ..first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(units: &[bool]) -> HeldUnits {
        let header = [0; files::PLACEMENT_HEADER];
        let bytes = header.into_iter().chain(units.iter().map(|&is_held| u8::from(is_held) << 2)).collect();
        HeldUnits { bytes, width: 1, server: 2 }
    }

    proptest! {
        #[test]
        fn pieces_make_the_new_part(
            lengths in prop::collection::vec((1u64..30, 0u32..9), 1..40),
            old in prop::collection::vec(any::<bool>(), 9),
            new in prop::collection::vec(any::<bool>(), 9),
        ) {
            let (mut starts, mut whole) = (Vec::new(), Vec::new());
            for &(bytes, unit) in &lengths {
                starts.push((whole.len() as u64, u64::from(unit)));
                let from = whole.len() as u64;
                whole.extend((0..bytes).map(|i| (from + i * 7) as u8 | 1));
            }
            let ranges = UnitRanges::sorted(starts, whole.len() as u64);
            let part = |units: &[bool]| -> Vec<u8> {
                let of_unit = |r: &UnitRange| units[r.unit as usize];
                let bytes = |r: UnitRange| whole[r.start as usize..(r.start + r.bytes) as usize].to_vec();
                ranges.iter().filter(of_unit).flat_map(bytes).collect()
            };
            let (old_part, mut new_part) = (part(&old), part(&new));
            new_part.resize(new_part.len().next_multiple_of(16), 0);
            let moved = MovedUnits {
                ranges: ranges.clone(), old: held(&old), new: held(&new), new_bytes: new_part.len() as u64,
            };
            let (mut made, mut last) = (Vec::new(), None);
            for piece in moved.pieces() {
                let from = made.len();
                match piece.origin {
                    Origin::Old(at) => made.extend(&old_part[at as usize..(at + piece.bytes) as usize]),
                    Origin::New => made.extend(&new_part[from..from + piece.bytes as usize]),
                    Origin::Zeros => made.resize(from + piece.bytes as usize, 0),
                }
                prop_assert!(last.is_none_or(|last| joined(last, piece).is_none()));
                last = Some(piece);
            }
            prop_assert_eq!(made, new_part);
            // What the old part has is never fetched.
            let fetched: u64 = moved.pieces().filter(|p| p.origin == Origin::New).map(|p| p.bytes).sum();
            let missing = |r: &UnitRange| new[r.unit as usize] && !old[r.unit as usize];
            prop_assert_eq!(fetched, ranges.iter().filter(missing).map(|r| r.bytes).sum::<u64>());
        }
    }
}
