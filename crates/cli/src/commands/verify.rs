//! `stratann verify`: reads the whole index and reports damage.

use std::path::Path;

use stratann_engine::index::Index;
use stratann_engine::kinds::remote_hnsw::live::inspect::MemoryReport;
use stratann_engine::verify::{self, Finding, Report};
use stratann_storage::budget::size;
use stratann_storage::{Progress, Result};

use crate::Verdict;
use crate::memory_nodes::{IndexPlace, PlaceArgs};
use crate::output::{Output, count};
use crate::progress::ProgressPrinter;

/// Read the whole index and report everything that is wrong
///
/// Compares every file with its checksum in the manifest and every block with its own, and checks the invariants of the
/// graph. Of a hybrid-ivf it checks every list and vector, and the bounds by which searches prune. The exit code is 1
/// when anything is wrong. Damage is reported by file, block or list, and offset; restore that file from a copy, or
/// build the index again. With --memory it checks what memory nodes hold, while it is searched and changed:
/// superblocks, descriptors, every cluster and fresh record.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
}

/// Runs `stratann verify`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let folder = match args.place.place(output)? {
        IndexPlace::Folder(folder) => folder,
        IndexPlace::Memory(name, index) => return verify_memory(&name, &index, output),
    };
    let printer = ProgressPrinter::new(output);
    let report = verify::verify(folder, &printer)?;
    printer.finish();
    if report.unreachable > 0 {
        printer.note(&format!(
            "note: {} nodes are in blocks that no edge leads to; no search finds them",
            count(report.unreachable)
        ));
    }
    output.result(&report, || text(folder, &report))?;
    Ok(if report.violations_found == 0 { Verdict::Fine } else { Verdict::Failed })
}

/// Verifies what memory nodes hold.
fn verify_memory(name: &str, index: &Index, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let found = index.verify_memory(&printer)?;
    printer.finish();
    output.result(&found, || memory_text(name, &found))?;
    Ok(if found.report.violations_found == 0 { Verdict::Fine } else { Verdict::Failed })
}

fn memory_text(name: &str, found: &MemoryReport) -> String {
    let (report, fresh, live) = (&found.report, &found.fresh, &found.live);
    let read = format!(
        "{} nodes, {} clusters in {} groups ({} rebuilt), {} vectors, {}; fresh records: {} published, {} holes, {} \
         killed; {} tombstones",
        live.nodes.len(),
        count(report.lists.unwrap_or(0).into()),
        count(live.groups.into()),
        count(live.rebuilt_groups.into()),
        count(report.nodes),
        size(report.bytes),
        count(fresh.published),
        count(fresh.holes),
        count(fresh.killed),
        count(live.tombstones)
    );
    let mut out = findings(report);
    out += &match report.violations_found {
        0 => format!("{name}: sound; {read}\n"),
        n => {
            format!("{name}: {n} violations; {read}; load the index again with `stratann memory-node load`\n")
        }
    };
    out
}

/// The findings, a line each.
fn findings(report: &Report) -> String {
    let mut out: String = report.violations.iter().map(line).collect();
    let listed = report.violations.len() as u64;
    if report.violations_found > listed {
        out += &format!("… and {} more\n", count(report.violations_found - listed));
    }
    out
}

fn text(folder: &Path, report: &Report) -> String {
    let name = folder.display();
    let mut out = findings(report);
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
