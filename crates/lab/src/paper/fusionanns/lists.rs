//! Reads against SPANN by the size of a list.

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::regime::FEW;
use super::{Ablation, DEFAULT, HIGH, LOW, SPANN, index};

/// Lists as a share of the vectors.
const SHARES: [&str; 5] = ["0.4", "0.2", "0.1", "0.05", "0.02"];
/// Reads of SPANN over ours that the paper has at least, before its other techniques.
const FACTOR: f64 = 3.2;
/// What we look for.
const WANTED: f64 = 3.0;

/// Points of a ratio over vectors of a list.
type Points = Vec<(f64, f64)>;

/// All sizes at recalls 0.9 and 0.98.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the paper has a list for ten vectors";
    let mut rows = Vec::new();
    let mut lines: Vec<(f64, Points)> = [LOW, HIGH].map(|recall| (recall, Points::new())).to_vec();
    for share in SHARES {
        let index = index(study, set, &format!("lists-{share}.idx"), &["--list-share", share])?;
        let ablation = Ablation::of(study, set, &index, "0.9,0.98", &["--sample", FEW])?;
        let Some(lists) = number(&ablation.0, "/lists") else { continue };
        let size = set.rows as f64 / lists.max(1.0);
        for (recall, line) in &mut lines {
            let ratio = |pointer| {
                over(ablation.way(SPANN, *recall, pointer), ablation.way(DEFAULT, *recall, pointer))
            };
            let claim = range(FACTOR, f64::MAX).filter(|_| share == "0.1");
            let name = |what: &str| format!("{what}, {size:.1} vectors a list, recall {recall}");
            rows.push(Row::new(name("reads of SPANN over ours"), "times", claim, ratio("/reads"), WHY));
            rows.push(Row::new(name("pages of SPANN over ours"), "times", None, ratio("/pages"), WHY));
            line.extend(ratio("/reads").map(|times| (size, times)));
        }
    }
    for (recall, line) in &lines {
        rows.push(Row::new(
            format!("largest lists with {WANTED} times the reads, recall {recall}"),
            "vectors",
            None,
            ends(line),
            "larger lists: fewer reads of SPANN; none where no list size has so many",
        ));
    }
    let lines = lines.into_iter().map(|(recall, line)| (format!("recall {recall}"), line)).collect();
    let chart = Chart { title: "reads of spann over ours".into(), x: "vectors of a list", y: "times", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// The size at which a ratio falls below what is wanted, in proportion between two measured ones; the largest size
/// where it never does. Points are by rising size.
fn ends(line: &[(f64, f64)]) -> Option<f64> {
    let last = line.iter().rposition(|point| point.1 >= WANTED)?;
    let (size, times) = line[last];
    let next = line.get(last + 1).map(|&(larger, fewer)| {
        let share = (times - WANTED) / (times - fewer);
        size + share * (larger - size)
    });
    Some(next.unwrap_or(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_ends_between_the_sizes_around_it() {
        assert_eq!(ends(&[(5.0, 5.0), (10.0, 4.0), (20.0, 2.0), (50.0, 1.0)]), Some(15.0));
        assert_eq!(ends(&[(5.0, 5.0), (10.0, 4.0)]), Some(10.0));
        assert_eq!(ends(&[(5.0, 2.0)]), None);
    }
}
