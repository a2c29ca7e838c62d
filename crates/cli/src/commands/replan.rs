//! `stratann replan`: plans a hybrid-ivf for another RAM budget.

use std::path::PathBuf;

use stratann_core::format::directory::LocalKind;
use stratann_engine::kinds::hybrid_ivf::replan::{self, ReplanOptions, Replanned};
use stratann_params::choices::PlanName;
use stratann_storage::Result;
use stratann_storage::budget::size;

use crate::output::{Output, count, table};
use crate::progress::ProgressPrinter;
use crate::{Verdict, options};

/// Plan a hybrid-ivf for another RAM budget, and rebuild the inverted lists that change
///
/// Chooses as a build does which lists are scanned, divided or graphs, by the costs that the build measured. Lists are
/// weighted by observed visits, where known. Other lists are copied, and learnt statistics are kept. The old version
/// stays in use until the new one is complete.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Folder of the index
    index: PathBuf,
    /// RAM of later searches, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    search_budget: u64,
    /// Local index of the inverted lists
    #[arg(long, value_parser = options::choice::<PlanName>(), default_value = "auto")]
    plan: PlanName,
    /// Threads [default: all cores]
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// Limit of the memory of this command [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  stratann replan base.idx --search-budget 256MiB
  stratann replan base.idx --search-budget 64MiB --plan uniform-ivf";

/// Runs `stratann replan`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let options = ReplanOptions {
        search_budget: args.search_budget,
        local_plan: args.plan.into(),
        threads: args.threads.unwrap_or_else(options::all_cores),
        ram_budget: args.ram_budget,
    };
    let printer = ProgressPrinter::new(output);
    let replanned = replan::replan(&args.index, &options, &printer)?;
    printer.finish();
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
        0 => "no list changes, all files are shared".to_string(),
        n => format!(
            "{} lists rebuilt; {} written, {} copied, {} shared",
            count(n),
            size(done.rewritten_bytes),
            size(done.copied_bytes),
            size(done.shared_bytes)
        ),
    };
    let before = done.visit_us_before.map_or("does not fit".to_string(), |us| format!("{us:.1} µs"));
    let weights = if done.observed { "observed visits" } else { "their sizes" };
    let mut out = format!(
        "{}\n{}: version {}; {what}\n\
         predicted cost of a visit under this budget, lists weighted by {weights}: {:.1} µs, before {before}\n\
         codes take {} of the {} that the budget leaves for them\n",
        table(&["local index", "lists before", "now"], &rows),
        args.index.display(),
        done.version,
        done.visit_us,
        size(done.ram_bytes),
        size(done.code_budget_bytes)
    );
    if done.tune {
        out.push_str(
            "recall was measured with other local indexes; run `stratann tune` to measure it again\n",
        );
    }
    out
}
