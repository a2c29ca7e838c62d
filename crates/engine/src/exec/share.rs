//! The share of queries in the background of a thread's computing time.

/// While others compute all the time, the background has one part of so many of the computing time.
const PARTS: i64 = 4;

/// Arrears of the background behind its share.
pub(super) struct BackgroundShare {
    behind_ns: i64,
    // The most that it is behind or ahead: what happened long ago does not count.
    most_ns: i64,
}

impl BackgroundShare {
    pub(super) fn new(most_ns: u64) -> BackgroundShare {
        BackgroundShare { behind_ns: 0, most_ns: i64::try_from(most_ns).unwrap_or(i64::MAX) }
    }

    /// Counts the time of a step.
    pub(super) fn spent(&mut self, is_background: bool, spent_ns: u64) {
        let spent_ns = i64::try_from(spent_ns).unwrap_or(i64::MAX);
        let change = if is_background { -spent_ns } else { spent_ns.div_euclid(PARTS - 1) };
        self.behind_ns = self.behind_ns.saturating_add(change).clamp(-self.most_ns, self.most_ns);
    }

    /// Whether it may compute although others are ready.
    pub(super) fn is_behind(&self) -> bool {
        self.behind_ns > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_has_a_quarter_while_others_always_compute() {
        let mut share = BackgroundShare::new(1000);
        let (mut others, mut background) = (0, 0);
        for _ in 0..10_000 {
            share.spent(false, 30);
            others += 30;
            if share.is_behind() {
                share.spent(true, 170);
                background += 170;
            }
        }
        assert!((others / 3 - 1000..=others / 3 + 1000).contains(&background), "{background} of {others}");
    }

    #[test]
    fn what_it_has_while_no_other_computes_counts_for_a_short_time_alone() {
        let mut share = BackgroundShare::new(1000);
        share.spent(true, u64::MAX);
        (0..100).for_each(|_| share.spent(false, 30));
        assert!(!share.is_behind());
        share.spent(false, 30);
        assert!(share.is_behind());
        share.spent(false, u64::MAX);
        share.spent(true, 1000);
        assert!(!share.is_behind());
    }
}
