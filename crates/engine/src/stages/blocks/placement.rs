//! Placement of rows in blocks, and the id of each row.

/// Ids and blocks of all rows.
pub(crate) struct Placement {
    /// New id by row; `u32::MAX` for rows that were left out.
    pub(crate) id_of_row: Vec<u32>,
    /// Nodes in each block.
    pub(crate) counts: Vec<u16>,
    next_id: u32,
}

impl Placement {
    /// Creates a placement without any of `rows` rows.
    pub(crate) fn new(rows: usize) -> Placement {
        Placement { id_of_row: vec![u32::MAX; rows], counts: Vec::new(), next_id: 0 }
    }

    /// Restores an earlier placement.
    pub(crate) fn of(id_of_row: Vec<u32>, counts: Vec<u16>) -> Placement {
        let next_id = counts.iter().map(|&c| u32::from(c)).sum();
        Placement { id_of_row, counts, next_id }
    }

    /// Assigns the next ids and blocks to the rows of a cell.
    pub(crate) fn append(&mut self, packed: &Packed) {
        self.counts.extend(&packed.counts);
        for &row in &packed.rows {
            self.id_of_row[row as usize] = self.next_id;
            self.next_id += 1;
        }
    }
}

/// Groups of a cell's rows that share a block.
pub(crate) struct Packed {
    /// Nodes in each of its blocks.
    pub(crate) counts: Vec<u16>,
    /// Rows of the placement, block by block.
    pub(crate) rows: Vec<u32>,
}

impl Packed {
    /// Encodes as a table: number of blocks, nodes of each, rows.
    pub(crate) fn to_words(&self) -> Vec<u32> {
        let counts = self.counts.iter().map(|&c| u32::from(c));
        std::iter::once(self.counts.len() as u32).chain(counts).chain(self.rows.iter().copied()).collect()
    }

    /// Decodes such a table; `None` when it is invalid.
    pub(crate) fn from_words(words: &[u32]) -> Option<Packed> {
        let (&blocks, words) = words.split_first()?;
        let (counts, rows) = words.split_at_checked(blocks as usize)?;
        let counts: Vec<u16> = counts.iter().map(|&c| u16::try_from(c).ok()).collect::<Option<_>>()?;
        let nodes: usize = counts.iter().map(|&c| usize::from(c)).sum();
        (nodes == rows.len()).then(|| Packed { counts, rows: rows.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_packed_comes_back(counts in prop::collection::vec(1u16..9, 0..30)) {
            let rows: Vec<u32> = (0..counts.iter().map(|&c| u32::from(c)).sum()).rev().collect();
            let words = Packed { counts: counts.clone(), rows: rows.clone() }.to_words();
            let back = Packed::from_words(&words).unwrap();
            prop_assert_eq!((back.counts, back.rows), (counts, rows));
            for cut in 0..words.len() {
                prop_assert!(Packed::from_words(&words[..cut]).is_none());
            }
        }
    }

    #[test]
    fn nonsense_is_not_packed() {
        for words in [&[][..], &[u32::MAX], &[1, 70_000], &[1, 2, 5], &[2, 1]] {
            assert!(Packed::from_words(words).is_none(), "{words:?}");
        }
    }

    #[test]
    fn ids_follow_the_cells() {
        let mut placement = Placement::new(6);
        placement.append(&Packed { counts: vec![2, 1], rows: vec![5, 0, 3] });
        placement.append(&Packed { counts: vec![2], rows: vec![1, 4] });
        assert_eq!(placement.id_of_row, [1, 3, u32::MAX, 2, 4, 0]);
        assert_eq!(placement.counts, [2, 1, 2]);
        assert_eq!(
            Placement::of(placement.id_of_row.clone(), placement.counts.clone()).next_id,
            placement.next_id
        );
    }
}
