//! What is measured for a figure or a table of a paper.

use serde::Serialize;
use stratann_storage::Result;

use super::chart::Chart;
use super::sets::Set;
use super::study::Study;

/// A figure or a table of a paper.
pub(super) struct Item {
    /// Its name in the paper, such as "figure 3".
    pub(super) id: &'static str,
    /// What it shows.
    pub(super) title: &'static str,
    pub(super) measure: Measure,
}

/// Measures an item on a set.
pub(super) type Measuring = fn(&mut Study, &Set) -> Result<Found>;

/// How an item is measured.
pub(super) enum Measure {
    By(Measuring),
    /// It is not, for this reason.
    LeftOut(&'static str),
}

/// An item that is measured.
pub(super) const fn by(id: &'static str, title: &'static str, measure: Measuring) -> Item {
    Item { id, title, measure: Measure::By(measure) }
}

/// An item that is not, and why.
pub(super) const fn left_out(id: &'static str, title: &'static str, why: &'static str) -> Item {
    Item { id, title, measure: Measure::LeftOut(why) }
}

/// An item without numbers.
pub(super) const fn drawing(id: &'static str, title: &'static str) -> Item {
    left_out(id, title, "a drawing")
}

/// What was measured for an item.
#[derive(Default)]
pub(super) struct Found {
    pub(super) rows: Vec<Row>,
    pub(super) charts: Vec<Chart>,
}

/// A number that a paper gives; a range where it gives several.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Claim {
    low: f64,
    high: f64,
}

/// A claim of one number.
pub(super) const fn one(value: f64) -> Option<Claim> {
    Some(Claim { low: value, high: value })
}

/// A claim of a range.
pub(super) const fn range(low: f64, high: f64) -> Option<Claim> {
    Some(Claim { low, high })
}

/// What the paper says of a quantity, and what we measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    what: String,
    unit: &'static str,
    /// `null` where the paper has no number.
    paper: Option<Claim>,
    /// `null` where nothing reaches what is asked, such as a recall.
    ours: Option<f64>,
    /// Ours over the paper's; of a range over its end that is nearer, and 1 within it.
    ratio: Option<f64>,
    why: String,
}

impl Row {
    /// A quantity in `unit`; `why` says what makes the two differ.
    pub(super) fn new(
        what: impl Into<String>,
        unit: &'static str,
        paper: Option<Claim>,
        ours: Option<f64>,
        why: impl Into<String>,
    ) -> Row {
        let ours = ours.filter(|x| x.is_finite());
        let ratio = paper.zip(ours).and_then(|(paper, ours)| paper.ratio(ours));
        Row { what: what.into(), unit, paper, ours, ratio, why: why.into() }
    }

    /// Cells of a table: what, unit, paper, ours, ratio, why.
    pub(super) fn cells(&self) -> Vec<String> {
        let paper = self.paper.map_or("-".into(), Claim::text);
        let number = |x: Option<f64>| x.map_or("-".into(), short);
        let why = self.why.clone();
        vec![self.what.clone(), self.unit.into(), paper, number(self.ours), number(self.ratio), why]
    }
}

impl Claim {
    fn ratio(self, ours: f64) -> Option<f64> {
        let near = ours.clamp(self.low, self.high);
        (near != 0.0).then(|| ours / near)
    }

    fn text(self) -> String {
        match self.low == self.high {
            true => short(self.low),
            false if self.low == 0.0 => format!("at most {}", short(self.high)),
            false if self.high == f64::MAX => format!("at least {}", short(self.low)),
            false => format!("{}–{}", short(self.low), short(self.high)),
        }
    }
}

/// A number with two or three digits that count.
pub(super) fn short(x: f64) -> String {
    match x.abs() {
        size if size >= 100.0 || x == x.round() => format!("{x:.0}"),
        size if size >= 10.0 => format!("{x:.1}"),
        size if size >= 1.0 => format!("{x:.2}"),
        size if size >= 0.01 => format!("{x:.3}"),
        size => format!("{x:.*}", (2.0 - size.log10().floor()) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_to_the_nearer_end_of_a_range() {
        let ratio = |ours| Row::new("", "", range(2.0, 4.0), Some(ours), "").ratio;
        assert_eq!([ratio(1.0), ratio(3.0), ratio(8.0)], [Some(0.5), Some(1.0), Some(2.0)]);
        assert_eq!(Row::new("", "", one(0.0), Some(1.0), "").ratio, None);
        assert_eq!(Row::new("", "", None, Some(1.0), "").ratio, None);
        assert_eq!(Row::new("", "", one(2.0), Some(f64::NAN), "").ours, None);
    }

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.0, 0.001234, 0.01234, 1.5, 12.345, 123.4, 7.0];
        assert_eq!(all.map(short), ["0", "0.00123", "0.012", "1.50", "12.3", "123", "7"]);
    }
}
