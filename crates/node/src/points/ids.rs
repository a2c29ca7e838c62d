//! External ids of points that are read: gathered row by row, then in their order.

use std::io::{BufReader, Read, Write};
use std::path::PathBuf;

use stratann_engine::dataset::BIN_HEADER;
use stratann_storage::budget::size;
use stratann_storage::{Error, Result, input};

use super::temporary::{Temporary, Written};
use crate::rows::ExternalId;

/// File of the ids as the engine takes them, one for each row.
const NUMBERS: &str = ".ids-input.u64bin";
/// File of rows and ids in the order of ids.
const SORTED: &str = ".ids-input.sorted";
/// Bytes of a row while its id is sorted, beside the id: its end, its place in the order, and its rank.
const ROW_BYTES: u64 = 8 + 4 + 4;

/// How many ids have each form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    pub(super) numbers: u64,
    pub(super) uuids: u64,
    pub(super) strings: u64,
}

/// Ids in memory, by row.
#[derive(Default)]
pub(super) struct GatheredIds {
    /// As they end keys, one after another.
    bytes: Vec<u8>,
    ends: Vec<u64>,
    pub(super) forms: Forms,
}

/// Ids in their order, with their rows.
pub(super) enum SortedIds {
    /// Each row has its number as its id.
    RowNumbers,
    /// In a file: `u32` row, `u16` bytes of the id, the id as it ends a key.
    File(PathBuf),
}

impl GatheredIds {
    /// Adds the id of the next row; returns its bytes as it ends a key.
    ///
    /// # Errors
    /// No room for it in half of a budget.
    pub(super) fn push(&mut self, id: &ExternalId, budget: Option<u64>) -> Result<&[u8]> {
        match id {
            ExternalId::Number(_) => self.forms.numbers += 1,
            ExternalId::Uuid(_) => self.forms.uuids += 1,
            ExternalId::Text(_) => self.forms.strings += 1,
        }
        let start = self.bytes.len();
        id.append(&mut self.bytes);
        self.ends.push(self.bytes.len() as u64);
        let needed = self.bytes.len() as u64 + self.ends.len() as u64 * ROW_BYTES;
        match budget {
            Some(budget) if needed > budget / 2 => Err(Error::budget(format!(
                "the ids of the first {} rows take {} while they are sorted, more than half of the RAM budget; give \
                 more than {}",
                self.ends.len(),
                size(needed),
                size(2 * needed)
            ))),
            _ => Ok(self.bytes.get(start..).unwrap_or_default()),
        }
    }

    fn id(&self, row: u32) -> &[u8] {
        let end = |row: u32| self.ends.get(row as usize).map_or(0, |end| *end as usize);
        let start = row.checked_sub(1).map_or(0, end);
        self.bytes.get(start..end(row)).unwrap_or_default()
    }

    /// Writes the ids in their order, and those that the engine takes; it has none where they are row numbers.
    ///
    /// # Errors
    /// `BadInput` for an id that two rows of `origin` have; a disk that is full or fails.
    pub(super) fn write(self, origin: &str, files: &mut Temporary) -> Result<(SortedIds, Option<PathBuf>)> {
        let mut order: Vec<u32> = (0..self.ends.len() as u32).collect();
        order.sort_unstable_by(|&one, &two| self.id(one).cmp(self.id(two)).then(one.cmp(&two)));
        if let Some(pair) = order.windows(2).find(|pair| self.id(pair[0]) == self.id(pair[1])) {
            let id = ExternalId::decode(self.id(pair[0])).map_or_else(String::new, |id| id.to_string());
            return Err(Error::bad_input(format!(
                "rows {} and {} of {origin} have the same id {id}; leave one of them out, or import the file into a \
                 collection, where the last one counts",
                pair[0], pair[1]
            )));
        }
        let mut sorted = files.create(SORTED)?;
        for &row in &order {
            let id = self.id(row);
            let head = [&row.to_le_bytes()[..], &(id.len() as u16).to_le_bytes()].concat();
            let put = sorted.file.write_all(&head).and_then(|()| sorted.file.write_all(id));
            put.map_err(|e| sorted.failed(&e))?;
        }
        let path = sorted.path.clone();
        sorted.finish()?;
        let numbers = self.numbers(&order);
        let is_row = |(row, number): (u64, &u64)| row == *number;
        let own = match (0..).zip(&numbers).all(is_row) {
            true => None,
            false => Some(write_numbers(files.create(NUMBERS)?, &numbers)?),
        };
        Ok((SortedIds::File(path), own))
    }

    /// By row: ids that are numbers, or the place of each in the order where some are not.
    fn numbers(&self, order: &[u32]) -> Vec<u64> {
        if self.forms.uuids == 0 && self.forms.strings == 0 {
            let number = |row: u32| match ExternalId::decode(self.id(row)) {
                Some(ExternalId::Number(number)) => number,
                _ => 0,
            };
            return (0..self.ends.len() as u32).map(number).collect();
        }
        let mut ranks = vec![0; order.len()];
        for (rank, row) in (0..).zip(order) {
            if let Some(own) = ranks.get_mut(*row as usize) {
                *own = rank;
            }
        }
        ranks
    }
}

/// Writes a `.u64bin` file.
fn write_numbers(mut to: Written, numbers: &[u64]) -> Result<PathBuf> {
    let counts = [numbers.len() as u32, 1].map(u32::to_le_bytes).concat();
    debug_assert_eq!(counts.len() as u64, BIN_HEADER);
    let put = to
        .file
        .write_all(&counts)
        .and_then(|()| numbers.iter().try_for_each(|number| to.file.write_all(&number.to_le_bytes())));
    put.map_err(|e| to.failed(&e))?;
    let path = to.path.clone();
    to.finish()?;
    Ok(path)
}

/// Rows in the order of their ids, each with its id as it ends a key.
type RowsAndIds<'a> = Box<dyn Iterator<Item = Result<(u32, Vec<u8>)>> + 'a>;

impl SortedIds {
    /// Rows with their ids as they end keys, in the order of ids, of so many rows.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn read(&self, rows: u32) -> Result<RowsAndIds<'_>> {
        let path = match self {
            SortedIds::RowNumbers => {
                return Ok(Box::new((0..rows).map(|row| {
                    let mut id = Vec::with_capacity(9);
                    ExternalId::Number(row.into()).append(&mut id);
                    Ok((row, id))
                })));
            }
            SortedIds::File(path) => path,
        };
        let failed = move |e: std::io::Error| Error::io("reading", path, &e);
        let mut file = BufReader::with_capacity(1 << 20, input::open(path)?);
        Ok(Box::new((0..rows).map(move |_| {
            let (mut row, mut length) = ([0; 4], [0; 2]);
            file.read_exact(&mut row).and_then(|()| file.read_exact(&mut length)).map_err(failed)?;
            let mut id = vec![0; usize::from(u16::from_le_bytes(length))];
            file.read_exact(&mut id).map_err(failed)?;
            Ok((u32::from_le_bytes(row), id))
        })))
    }
}

#[cfg(test)]
mod tests {
    use stratann_engine::dataset::read_ids;

    use super::*;

    fn gathered(ids: &[ExternalId]) -> GatheredIds {
        let mut own = GatheredIds::default();
        ids.iter().for_each(|id| _ = own.push(id, None).unwrap());
        own
    }

    fn text(id: &str) -> ExternalId {
        ExternalId::Text(id.into())
    }

    #[test]
    fn ids_are_sorted_and_the_engine_gets_numbers() {
        let place = tempfile::tempdir().unwrap();
        let number = ExternalId::Number;
        for (ids, order, numbers) in [
            (vec![number(0), number(1), number(2)], [0, 1, 2], None),
            (vec![number(7), number(1), number(u64::MAX)], [1, 0, 2], Some([7, 1, u64::MAX])),
            (vec![text("b"), number(5), text("a")], [1, 2, 0], Some([2, 0, 1])),
            (vec![text("0"), ExternalId::Uuid([9; 16]), text("1")], [1, 0, 2], Some([1, 0, 2])),
        ] {
            let mut files = Temporary::in_folder(&place.path().join("i")).unwrap();
            let (sorted, own) = gathered(&ids).write("f", &mut files).unwrap();
            let read: Vec<(u32, Vec<u8>)> = sorted.read(3).unwrap().map(Result::unwrap).collect();
            assert_eq!(read.iter().map(|entry| entry.0).collect::<Vec<_>>(), order);
            for (row, id) in read {
                assert_eq!(ExternalId::decode(&id).as_ref(), Some(&ids[row as usize]));
            }
            let own = own.map(|path| read_ids(&path, 3).unwrap());
            assert_eq!(own, numbers.map(Vec::from));
            drop(files);
            assert!(!place.path().join("i").exists());
        }
    }

    #[test]
    fn two_rows_with_one_id_are_named_and_so_is_a_budget() {
        let place = tempfile::tempdir().unwrap();
        let mut files = Temporary::in_folder(place.path()).unwrap();
        let Err(error) = gathered(&[text("x"), text("y"), text("x")]).write("f.parquet", &mut files) else {
            panic!("two rows have one id");
        };
        assert!(error.message.contains("rows 0 and 2 of f.parquet have the same id x"), "{error}");
        let mut own = GatheredIds::default();
        let pushed = (0..100).try_for_each(|row| own.push(&ExternalId::Number(row), Some(1000)).map(drop));
        assert!(pushed.unwrap_err().message.contains("RAM budget"));
    }
}
