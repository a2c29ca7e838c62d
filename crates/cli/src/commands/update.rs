//! `stratann insert` and `stratann delete`: change an index that memory nodes hold, or delete rows of one in a folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use stratann_engine::dataset::{read_all_ids, read_ids};
use stratann_engine::deletes::{self, Deleted};
use stratann_engine::index::{Acknowledged, Index, PLACE, Unfinished, UpdateOptions};
use stratann_engine::manifest::Manifest;
use stratann_params::Stage;
use stratann_params::change::UpdateSettings;
use stratann_storage::{Error, Progress, Result};

use crate::Verdict;
use crate::memory_nodes::{self, KeyArgs, MemoryArgs};
use crate::output::{Output, count, duration};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

/// Vectors of one call of the engine.
const PART: usize = 16_384;
/// Ranges of rows that an error names, at most.
const RANGES_MAX: usize = 8;

/// The table's options of changes.
struct UpdateRows;

impl Rows for UpdateRows {
    const STAGES: &'static [Stage] = &[Stage::Update];
}

/// The options of changes that a user gave.
///
/// # Errors
/// A number out of range.
fn options(table: &Parameters<UpdateRows>, new_ids: bool) -> Result<UpdateOptions> {
    table.check(None, stratann_params::Place::MemoryNodes)?;
    Ok(UpdateOptions::read(&table.given, new_ids))
}

/// Insert vectors into an index that memory nodes hold
///
/// What is under an id is replaced. Every search that begins afterwards, on any compute node, finds the vectors. All
/// vectors are checked before the first one is inserted. An insert into a full group rebuilds the group, while searches
/// go on.
#[derive(clap::Args)]
#[command(after_long_help = INSERT_EXAMPLES)]
pub struct InsertArgs {
    /// Vectors, in any vector format; f32 and f16 are converted to each other
    vectors: PathBuf,
    #[command(flatten)]
    nodes: MemoryArgs,
    /// Their ids, one u64 per row, .u64bin or .npy [default: the row number]
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// No id was ever inserted before: saves a tombstone for each vector. With an id that was, searches find two
    /// vectors under it
    #[arg(long)]
    new: bool,
    #[command(flatten)]
    table: Parameters<UpdateRows>,
}

const INSERT_EXAMPLES: &str = "\
Examples:
  stratann insert new.fbin --memory 10.0.0.9:8900 --key-file key --ids new.u64bin
  stratann insert new.fbin --memory 10.0.0.9:8900,10.0.0.10:8900 --key-file key --ids new.u64bin --new

The vectors are in memory: they end with their memory node, and with the next load. An error says which rows are
acknowledged. Rows that are inserted again replace themselves.";

/// Delete rows of an index, in a folder or in memory nodes
///
/// No search that begins afterwards finds them. In a folder a new version says which rows are deleted: data files stay
/// as they are, and --undo takes the last delete back. What has the index open keeps its version. In memory nodes no
/// search on any compute node finds them from then on. Ids that do not exist are no error.
#[derive(clap::Args)]
#[command(
    after_long_help = DELETE_EXAMPLES,
    override_usage = "stratann delete [OPTIONS] INDEX IDS\n       stratann delete [OPTIONS] INDEX --undo\n       \
                      stratann delete [OPTIONS] IDS --memory <ADDRESS>"
)]
pub struct DeleteArgs {
    /// Folder of the index, unless --memory is given, and a file of ids: a .npy, .u64bin or .txt
    #[arg(value_name = "PATH", num_args = 0..=2)]
    paths: Vec<PathBuf>,
    /// Addresses of the memory nodes that hold the index: HOST:PORT, shm:NAME or ucx:HOST:PORT of each; or
    /// etcd:CLUSTER@URL, where etcd has them
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
    /// Ids, separated by commas, instead of a file
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    id: Vec<u64>,
    /// Take back the last delete of the index in a folder
    #[arg(long, conflicts_with_all = ["id", "memory"])]
    undo: bool,
    #[command(flatten)]
    table: Parameters<UpdateRows>,
}

const DELETE_EXAMPLES: &str = "\
Examples:
  stratann delete base.idx old.u64bin
  stratann delete base.idx --id 3,5
  stratann delete base.idx --undo
  stratann delete old.u64bin --memory 10.0.0.9:8900 --key-file key

A build from the index has none of them: `stratann build --from base.idx -o new.idx`.";

#[derive(Serialize)]
struct InsertDocument {
    inserted: u64,
    place: &'static str,
    groups_rebuilt: u64,
    round_trips: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct DeleteDocument {
    deleted: u64,
    place: &'static str,
    groups_rebuilt: u64,
    round_trips: u64,
    seconds: f64,
}

/// Runs `stratann insert`.
pub(crate) fn insert(args: &InsertArgs, output: Output) -> Result<Verdict> {
    let options = options(&args.table, args.new)?;
    let index = args.nodes.open(output)?;
    let vectors = Queries::to_insert(&args.vectors, index.manifest(), output)?;
    let rows = vectors.count();
    let ids = match &args.ids {
        Some(path) => read_ids(path, rows as u64)?,
        None => (0..rows as u64).collect(),
    };
    let printer = ProgressPrinter::new(output);
    let mut bytes = Vec::new();
    printer.stage("checking vectors", rows as u64, "vectors");
    let parts: Vec<_> = ids.chunks(PART).enumerate().map(|(part, ids)| (part * PART, ids)).collect();
    for (first, ids) in &parts {
        vectors.read(*first, ids.len(), &mut bytes)?;
        printer.advance(ids.len() as u64);
    }
    printer.stage("inserting", rows as u64, "vectors");
    let started = Instant::now();
    let change = |first: usize, ids: &[u64]| {
        vectors.read(first, ids.len(), &mut bytes)?;
        index.upsert(ids, &bytes, &options, &printer)
    };
    let made = in_parts(&parts, rows, change)?;
    printer.finish();
    let (groups_rebuilt, seconds) = (index.rebuilds(), started.elapsed().as_secs_f64());
    let round_trips = made.map_or(0, |made| made.round_trips);
    let document =
        InsertDocument { inserted: rows as u64, place: PLACE, groups_rebuilt, round_trips, seconds };
    output.result(&document, || text("inserted", document.inserted, &index, seconds))?;
    Ok(Verdict::Fine)
}

/// What a delete changes.
enum Place<'a> {
    Folder(&'a Path),
    MemoryNodes,
}

impl DeleteArgs {
    /// The index, and the ids to be deleted; none with --undo.
    fn read(&self) -> Result<(Place<'_>, Vec<u64>)> {
        let (place, files) = match (&*self.paths, self.memory.is_empty()) {
            (files, false) => (Place::MemoryNodes, files),
            ([folder, files @ ..], true) => (Place::Folder(folder), files),
            ([], true) => {
                return Err(Error::bad_input(
                    "no index is named; give its folder, or --memory and the memory nodes that hold it",
                ));
            }
        };
        let wrong = |why: &str| Err(Error::bad_input(why));
        let ids = match (files, &*self.id) {
            ([], []) if !self.undo => return wrong("no ids are given; give a file of them, or --id"),
            ([], ids) => ids.to_vec(),
            ([_, ..], [_, ..]) => return wrong("ids come from a file or from --id; leave one of them out"),
            ([_, ..], []) if self.undo => return wrong("--undo takes no ids; leave them out"),
            ([file], []) => read_all_ids(file)?,
            ([_, file, ..], []) => {
                let file = file.display();
                return wrong(&format!(
                    "{file} is one path too many: with --memory a file of ids is given alone"
                ));
            }
        };
        Ok((place, ids))
    }
}

/// Runs `stratann delete`.
pub(crate) fn delete(args: &DeleteArgs, output: Output) -> Result<Verdict> {
    let (place, ids) = args.read()?;
    match place {
        Place::Folder(folder) => delete_in_folder(args, (folder, &ids), output),
        Place::MemoryNodes => delete_in_memory(args, &ids, output),
    }
}

fn delete_in_folder(args: &DeleteArgs, (folder, ids): (&Path, &[u64]), output: Output) -> Result<Verdict> {
    if args.key.is_given() {
        return Err(Error::bad_input("keys are for memory nodes, and a folder is named; leave them out"));
    }
    args.table.check(None, stratann_params::Place::Folder)?;
    let settings: UpdateSettings = args.table.given.read();
    let printer = ProgressPrinter::new(output);
    let deleted = match args.undo {
        true => deletes::undo(folder)?,
        false => deletes::delete(folder, ids, settings.ram_budget, &printer)?,
    };
    printer.finish();
    output.result(&deleted, || folder_text(folder, args.undo, &deleted))?;
    if let Some(note) = Manifest::read(folder)?.1.curves_note() {
        output.note(&format!("warning: {note}"));
    }
    Ok(Verdict::Fine)
}

fn folder_text(folder: &Path, undo: bool, deleted: &Deleted) -> String {
    let what = if undo { "brought back" } else { "deleted" };
    let mut line = format!("{what} {} rows", count(deleted.changed));
    let others = [
        (deleted.unknown as u64, "ids are of no row"),
        (deleted.repeated as u64, "ids were named twice"),
        (deleted.already, "rows were deleted before"),
    ];
    for (number, what) in others.into_iter().filter(|other| other.0 > 0) {
        line += &format!("; {} {what}", count(number));
    }
    format!(
        "{line}\n{}: version {}, {} rows are left, {} deleted\n",
        folder.display(),
        deleted.version,
        count(deleted.left),
        count(deleted.deleted)
    )
}

fn delete_in_memory(args: &DeleteArgs, ids: &[u64], output: Output) -> Result<Verdict> {
    let options = options(&args.table, false)?;
    let index = memory_nodes::open(&args.memory, &args.key, output)?;
    let printer = ProgressPrinter::new(output);
    printer.stage("deleting", ids.len() as u64, "ids");
    let parts: Vec<_> = ids.chunks(PART).enumerate().map(|(part, ids)| (part * PART, ids)).collect();
    let started = Instant::now();
    let made = in_parts(&parts, ids.len(), |_, ids| index.delete(ids, &options, &printer))?;
    printer.finish();
    let (groups_rebuilt, seconds) = (index.rebuilds(), started.elapsed().as_secs_f64());
    let round_trips = made.map_or(0, |made| made.round_trips);
    let document =
        DeleteDocument { deleted: ids.len() as u64, place: PLACE, groups_rebuilt, round_trips, seconds };
    output.result(&document, || text("deleted", document.deleted, &index, seconds))?;
    Ok(Verdict::Fine)
}

fn text(what: &str, changes: u64, index: &Index, seconds: f64) -> String {
    format!(
        "{what} {} vectors in {}: they are in {PLACE}; {} groups were rebuilt\n",
        count(changes),
        duration(seconds),
        count(index.rebuilds())
    )
}

/// Makes the changes part by part. An error names the rows of all parts that are acknowledged.
fn in_parts(
    parts: &[(usize, &[u64])],
    rows: usize,
    mut change: impl FnMut(usize, &[u64]) -> Result<Acknowledged, Unfinished>,
) -> Result<Option<Acknowledged>> {
    let mut all: Option<Acknowledged> = None;
    for &(first, ids) in parts {
        match change(first, ids) {
            Ok(made) => {
                let round_trips = made.round_trips + all.map_or(0, |all| all.round_trips);
                all = Some(Acknowledged { round_trips, ..made });
            }
            Err(Unfinished { error, acknowledged, .. }) => {
                let done: Vec<usize> = acknowledged.into_iter().map(|row| first + row).collect();
                let message = format!(
                    "{}; {} of {} rows are acknowledged{}",
                    error.message,
                    count((first + done.len()) as u64),
                    count(rows as u64),
                    named(first, &done)
                );
                return Err(Error { message, ..error });
            }
        }
    }
    Ok(all)
}

/// The rows before the first one of a part, and some of the part, as ranges.
fn named(first: usize, done: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = if first > 0 { vec![(0, first - 1)] } else { Vec::new() };
    for &row in done {
        match ranges.last_mut() {
            Some(last) if last.1 + 1 == row => last.1 = row,
            _ => ranges.push((row, row)),
        }
    }
    let more = if ranges.len() > RANGES_MAX { ", …" } else { "" };
    let range =
        |&(from, to): &(usize, usize)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    let ranges: Vec<String> = ranges.iter().take(RANGES_MAX).map(range).collect();
    if ranges.is_empty() { String::new() } else { format!(" ({}{more})", ranges.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_rows_are_named_as_ranges() {
        assert_eq!(named(0, &[]), "");
        assert_eq!(named(0, &[0, 1, 2, 5, 7, 8]), " (0-2, 5, 7-8)");
        assert_eq!(named(100, &[100, 103]), " (0-100, 103)");
        let many: Vec<usize> = (0..20).map(|row| 2 * row).collect();
        assert_eq!(named(0, &many), " (0, 2, 4, 6, 8, 10, 12, 14, …)");
    }
}
