//! The planner's choice beside every way to divide, and the busiest server.

use std::collections::BTreeMap;

use serde_json::Value;
use stratann_storage::Result;

use super::super::item::{Found, Row, range};
use super::super::sets::{MadeSet, Set, made};
use super::super::study::{Study, number};
use super::{Ablation, EVEN, FOUR, PLANNED, SKEWED, WHOLE, ablation};

/// Sets of the sweep: fewer vectors the more components they have.
const SETS: [MadeSet; 4] = [
    MadeSet { shape: "gaussian", dim: 96, clusters: 30, rows: 16_000, queries: 600, seed: 1 },
    MadeSet { shape: "gaussian", dim: 384, clusters: 30, rows: 8000, queries: 600, seed: 1 },
    MadeSet { shape: "gaussian", dim: 1024, clusters: 30, rows: 4000, queries: 600, seed: 1 },
    MadeSet { shape: "series", dim: 2709, clusters: 30, rows: 2000, queries: 600, seed: 1 },
];
/// A choice that is as fast as this share of the best division is good.
const GOOD: f64 = 0.95;
/// The busiest server over the mean that a plan should not exceed.
const BUSIEST: f64 = 1.15;

/// Choices of the planner, with the set's number of components.
struct Choices(Vec<(u64, Value)>);

impl Choices {
    fn over_best<'c>(
        &'c self,
        is_wanted: impl Fn(&(u64, Value)) -> bool + 'c,
    ) -> impl Iterator<Item = f64> + 'c {
        let wanted = self.0.iter().filter(move |choice| is_wanted(choice));
        wanted.filter_map(|choice| number(&choice.1, "/over_best"))
    }

    /// Share of choices that are good, in percent.
    fn good(&self, is_wanted: impl Fn(&(u64, Value)) -> bool) -> Option<f64> {
        let all: Vec<f64> = self.over_best(is_wanted).collect();
        let good = all.iter().filter(|over| **over >= GOOD).count();
        (!all.is_empty()).then(|| 100.0 * good as f64 / all.len() as f64)
    }
}

/// The sweep.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the paper does not compare; the best is the fastest of whole lists, every number of slices, \
                       and striped lists, simulated at the same costs";
    let mut choices = Choices(Vec::new());
    let main = ablation(study, set)?;
    choices.0.extend(main.rows("choices", &[]).into_iter().map(|row| (set.dim as u64, row.clone())));
    for like in SETS {
        let found = swept(study, like)?;
        choices.0.extend(found.rows("choices", &[]).into_iter().map(|row| (like.dim.into(), row.clone())));
    }
    let row = |what: String, ours| Row::new(what, "%", range(90.0, 100.0), ours, WHY);
    let mut rows = vec![row(format!("choices of {GOOD} times the best or more"), choices.good(|_| true))];
    rows.push(row("under even loads".into(), choices.good(|choice| choice.1["load"] == EVEN)));
    rows.push(row("under skewed loads".into(), choices.good(|choice| choice.1["load"] != EVEN)));
    let mut worst: BTreeMap<u64, f64> = BTreeMap::new();
    for choice in &choices.0 {
        let least = worst.entry(choice.0).or_insert(f64::INFINITY);
        *least = least.min(number(&choice.1, "/over_best").unwrap_or(f64::INFINITY));
    }
    let worst_row = |(dim, least)| {
        Row::new(
            format!("worst choice over the best, {dim} components"),
            "times",
            range(GOOD, f64::MAX),
            Some(least),
            WHY,
        )
    };
    rows.extend(worst.into_iter().map(worst_row));
    let sliced = |choice: &&(u64, Value)| choice.1["best_slices"].as_u64() > Some(1);
    let best = choices.0.iter().filter(sliced).count();
    let taken =
        choices.0.iter().filter(sliced).filter(|choice| choice.1["slices"].as_u64() > Some(1)).count();
    rows.push(Row::new("cells", "", None, Some(choices.0.len() as f64), WHY));
    rows.push(Row::new("cells where slices are fastest", "", None, Some(best as f64), WHY));
    rows.push(Row::new("of those, where the planner takes slices", "", None, Some(taken as f64), WHY));
    Ok(Found { rows, charts: Vec::new() })
}

/// Ways to divide a set of the sweep over 2 to 16 servers, under an even, a skewed and a Zipf load.
fn swept(study: &mut Study, like: MadeSet) -> Result<Ablation> {
    let set = made(like, &format!("vectors-{}", like.dim), study)?;
    let folder = super::text(&study.path(&format!("sweep-{}", like.dim)))?;
    let args = ["ablation", &set.base, &set.queries, "--groundtruth", &set.groundtruth, "-o", &folder];
    let what = ["--kind", "grid-ivf", "--sample", "200", "--recall", "0.95"];
    let sweep = ["--servers", "2,4,8,16", "--skew", "0.6"];
    study.run(&[&args[..], &what, &sweep].concat()).map(Ablation)
}

/// The busiest server.
pub(super) fn balance(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the paper has no such number; computing alone, exact components at one price";
    let found = ablation(study, set)?;
    let busiest = |name, load| {
        let wanted = [("name", Value::from(name)), ("servers", FOUR.into()), ("load", Value::from(load))];
        let part = if load == EVEN { "even" } else { "skewed" };
        let rows = found.rows(part, &wanted);
        rows.last().and_then(|row| number(row, "/largest_over_mean"))
    };
    let rows = [EVEN, SKEWED, "zipf"].iter().flat_map(|load| {
        [
            Row::new(
                format!("busiest over the mean, planner's choice, {load}"),
                "times",
                range(1.0, BUSIEST),
                busiest(PLANNED, *load),
                WHY,
            ),
            Row::new(format!("whole lists, {load}"), "times", None, busiest(WHOLE, *load), WHY),
        ]
    });
    Ok(Found { rows: rows.collect(), charts: Vec::new() })
}
