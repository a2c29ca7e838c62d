//! Sets of rows in a file, and their codes.
//!
//! | code | set |
//! |---|---|
//! | 2^64 - 1 | empty |
//! | odd | one row, the half of the code |
//! | even | a part at the half of the code, with a bitmap in Roaring's portable format |

use roaring::RoaringBitmap;
use stratann_storage::{Error, Result};

use crate::stored::{PartFile, PartWriter, Window};

/// Code of a set of rows.
pub(super) type Code = u64;

const EMPTY: Code = u64::MAX;
/// Sets that are united one by one.
const FEW: usize = 8;

/// Whether a code is that of no rows.
pub(super) fn is_empty(code: Code) -> bool {
    code == EMPTY
}

/// The row of a code that is one row.
fn single(code: Code) -> Option<u32> {
    u32::try_from(code >> 1).ok().filter(|_| code & 1 == 1 && code != EMPTY)
}

/// Writes ascending rows without repeats.
pub(super) fn write(file: &mut PartWriter, rows: &[u32]) -> Result<Code> {
    match rows {
        [] => Ok(EMPTY),
        [row] => Ok(u64::from(*row) << 1 | 1),
        rows => {
            let sorted = RoaringBitmap::from_sorted_iter(rows.iter().copied());
            write_bitmap(file, sorted.unwrap_or_else(|_| rows.iter().copied().collect()))
        }
    }
}

/// Writes a set of rows.
pub(super) fn write_bitmap(file: &mut PartWriter, mut rows: RoaringBitmap) -> Result<Code> {
    match (rows.len(), rows.min()) {
        (_, None) => Ok(EMPTY),
        (1, Some(row)) => Ok(u64::from(row) << 1 | 1),
        _ => {
            rows.optimize();
            let mut bytes = Vec::with_capacity(rows.serialized_size());
            rows.serialize_into(&mut bytes).map_err(|e| {
                Error::corrupt(format!("a set of rows cannot be written: {e}; nothing is kept"))
            })?;
            Ok(file.part(&bytes)? << 1)
        }
    }
}

/// Reads sets of rows of a segment.
pub(super) struct Reader<'a> {
    pub(super) file: &'a PartFile,
    /// Rows of the segment.
    pub(super) rows: u32,
}

impl Reader<'_> {
    /// The set of a code. `what` names it in errors.
    pub(super) fn read(&self, code: Code, what: &str) -> Result<RoaringBitmap> {
        self.set(code, what, |place| self.file.part(place, what))
    }

    /// The union of many sets, of which most lie one behind another.
    pub(super) fn union(&self, codes: &[Code], what: &str) -> Result<RoaringBitmap> {
        let mut window = Window::default();
        let mut union = RoaringBitmap::new();
        // Many small sets are gathered as bits, as each union with a small set would cost as much as its whole.
        let mut bits =
            if codes.len() > FEW { vec![0u8; (self.rows as usize).div_ceil(8)] } else { Vec::new() };
        for &code in codes {
            if let (Some(row), false) = (single(code).filter(|row| *row < self.rows), bits.is_empty()) {
                bits[row as usize / 8] |= 1 << (row % 8);
                continue;
            }
            let set = self.set(code, what, |place| self.file.part_within(place, &mut window, what))?;
            if bits.is_empty() || set.len() > u64::from(self.rows) / 16 {
                union |= set;
            } else {
                set.iter().for_each(|row| bits[row as usize / 8] |= 1 << (row % 8));
            }
        }
        Ok(union | RoaringBitmap::from_lsb0_bytes(0, &bits))
    }

    fn set(
        &self,
        code: Code,
        what: &str,
        read: impl FnOnce(u64) -> Result<Vec<u8>>,
    ) -> Result<RoaringBitmap> {
        let rows = match code {
            EMPTY => return Ok(RoaringBitmap::new()),
            one if one & 1 == 1 => single(code).into_iter().collect(),
            part => {
                let bytes = read(part >> 1)?;
                RoaringBitmap::deserialize_from(&bytes[..])
                    .map_err(|e| self.file.damaged(what, &format!("its rows cannot be read: {e}")))?
            }
        };
        if rows.max().is_none_or(|row| row >= self.rows) {
            return Err(self.file.damaged(what, &format!("it names rows beyond {}", self.rows)));
        }
        Ok(rows)
    }
}
