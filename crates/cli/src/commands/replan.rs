//! `stratann replan`: plans the clusters of an index anew for another RAM budget.

use std::path::PathBuf;

use stratann_core::format::directory::LocalKind;
use stratann_engine::Result;
use stratann_engine::budget::size;
use stratann_engine::kinds::hybrid_ivf::replan::{self, ReplanOptions, Replanned};

use crate::Verdict;
use crate::options::{self, PlanName};
use crate::output::{Output, count, table};
use crate::progress::Teller;

/// Plan a hybrid-ivf anew for another RAM budget, and rebuild the clusters that change
///
/// Which clusters are scanned, divided or graphs is chosen as in a build, from the costs that the index was built with; clusters weigh what
/// searches have visited them, where this is known. All other clusters are copied, and what was learnt from queries is kept. The old version is
/// there until the new one is whole.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder of the index
    index: PathBuf,
    /// RAM that searches will have, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    search_budget: u64,
    /// Which local index clusters get
    #[arg(long, value_enum, default_value = "auto")]
    plan: PlanName,
    /// Threads [default: all cores]
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// All memory that it may take itself [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  stratann replan base.idx --search-budget 256MiB
  stratann replan base.idx --search-budget 64MiB --plan uniform-ivf";

/// `stratann replan`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let options = ReplanOptions {
        search_budget: args.search_budget,
        local_plan: args.plan.into(),
        threads: args.threads.unwrap_or_else(options::all_cores),
        ram_budget: args.ram_budget,
    };
    let teller = Teller::new(output);
    let replanned = replan::replan(&args.index, &options, &teller)?;
    teller.finish();
    output.result(&replanned, || text(args, &replanned))?;
    Ok(Verdict::Fine)
}

fn text(args: &Args, done: &Replanned) -> String {
    let rows: Vec<Vec<String>> = LocalKind::ALL
        .iter()
        .zip(done.kinds_before.iter().zip(&done.kinds_after))
        .map(|(kind, (&before, &after))| {
            vec![kind.name().into(), count(u64::from(before)), count(u64::from(after))]
        })
        .collect();
    let what = match done.rebuilt {
        0 => "no cluster changes, all files are shared".to_string(),
        n => format!(
            "{} clusters rebuilt; {} written anew, {} copied, {} shared",
            count(n),
            size(done.rewritten_bytes),
            size(done.copied_bytes),
            size(done.shared_bytes)
        ),
    };
    let before = done.visit_us_before.map_or("does not fit".to_string(), |us| format!("{us:.1} µs"));
    let weighed = if done.observed { "observed visits" } else { "their sizes" };
    let mut out = format!(
        "{}\n{}: version {}; {what}\npredicted cost of a visit under this budget, clusters weighed by {weighed}: {:.1} µs, before {before}\n\
         codes take {} of the {} that the budget leaves for them\n",
        table(&["local index", "clusters before", "now"], &rows),
        args.index.display(),
        done.version,
        done.visit_us,
        size(done.ram_bytes),
        size(done.code_budget_bytes)
    );
    if done.tune {
        out.push_str(
            "recall was measured with other local indexes; run `stratann tune` to measure it anew\n",
        );
    }
    out
}
