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
    /// Lists that they were to visit by rule; absent of a graph, and in indexes of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<u32>,
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
    /// Lists to visit; `None` where these are those of the recall, made more by rule.
    pub(crate) effort: Option<f64>,
    /// How many times fewer rows the filter has than the least that were measured; 1 where some had as few.
    pub(crate) fewer: f64,
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
            effort: point.effort.map(f64::from),
            fewer: 1.0,
            reads: point.reads,
            comparisons: point.comparisons,
            far_tenths: self.far_tenths,
        };
        let Some(below) = first.checked_sub(1).and_then(|at| self.points.get(at)) else {
            return Some(aim(above));
        };
        let (from, to) = (ln_misses(below.recall()), ln_misses(above.recall()));
        let share = if from > to { ((from - ln_misses(recall)) / (from - to)).clamp(0.0, 1.0) } else { 1.0 };
        let (below, above) = (aim(below), aim(above));
        let effort = below.effort.zip(above.effort).map(|(from, to)| super::mix(from, to, share));
        let mixed = below.mix(&above, share);
        let recall = if effort.is_some() { above.recall } else { mixed.recall };
        Some(Aim { recall, effort, ..mixed })
    }
}

impl Aim {
    /// The aim at `share` of the way to another one: misses, not hits, shrink evenly, and lists grow by a power of the
    /// rows.
    ///
    /// Settings of two recalls may be of two paths, and that of a recall between them of a third, which was not
    /// measured. So where lists are known, everything else is as the one of the two has it that aims higher.
    fn mix(&self, to: &Aim, share: f64) -> Aim {
        let mix = |a: f64, b: f64| super::mix(a, b, share);
        let misses = mix(ln_misses(self.recall), ln_misses(to.recall)).exp();
        let effort = self.effort.zip(to.effort).map(|(from, to)| mix(from.ln(), to.ln()).exp());
        Aim {
            recall: if effort.is_some() { self.recall.max(to.recall) } else { 1.0 - misses },
            effort,
            fewer: 1.0,
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
        effort: Some(point.effort.max(1).into()),
        fewer: 1.0,
        reads: point.reads,
        comparisons: point.comparisons.unwrap_or(0.0),
        far_tenths: Some(0),
    });
    // Longer answers than were measured need lists in proportion, as those without a filter do.
    let longer = (f64::from(k) / f64::from(curve.k.max(1))).max(1.0);
    let of_k = |aim: Aim| Aim { effort: aim.effort.map(|lists| lists * longer), ..aim };
    let measured = curve.widening.iter().map(|own| (own.share, own.aim(wanted).map(of_k)));
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
        Aim { fewer: times, reads: self.reads * times, comparisons: self.comparisons * times, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{Point, StopRule};

    fn point(aimed: f64, anywhere: f64, near: f64, reads: f64) -> WidePoint {
        WidePoint { aimed, effort: None, anywhere, near, reads, comparisons: 10.0 * reads }
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
    fn lists_lie_between_those_that_were_measured_and_the_rest_is_of_the_better_search() {
        let with_lists = |effort, point: WidePoint| WidePoint { effort: Some(effort), ..point };
        let of = |share, times: u32| {
            let few = with_lists(20 * times, point(0.9, 0.83, 0.83, 5.0));
            let many = with_lists(60 * times, point(0.6, 0.99, 0.99, 9.0));
            widening(share, 3, &[few, many])
        };
        let curves = curves(&[of(0.5, 1), of(0.1, 4)]);
        let aimed = |recall, share| aim(&curves, None, (10, recall), share).unwrap();
        // Half of the way between misses of 0.17 and of 0.01 lies a miss of 0.041.
        let half = aimed(1.0 - 0.17f64.sqrt() / 10.0 / MISSES_AIMED, 0.1);
        assert_eq!((half.recall, half.effort.unwrap().round(), half.fewer), (0.6, 160.0, 1.0));
        let (more, fewer) = (aimed(0.9, 0.5).effort.unwrap(), aimed(0.9, 0.1).effort.unwrap());
        assert_eq!((fewer / more).round(), 4.0);
        let between = aimed(0.9, 0.05f64.sqrt());
        assert_eq!((between.recall, between.effort.unwrap().round()), (0.6, (2.0 * more).round()));
        let longer = aim(&curves, None, (30, 0.9), 0.1).unwrap();
        assert_eq!(longer.effort, Some(3.0 * fewer));
        // As many lists for fewer rows, of which the rule makes more.
        let least = aimed(0.9, 0.025);
        assert_eq!((least.effort, least.fewer.round()), (Some(fewer), 4.0));
        // Among nearly all rows the rest is that of a search without a filter.
        assert_eq!(aimed(0.9, 0.9).recall, 0.9);
        // A share that was measured without lists says nothing of them.
        let old = curves_of_before(&curves);
        assert_eq!(aim(&old, None, (10, 0.9), 0.3).unwrap().effort, None);
    }

    fn curves_of_before(curves: &[Curve]) -> Vec<Curve> {
        let mut curves = curves.to_vec();
        let points = curves.iter_mut().flat_map(|curve| &mut curve.widening).flat_map(|own| &mut own.points);
        points.for_each(|point| point.effort = None);
        curves
    }

    #[test]
    fn a_lucky_search_does_not_count_and_nothing_follows_from_nothing() {
        let points = [point(0.6, 0.95, 0.95, 5.0), point(0.8, 0.85, 0.85, 9.0), point(0.9, 0.99, 0.99, 12.0)];
        let aimed = recall(&curves(&[widening(0.1, 3, &points)]), 0.9, 0.1).unwrap();
        assert!(aimed > 0.8, "{aimed}");
        assert_eq!([recall(&curves(&[]), 0.9, 0.1), recall(&[], 0.9, 0.1)], [None; 2]);
    }
}
