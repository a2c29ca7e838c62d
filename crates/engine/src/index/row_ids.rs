//! The rows that external ids name.

use std::ops::Range;

use stratann_storage::{Progress, Result};

use crate::base::{Base, decode_role};
use crate::files;
use crate::kinds::KindIndex;
use crate::manifest::Manifest;

/// The rows of an index by their external ids.
pub(crate) enum RowIds {
    /// Ids are the numbers of the rows of the set: the internal id of each.
    Numbers(Vec<u32>),
    /// Id and internal id, ascending.
    Others(Vec<(u64, u32)>),
}

impl RowIds {
    /// Most bytes that the ids of an index take: while they are read, and numbers are found to need none.
    pub(crate) fn bytes_max(manifest: &Manifest) -> u64 {
        manifest.rows * (size_of::<(u64, u32)>() + size_of::<u32>()) as u64
    }

    /// Whether ids are the numbers of the rows of the set.
    pub(crate) fn are_numbers(&self) -> bool {
        matches!(self, RowIds::Numbers(_))
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            RowIds::Numbers(rows) => size_of_val::<[u32]>(rows) as u64,
            RowIds::Others(pairs) => size_of_val::<[(u64, u32)]>(pairs) as u64,
        }
    }

    /// Each id with the internal id of its row.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (u64, u32)> + '_> {
        match self {
            RowIds::Numbers(rows) => Box::new((0..).zip(rows.iter().copied())),
            RowIds::Others(pairs) => Box::new(pairs.iter().copied()),
        }
    }

    /// Reads the ids of all rows of an index. Those of a server of a partition have a file of their own.
    ///
    /// # Errors
    /// A disk that fails, damaged rows; an interruption.
    pub(crate) fn read(base: &Base, kind: &KindIndex, progress: &dyn Progress) -> Result<RowIds> {
        if base.manifest.spread.is_some() {
            let decode = |bytes: &[u8]| of_file(bytes, base.manifest.rows);
            return decode_role(&base.folder, &base.manifest, files::ROW_IDS, decode);
        }
        let mut pairs = Vec::with_capacity(base.manifest.rows as usize);
        let (steps, unit) = kind.scan_work(base);
        progress.stage("reading ids", steps, unit);
        kind.for_each_member(base, progress, &mut |members| {
            pairs.extend(members.iter().map(|member| (member.external_id, member.id)));
        })?;
        Ok(RowIds::of(pairs))
    }

    /// Most sets have their rows' numbers, which need no ids beside the rows.
    fn of(mut pairs: Vec<(u64, u32)>) -> RowIds {
        pairs.sort_unstable();
        match (0..).zip(&pairs).all(|(number, pair)| pair.0 == number) {
            true => RowIds::Numbers(pairs.into_iter().map(|pair| pair.1).collect()),
            false => RowIds::Others(pairs),
        }
    }

    /// Adds the internal ids of the rows with this id to `out`. Returns whether there are any.
    pub(crate) fn rows_of(&self, id: u64, out: &mut Vec<u32>) -> bool {
        match self {
            RowIds::Numbers(rows) => {
                let row = usize::try_from(id).ok().and_then(|at| rows.get(at));
                out.extend(row);
                row.is_some()
            }
            RowIds::Others(pairs) => {
                let found = equal_range(pairs, id);
                out.extend(pairs[found.clone()].iter().map(|pair| pair.1));
                !found.is_empty()
            }
        }
    }
}

fn of_file(bytes: &[u8], rows: u64) -> Option<RowIds> {
    let (ids, rest) = bytes.as_chunks::<8>();
    let fits = rest.is_empty() && ids.len() as u64 == rows;
    fits.then(|| RowIds::of(ids.iter().map(|id| u64::from_le_bytes(*id)).zip(0..).collect()))
}

fn equal_range(pairs: &[(u64, u32)], id: u64) -> Range<usize> {
    let start = pairs.partition_point(|pair| pair.0 < id);
    start..start + pairs[start..].partition_point(|pair| pair.0 == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_rows_whether_they_are_numbers_or_not() {
        let rows = |of: &RowIds, id| {
            let mut rows = Vec::new();
            assert_eq!(of.rows_of(id, &mut rows), !rows.is_empty());
            rows
        };
        let numbers = RowIds::of(vec![(2, 0), (0, 1), (1, 2)]);
        assert!(numbers.are_numbers());
        assert_eq!(
            [0, 1, 2, 3, u64::MAX].map(|id| rows(&numbers, id)),
            [vec![1], vec![2], vec![0], vec![], vec![]]
        );
        for others in [vec![(2, 0), (0, 1), (3, 2)], vec![(1, 0), (1, 1), (2, 2)], vec![(u64::MAX, 0)]] {
            let of = RowIds::of(others.clone());
            assert!(!of.are_numbers());
            for id in [0, 1, 2, 3, u64::MAX] {
                let expected: Vec<u32> =
                    others.iter().filter(|pair| pair.0 == id).map(|pair| pair.1).collect();
                assert_eq!(rows(&of, id), expected);
            }
        }
    }
}
