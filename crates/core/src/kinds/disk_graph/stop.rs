//! The stop rule of `--recall`: a search ends when what is left is too far, and reading has brought nothing for long
//! enough.
//!
//! Both parts follow the query. A share of the distance to the k-th result means more candidates where many lie at
//! nearly the same distance. A share of the reads makes a search longer that has found its results late.

/// Counts that the rule looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The code distance of the best unread candidate.
    pub(super) candidate: f32,
    /// The code distance to expect at the margin of the k-th result.
    pub(super) limit: f32,
    /// Reads of the query, those that a cache answered and blocks that were in memory included.
    pub(super) reads: u64,
    /// The last of them, in a row, that changed no result.
    pub(super) reads_without_change: u32,
}

impl Seen {
    /// Whether the search ends. Distances that are not numbers never end it; the beam does.
    pub(super) fn is_final(&self, idle_share: f32) -> bool {
        self.candidate > self.limit && self.reads_without_change as f32 >= idle_share * self.reads as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen { candidate: 2.0, limit: 1.0, reads: 20, reads_without_change: 5 };

    #[test]
    fn both_parts_must_agree() {
        assert!(SEEN.is_final(0.25) && SEEN.is_final(0.0));
        assert!(!SEEN.is_final(0.3));
        assert!(!Seen { candidate: 1.0, ..SEEN }.is_final(0.0));
        assert!(Seen { reads: 0, reads_without_change: 0, ..SEEN }.is_final(0.5));
    }

    #[test]
    fn what_is_no_number_never_ends_a_search() {
        for (candidate, limit) in
            [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN), (1.0, f32::INFINITY)]
        {
            assert!(!Seen { candidate, limit, ..SEEN }.is_final(0.0));
        }
        assert!(Seen { candidate: f32::INFINITY, ..SEEN }.is_final(0.0));
        let longest = Seen { reads: u64::MAX, reads_without_change: u32::MAX, ..SEEN };
        assert!(!longest.is_final(1.0) && !longest.is_final(f32::NAN));
    }
}
