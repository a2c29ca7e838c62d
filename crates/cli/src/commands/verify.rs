//! `stratann verify`: reads all of an index and says what is wrong.

use std::path::PathBuf;

use stratann_engine::budget::size;
use stratann_engine::verify::{self, Finding, Report};
use stratann_engine::{Progress, Result};

use crate::Verdict;
use crate::output::{Output, count};
use crate::progress::Teller;

/// Read all of an index and list everything that is wrong with it
///
/// Every file is compared with the checksum in the manifest, every block with its own, and the graph with what must hold in it; of a hybrid-ivf every list
/// and vector, and the bounds by which a search does not read them. Exit code 1 when anything is wrong. What is damaged is named by file, block or list, and
/// offset; restore that file from a copy, or build the index again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the index
    index: PathBuf,
}

/// `stratann verify`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let teller = Teller::new(output);
    let report = verify::verify(&args.index, &teller)?;
    teller.finish();
    if report.unreachable > 0 {
        teller.note(&format!(
            "note: {} nodes lie in blocks that nothing leads to; no search finds them",
            count(report.unreachable)
        ));
    }
    output.result(&report, || text(args, &report))?;
    Ok(if report.violations_found == 0 { Verdict::Fine } else { Verdict::Failed })
}

fn text(args: &Args, report: &Report) -> String {
    let name = args.index.display();
    let mut out = String::new();
    for finding in &report.violations {
        out += &line(finding);
    }
    let listed = report.violations.len() as u64;
    if report.violations_found > listed {
        out += &format!("… and {} more\n", count(report.violations_found - listed));
    }
    let parts = match report.lists {
        Some(lists) => format!("{} lists, {} vectors", count(u64::from(lists)), count(report.nodes)),
        None => format!("{} blocks, {} edges", count(u64::from(report.blocks)), count(report.edges)),
    };
    let read = format!("{} files, {}, {parts}", report.files, size(report.bytes));
    match report.violations_found {
        0 => out += &format!("{name}: sound; version {}, {read}\n", report.version),
        n => {
            out += &format!(
                "{name}: {n} violations; version {}, {read}; restore what is named, or build the index again\n",
                report.version
            )
        }
    }
    out
}

fn line(finding: &Finding) -> String {
    let block = finding.block.map(|b| format!(", block {b}")).unwrap_or_default();
    let block = finding.list.map_or(block, |l| format!(", list {l}"));
    let offset = finding.offset.map(|o| format!(", offset {o}")).unwrap_or_default();
    format!("{}{block}{offset}: {}\n", finding.file, finding.what)
}
