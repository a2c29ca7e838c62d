//! `stratann-lab paper`: repeats the figures and tables of a paper, and prints what it says beside what we measure.

use std::path::PathBuf;

use stratann_cli::Verdict;
use stratann_cli::output::Output;
use stratann_storage::output;
use stratann_storage::{Error, Result};

mod batann;
mod chart;
mod d_hnsw;
mod fusionanns;
mod harmony;
mod item;
mod orchann;
mod page;
mod report;
mod sets;
mod study;

use item::{Item, Measure};
use page::{Page, typed};
use report::Report;
use sets::SetArgs;
use study::Study;

/// Repeat the figures and tables of a paper on this machine, and compare
///
/// Each figure is measured by commands of this program, which are printed and can be repeated by hand. Their documents
/// are kept in the folder: a run that was interrupted goes on where it was, and --again measures all of it once more.
/// Writes DIR/PAPER.json, DIR/PAPER.md and an SVG for each figure.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paper
    #[arg(value_enum)]
    name: PaperName,
    /// Folder for vectors, indexes, documents and figures
    #[arg(short, long, value_name = "DIR", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// List the figures and tables, with those that are left out and why, and measure nothing
    #[arg(long)]
    list: bool,
    /// Measure these alone, such as "figure 3,table 2" [default: all]
    #[arg(long, value_delimiter = ',', value_name = "ITEM,…")]
    only: Vec<String>,
    /// Put the tables into this page, between the lines <!-- paper:PAPER --> and <!-- /paper -->
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    page: Option<PathBuf>,
    /// Measure all of it once more, whatever the folder has
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    sets: SetArgs,
}

const EXAMPLES: &str = "\
Examples:
  stratann-lab paper batann --list
  stratann-lab paper batann -o /tmp/batann --rows 100000
  stratann-lab paper fusionanns -o /tmp/fusionanns --only \"figure 12,regime\"
  stratann-lab paper d-hnsw -o /tmp/d-hnsw --rows 100000
  stratann-lab paper batann -o /tmp/sift --base base.u8bin --queries query.u8bin --only \"figure 3,figure 4\"";

/// Papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PaperName {
    /// A disk graph over many servers; the state of a query is handed along.
    Batann,
    /// Lists in memory, divided over servers by lists and by components.
    Harmony,
    /// Lists on disk with local indexes, and a navigation graph that learns.
    Orchann,
    /// Codes on a GPU, ids of lists in RAM, vectors on disk.
    Fusionanns,
    /// Clusters with graphs of their own in the memory of other machines.
    DHnsw,
}

impl PaperName {
    fn name(self) -> &'static str {
        match self {
            PaperName::Batann => "batann",
            PaperName::Harmony => "harmony",
            PaperName::Orchann => "orchann",
            PaperName::Fusionanns => "fusionanns",
            PaperName::DHnsw => "d-hnsw",
        }
    }

    /// All figures and tables of the paper, and studies of techniques that it does not measure.
    fn items(self) -> &'static [Item] {
        match self {
            PaperName::Batann => &batann::ITEMS,
            PaperName::Harmony => &harmony::ITEMS,
            PaperName::Orchann => &orchann::ITEMS,
            PaperName::Fusionanns => &fusionanns::ITEMS,
            PaperName::DHnsw => &d_hnsw::ITEMS,
        }
    }

    /// The set that stands for those of the paper.
    fn made_set(self) -> sets::MadeSet {
        match self {
            PaperName::Batann => batann::SET,
            PaperName::Harmony => harmony::SET,
            PaperName::Orchann => orchann::SET,
            PaperName::Fusionanns => fusionanns::SET,
            PaperName::DHnsw => d_hnsw::SET,
        }
    }
}

/// Runs `stratann-lab paper`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let items = chosen(args)?;
    let (Some(folder), false) = (&args.output, args.list) else {
        let listed = report::List { paper: args.name.name(), items: &items };
        output.result(&listed, || listed.text())?;
        return Ok(Verdict::Fine);
    };
    output::check_folder(folder)?;
    let page = args.page.as_deref().map(|page| Page::open(page, args.name.name())).transpose()?;
    let mut study = Study::open(folder, args.again, output)?;
    let set = args.sets.set(args.name.made_set(), &mut study)?;
    let mut report = Report::new(args.name.name(), typed(std::env::args()), &set);
    for item in items {
        match item.measure {
            Measure::LeftOut(why) => report.left_out(item, why),
            Measure::By(measure) => {
                output.note(&format!("{}: {}", item.id, item.title));
                let found = measure(&mut study, &set)?;
                report.add(item, found, study.take_commands());
            }
        }
        report.write(folder)?;
    }
    page.map_or(Ok(()), |page| page.write(&report.page()))?;
    output.result(&report, || report.text())?;
    Ok(Verdict::Fine)
}

/// The items that `--only` names, or all.
fn chosen(args: &Args) -> Result<Vec<&'static Item>> {
    let all = args.name.items();
    if args.only.is_empty() {
        return Ok(all.iter().collect());
    }
    let find = |id: &String| {
        all.iter().find(|item| item.id == id.trim()).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|item| item.id).collect();
            Error::bad_input(format!(
                "--only: {} has no {id:?}; it has {}",
                args.name.name(),
                known.join(", ")
            ))
        })
    };
    args.only.iter().map(find).collect()
}
