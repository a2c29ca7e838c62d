//! `stratann replan`: plans a hybrid-ivf for another RAM budget.

use std::path::PathBuf;

use stratann_core::format::directory::LocalKind;
use stratann_engine::kinds::hybrid_ivf::replan::{self, ReplanOptions, Replanned};
use stratann_params::build::CommonOptions;
use stratann_params::change::ReplanSettings;
use stratann_params::{Place, Stage};
use stratann_storage::Result;
use stratann_storage::budget::size;

use crate::output::{Output, count, table};
use crate::parameters::{Parameters, Rows};
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
    #[command(flatten)]
    table: Parameters<ReplanRows>,
}

/// The table's options of a plan.
struct ReplanRows;

impl Rows for ReplanRows {
    const STAGES: &'static [Stage] = &[Stage::Replan];
}

const EXAMPLES: &str = "\
Examples:
  stratann replan base.idx --search-budget 256MiB
  stratann replan base.idx --search-budget 64MiB --plan uniform-ivf";

/// Runs `stratann replan`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    args.table.check(None, Place::Folder)?;
    let (settings, common): (ReplanSettings, CommonOptions) =
        (args.table.given.read(), args.table.given.read());
    let options = ReplanOptions {
        search_budget: settings.search_budget.unwrap_or(0),
        local_plan: settings.plan.into(),
        threads: common.threads.unwrap_or_else(options::all_cores),
        ram_budget: settings.ram_budget,
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
