//! Widening: at which recall of the curve a search aims that may return a share of the rows alone. Plain data, kept in
//! the curve.

use serde::{Deserialize, Serialize};

use super::{Curve, nearest};

/// Recall at which it is measured how much wider a search must be whose rows are far.
pub(crate) const RECALL_OF_FAR: f64 = 0.9;

/// Recall of searches with made filters that have one share of the rows, by the recall that they aimed at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Widening {
    /// Share of the rows that the filters have.
    pub share: f64,
    /// Tenths by which more lists are visited where the nearest have few rows of a filter, as was enough for the rows
    /// farthest from the queries. Of a graph they tell the beam of the walk among such rows, and are absent where no
    /// such walk finds enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_tenths: Option<u8>,
    /// Measured searches, by the recall aimed at.
    pub points: Vec<WidePoint>,
}

/// Searches with the setting for one recall of the curve, made wider by rule for what they pass over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WidePoint {
    /// Recall of the curve whose setting they had.
    pub aimed: f64,
    /// Mean recall among the rows of the filter, where these are drawn at random.
    pub anywhere: f64,
    /// The same of filters of the rows nearest to the queries.
    pub near: f64,
    /// Mean reads per query, of rows drawn at random.
    pub reads: f64,
    /// Mean comparisons with codes or, of a kind without, with vectors, of rows drawn at random.
    pub comparisons: f64,
}

/// Where a search with a filter aims, and the work that is to be expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Aim {
    /// Recall of the curve.
    pub(crate) recall: f64,
    /// Mean reads per query.
    pub(crate) reads: f64,
    /// Mean comparisons per query.
    pub(crate) comparisons: f64,
    /// See [`Widening::far_tenths`]; `None` where it was not measured.
    pub(crate) far_tenths: Option<u8>,
}

impl WidePoint {
    /// The recall that a filter may expect, whether its rows are near or anywhere.
    pub(crate) fn recall(&self) -> f64 {
        self.anywhere.min(self.near)
    }
}

impl Widening {
    /// The least recall of the curve at which a search reaches `recall` among the rows of the filter; `None` where none
    /// that was measured does.
    pub(crate) fn aim(&self, recall: f64) -> Option<Aim> {
        // A point that is beaten by a later one was lucky.
        let first =
            self.points.iter().rposition(|point| point.recall() < recall).map_or(0, |below| below + 1);
        let above = self.points.get(first)?;
        let aim = |point: &WidePoint| Aim {
            recall: point.aimed,
            reads: point.reads,
            comparisons: point.comparisons,
            far_tenths: self.far_tenths,
        };
        let Some(below) = first.checked_sub(1).and_then(|at| self.points.get(at)) else {
            return Some(aim(above));
        };
        let (from, to) = (ln_misses(below.recall()), ln_misses(above.recall()));
        let share = if from > to { ((from - ln_misses(recall)) / (from - to)).clamp(0.0, 1.0) } else { 1.0 };
        Some(aim(below).mix(&aim(above), share))
    }
}

impl Aim {
    /// The aim at `share` of the way to another one: misses, not hits, shrink evenly.
    fn mix(&self, to: &Aim, share: f64) -> Aim {
        let mix = |a: f64, b: f64| super::mix(a, b, share);
        let misses = mix(ln_misses(self.recall), ln_misses(to.recall)).exp();
        Aim {
            recall: 1.0 - misses,
            reads: mix(self.reads, to.reads),
            comparisons: mix(self.comparisons, to.comparisons),
            // What is enough at both ends.
            far_tenths: self.far_tenths.zip(to.far_tenths).map(|(own, other)| own.max(other)),
        }
    }
}

/// Fewer misses than this are none.
const LEAST_MISSES: f64 = 1e-4;

fn ln_misses(recall: f64) -> f64 {
    (1.0 - recall).max(LEAST_MISSES).ln()
}

/// Part of the misses that a recall allows at which searches aim: queries that were made are a little easier than
/// unseen ones, and the recall of a filter is a mean over few of them.
const MISSES_AIMED: f64 = 0.7;

/// Where a search for k results aims that may return this share of the rows. `None` where that was not measured: of an
/// index of an earlier version, or with too few rows.
pub(crate) fn aim(
    curves: &[Curve],
    family: Option<&str>,
    (k, recall): (u32, f64),
    share: f64,
) -> Option<Aim> {
    if recall >= 1.0 || share >= 1.0 {
        return None;
    }
    let curve = nearest(curves, family, k)?;
    let wanted = 1.0 - (1.0 - recall) * MISSES_AIMED;
    // A search that may return all rows aims at the recall of the curve.
    let usual = super::choose_of(curves, family, k, recall).filter(|point| !point.is_exact());
    let usual = usual.map(|point| Aim {
        recall,
        reads: point.reads,
        comparisons: point.comparisons.unwrap_or(0.0),
        far_tenths: Some(0),
    });
    let measured = curve.widening.iter().map(|widening| (widening.share, widening.aim(wanted)));
    let known = std::iter::once((1.0, usual)).chain(measured);
    let (mut above, mut below) = ((1.0, usual), None);
    for (own, aim) in known {
        if own >= share && own < above.0 {
            above = (own, aim);
        }
        if own <= share && below.is_none_or(|(other, _)| own > other) {
            below = Some((own, aim));
        }
    }
    match (above, below) {
        ((more, above), Some((fewer, below))) if more > fewer => {
            Some(above?.mix(&below?, (more / share).ln() / (more / fewer).ln()))
        }
        // Fewer rows than were measured, or just as many.
        ((own, aim), _) if own < 1.0 => Some(aim?.for_fewer(own / share)),
        _ => None,
    }
}

impl Aim {
    /// The same for so many times fewer rows, of which as many times more work follows at most.
    fn for_fewer(self, times: f64) -> Aim {
        Aim { reads: self.reads * times, comparisons: self.comparisons * times, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{Point, StopRule};

    fn point(aimed: f64, anywhere: f64, near: f64, reads: f64) -> WidePoint {
        WidePoint { aimed, anywhere, near, reads, comparisons: 10.0 * reads }
    }

    fn widening(share: f64, far_tenths: u8, points: &[WidePoint]) -> Widening {
        Widening { share, far_tenths: Some(far_tenths), points: points.into() }
    }

    fn curves(widening: &[Widening]) -> Vec<Curve> {
        let of = |effort, recall, reads| Point {
            effort,
            recall,
            reads,
            comparisons: Some(1.0),
            path: Some(0),
            stop: StopRule::by_slack(None, 0.0),
            ..Point::default()
        };
        vec![Curve {
            k: 10,
            queries: 100,
            source: "queries".into(),
            kth_distance: None,
            variant: None,
            family: None,
            resident_share: None,
            misses_aimed: Some(1.0),
            points: vec![of(10, 0.8, 4.0), of(20, 0.98, 8.0), of(40, 0.9995, 16.0)],
            widening: widening.into(),
        }]
    }

    fn recall(curves: &[Curve], recall: f64, share: f64) -> Option<f64> {
        aim(curves, None, (10, recall), share).map(|aim| (1000.0 * aim.recall).round() / 1000.0)
    }

    #[test]
    fn a_search_aims_where_the_least_of_all_places_reaches_the_recall() {
        let points = [point(0.6, 0.8, 0.7, 5.0), point(0.8, 0.96, 0.93, 9.0), point(0.9, 0.99, 0.99, 12.0)];
        let curves = curves(&[widening(0.1, 3, &points)]);
        // A part of the misses is kept back.
        assert_eq!(recall(&curves, 0.9, 0.1), Some(0.8));
        let aimed = aim(&curves, None, (10, 0.9), 0.1).unwrap();
        assert_eq!((aimed.reads.round(), aimed.far_tenths), (9.0, Some(3)));
        // Fewer rows mean as many times the work.
        let fewer = aim(&curves, None, (10, 0.9), 0.05).unwrap();
        assert_eq!((fewer.recall, fewer.reads.round()), (aimed.recall, 18.0));
        // Between all rows and those measured it lies between the two.
        let between = recall(&curves, 0.9, 0.3).unwrap();
        assert!(between > 0.8 && between < 0.9, "{between}");
        let none_was_so_good = [0.1, 0.05, 0.3].map(|share| recall(&curves, 0.995, share));
        assert_eq!(none_was_so_good, [None; 3]);
        assert_eq!([recall(&curves, 1.0, 0.1), recall(&curves, 0.9, 1.0)], [None; 2]);
    }

    #[test]
    fn a_lucky_search_does_not_count_and_nothing_follows_from_nothing() {
        let points = [point(0.6, 0.95, 0.95, 5.0), point(0.8, 0.85, 0.85, 9.0), point(0.9, 0.99, 0.99, 12.0)];
        let aimed = recall(&curves(&[widening(0.1, 3, &points)]), 0.9, 0.1).unwrap();
        assert!(aimed > 0.8, "{aimed}");
        assert_eq!([recall(&curves(&[]), 0.9, 0.1), recall(&[], 0.9, 0.1)], [None; 2]);
    }
}
