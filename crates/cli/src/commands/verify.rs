//! `stratann verify`: reads the whole index and reports damage.

use std::path::PathBuf;

use stratann_engine::budget::size;
use stratann_engine::verify::{self, Finding, Report};
use stratann_engine::{Progress, Result};

use crate::Verdict;
use crate::output::{Output, count};
use crate::progress::ProgressPrinter;

/// Read the whole index and report everything that is wrong
///
/// Compares every file with its checksum in the manifest and every block with its own, and checks the invariants of the
/// graph. Of a hybrid-ivf it checks every list and vector, and the bounds by which searches prune. The exit code is 1
/// when anything is wrong. Damage is reported by file, block or list, and offset; restore that file from a copy, or
/// build the index again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the index
    index: PathBuf,
}

/// Runs `stratann verify`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let report = verify::verify(&args.index, &printer)?;
    printer.finish();
    if report.unreachable > 0 {
        printer.note(&format!(
            "note: {} nodes are in blocks that no edge leads to; no search finds them",
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
                "{name}: {n} violations; version {}, {read}; restore these files, or build the index again\n",
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
