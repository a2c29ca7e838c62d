//! `stratann explain --plan`: local indexes of the inverted lists of a `hybrid-ivf`, their reasons, and the costs of
//! visits.

use std::path::Path;

use serde::Serialize;
use stratann_engine::explain;
use stratann_engine::explain::{Measured, MeasuredQueries, WayMeasured};
use stratann_engine::index::Index;
use stratann_engine::kinds::hybrid_ivf::facts::PlanReport;
use stratann_engine::kinds::hybrid_ivf::facts::SizeStats;
use stratann_engine::search::SearchOptions;
use stratann_params::measure::ExplainSettings;
use stratann_storage::Result;
use stratann_storage::budget::size;

use super::Args;
use crate::Verdict;
use crate::output::{Named, Output, count, table};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    sizes: SizeStats,
    plan: &'a PlanReport,
    measured: Option<&'a Measured>,
}

/// Prints the plan, and its comparison with measurements.
pub(super) fn run(
    (args, settings): (&Args, &ExplainSettings),
    index: &Index,
    options: &SearchOptions,
    output: Output,
) -> Result<Verdict> {
    let report = explain::plan(index)?;
    let measured = measured((args, settings), index, options, output)?;
    let sizes = index.manifest().section.lists().map(|l| l.facts.sizes).unwrap_or_default();
    let folder = args.index()?.unwrap_or(Path::new(""));
    let document = Document { index: Named(folder), sizes, plan: report, measured: measured.as_ref() };
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

fn measured(
    (args, settings): (&Args, &ExplainSettings),
    index: &Index,
    options: &SearchOptions,
    output: Output,
) -> Result<Option<Measured>> {
    if settings.sample == 0 {
        return Ok(None);
    }
    let mut rows = Vec::new();
    let asked = match args.queries() {
        None => MeasuredQueries::Rows { sample: settings.sample, seed: settings.seed },
        Some(path) => {
            let queries = Queries::open(path, index.manifest(), output)?;
            queries.read(0, settings.sample.min(queries.count()), &mut rows)?;
            MeasuredQueries::Queries(&rows)
        }
    };
    let printer = ProgressPrinter::new(output);
    let measured = explain::measure_plan(index, &asked, options, &printer)?;
    printer.finish();
    Ok(Some(measured))
}

fn text(document: &Document<'_>) -> String {
    let (plan, sizes) = (document.plan, &document.sizes);
    let mut out = format!(
        "{}: {} inverted lists of {} to {} vectors (mean {:.0}, standard deviation {:.0}, Gini {:.2})\n",
        document.index.display(),
        count(sizes.count),
        count(sizes.min),
        count(sizes.max),
        sizes.mean,
        sizes.std,
        sizes.gini
    );
    out += &match plan.budget_bytes {
        Some(budget) => {
            format!(
                "RAM for list codes and tables: {}, the plan takes {}\n",
                size(budget),
                size(plan.ram_bytes)
            )
        }
        None => format!(
            "no --search-budget was given: codes are on disk; tables of lists take {} of RAM\n",
            size(plan.ram_bytes)
        ),
    };
    out += &format!(
        "a read under load costs {:.1} us and {:.3} us per KiB; lists are weighted by their {}\n\n",
        plan.read_us,
        plan.kib_us,
        if plan.observed { "observed visits" } else { "sizes" }
    );
    let rows: Vec<Vec<String>> = plan
        .ways
        .iter()
        .map(|way| {
            vec![
                way.kind.clone(),
                place(way.in_ram),
                count(way.clusters),
                count(way.members),
                format!("{} to {}", count(way.sizes[0]), count(way.sizes[1])),
                format!("{:.1}", way.visit_us),
                size(way.ram_bytes),
            ]
        })
        .collect();
    out +=
        &table(&["local index", "codes", "lists", "vectors", "vectors each", "us per visit", "RAM"], &rows);
    out += &alternatives(plan);
    let Some(measured) = document.measured else { return out };
    let was_read = measured.ways.iter().any(|way| !way.in_ram);
    if was_read && plan.ways.iter().any(|way| way.in_ram && way.kind != "graph") {
        out += "codes that are planned for RAM were on disk during this measurement: see --head-budget\n";
    }
    out + &measured_text(measured)
}

fn place(in_ram: bool) -> String {
    if in_ram { "in RAM" } else { "on disk" }.into()
}

/// Describes the alternatives to the plan.
fn alternatives(plan: &PlanReport) -> String {
    let [flat, graph, ivf] = plan.uniform_us.map(|us| match us {
        Some(us) => format!("{us:.1}"),
        None => "beyond the budget".into(),
    });
    format!(
        "\npredicted, us per visit: this plan {:.1}, lower bound of all plans under this budget {:.1}; \
         all flat {flat}, all graphs {graph}, all divided (ivf) {ivf}\n",
        plan.visit_us, plan.bound_us
    )
}

fn measured_text(m: &Measured) -> String {
    let own = if m.source == "rows" { "rows of the index, each hidden from itself" } else { "queries" };
    let mut out = format!(
        "\nmeasured on {} {own}: k {}, nprobe {}, {:.1} visits each\n\n",
        count(m.queries as u64),
        m.k,
        m.nprobe,
        m.visits
    );
    let rows: Vec<Vec<String>> = m.ways.iter().map(row).collect();
    let headings = [
        "local index",
        "codes",
        "visits",
        "clusters",
        "reads per visit",
        "KiB per visit",
        "predicted us",
        "measured us",
        "ratio",
    ];
    out += &table(&headings, &rows);
    out += &format!(
        "\nreads of codes, us per query: predicted {:.1}, measured {:.1}{}. Both are of these visits, and without \
         comparisons; measured are the reads and KiB counted, at the costs above.\n\
         candidates are read in addition, with every plan: {:.1} reads, {:.0} KiB per query\n",
        m.predicted_us,
        m.measured_us,
        ratio(m.measured_us, m.predicted_us).map_or(String::new(), |r| format!(", {r:.2} times as much")),
        m.candidate_reads,
        m.candidate_kib
    );
    out
}

fn row(way: &WayMeasured) -> Vec<String> {
    vec![
        way.kind.into(),
        place(way.in_ram),
        count(way.visits),
        count(way.clusters),
        format!("{:.2}", way.reads),
        format!("{:.1}", way.kib),
        format!("{:.1}", way.predicted_us),
        format!("{:.1}", way.measured_us),
        ratio(way.measured_us, way.predicted_us).map_or("-".into(), |r| format!("{r:.2}")),
    ]
}

fn ratio(measured: f64, predicted: f64) -> Option<f64> {
    (predicted > 0.0).then(|| measured / predicted)
}
