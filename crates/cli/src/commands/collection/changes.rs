//! `stratann collection upsert` and `delete`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use stratann_node::collections::{Collection, Condition, GivenVectors};
use stratann_node::rows::ExternalId;
use stratann_params::collection::{DeleteSettings, UpsertSettings};
use stratann_params::{Param, Stage};
use stratann_payload::Predicate;
use stratann_storage::{Error, Progress, Result};

use super::patience::Patience;
use super::payload_file::PayloadFile;
use super::vectors::files;
use super::{SHARED, opened};
use crate::Verdict;
use crate::data_folder::{Ids, plain, wanted};
use crate::output::{Output, count, duration};
use crate::parameters::{Parameters, Rows};
use crate::point_filter::{PointFilterArgs, WithoutIndex};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

/// The table's options of upserts.
struct UpsertRows;

impl Rows for UpsertRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        SHARED.contains(&param.name) || ["ids", "first_id"].contains(&param.name)
    }
}

/// The table's options of deletes.
struct DeleteRows;

impl Rows for DeleteRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        SHARED.contains(&param.name) || param.name == "id"
    }
}

/// Write points: new ones, and in place of those that have their ids
///
/// All vectors are checked before the first one is written. They are written in batches, each of which is durable as a
/// whole. Where the command ends early, it says which rows are; the same command again replaces them.
#[derive(clap::Args)]
#[command(
    after_long_help = UPSERT_EXAMPLES,
    override_usage = "stratann collection upsert [OPTIONS] --data <DIR> NAME VECTORS\n       \
                      stratann collection upsert [OPTIONS] --data <DIR> NAME --vectors <NAME=FILE>"
)]
pub(super) struct Upsert {
    /// Name of the collection
    name: String,
    /// Vectors, in any vector format; f32 and f16 are converted to each other
    #[arg(value_name = "VECTORS")]
    file: Option<PathBuf>,
    /// Vectors of a name, where they have names; give it for each name. All files have a row for each point
    #[arg(long, value_name = "NAME=FILE")]
    vectors: Vec<String>,
    /// Change only these vectors of points that are there; the others and payloads stay
    #[arg(long, conflicts_with_all = ["payload", "if_absent", "if_unchanged_since"])]
    update: bool,
    /// Payloads: a JSON object, or null, on a line for each vector
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Write only points of ids that have none
    #[arg(long)]
    if_absent: bool,
    /// Leave points as they are that a change behind this number wrote
    #[arg(long, value_name = "SEQ", conflicts_with = "if_absent")]
    if_unchanged_since: Option<u64>,
    #[command(flatten)]
    table: Parameters<UpsertRows>,
}

const UPSERT_EXAMPLES: &str = "\
Examples:
  stratann collection upsert --data photos.data photos base.fbin
  stratann collection upsert --data photos.data photos new.fbin --first-id 1000
  stratann collection upsert --data photos.data photos new.fbin --ids names.txt
  stratann collection upsert --data photos.data photos new.fbin --payload fields.jsonl
  stratann collection upsert --data shop.data shop --vectors title=titles.fbin --vectors image=images.u8bin
  stratann collection upsert --data shop.data shop --vectors title=titles.fbin --update
  stratann collection upsert --data photos.data photos new.fbin --if-absent

Ids in a text file: digits alone are a number, a UUID in its usual form is a UUID, anything else is a string of up to
255 bytes. Of rows with one id the last one counts. A payload replaces that of an earlier point of its id; without
--payload the new points have none.";

/// Delete points by their ids, or those that match a filter
///
/// Ids without a point are no error; they are counted.
#[derive(clap::Args)]
#[command(
    after_long_help = DELETE_EXAMPLES,
    override_usage = "stratann collection delete [OPTIONS] --data <DIR> NAME IDS\n       \
                      stratann collection delete [OPTIONS] --data <DIR> NAME --id <ID>\n       \
                      stratann collection delete [OPTIONS] --data <DIR> NAME --where <TEXT>"
)]
pub(super) struct Delete {
    /// Name of the collection
    name: String,
    /// File of ids: .u64bin or .npy, or a text file with one on each line
    ids: Option<PathBuf>,
    #[command(flatten)]
    filter: PointFilterArgs,
    #[command(flatten)]
    table: Parameters<DeleteRows>,
}

const DELETE_EXAMPLES: &str = "\
Examples:
  stratann collection delete --data photos.data photos old.txt
  stratann collection delete --data photos.data photos --id 3,5,f47ac10b-58cc-4372-a567-0e02b2c3d479
  stratann collection delete --data photos.data photos --where \"price >= 50 and sold = true\"";

#[derive(Default, Serialize)]
struct UpsertDocument {
    name: String,
    rows: u64,
    new: u64,
    replaced: u64,
    repeated: u64,
    /// Ids whose point was left as it was.
    skipped: Vec<ExternalId>,
    seq: u64,
    seconds: f64,
}

#[derive(Default, Serialize)]
struct DeleteDocument {
    name: String,
    ids: u64,
    deleted: u64,
    unknown: u64,
    seq: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct MatchingDocument {
    name: String,
    deleted: u64,
    changed: u64,
    changes: u64,
    seq: u64,
    unindexed: Vec<String>,
    seconds: f64,
}

/// Files of vectors, each with its name.
struct Files {
    all: Vec<(String, Queries)>,
    rows: usize,
}

impl Files {
    /// Opens the file of vectors without a name, or those of names.
    fn open(args: &Upsert, collection: &Collection, output: Output) -> Result<Files> {
        let named = match (&args.file, &args.vectors[..]) {
            (Some(_), [_, ..]) => {
                return Err(Error::bad_input(
                    "vectors come from a file, or by name from --vectors; leave one out",
                ));
            }
            (Some(path), []) => vec![(String::new(), path.clone())],
            (None, []) => {
                return Err(Error::bad_input(
                    "no vectors are given; give a file of them, or --vectors NAME=FILE",
                ));
            }
            (None, given) => files(given)?,
        };
        let mut all = Vec::new();
        for (name, path) in named {
            let (_, spec) = collection.specs().find(Some(&name)).map_err(plain)?;
            all.push((name, Queries::points(&path, wanted(spec), output)?));
        }
        let rows = all.first().map_or(0, |(_, own)| own.count());
        match all.iter().find(|(_, own)| own.count() != rows) {
            Some((name, own)) => Err(Error::bad_input(format!(
                "--vectors {name} has {} rows, and --vectors {} has {rows}; give a row for each point",
                own.count(),
                all[0].0
            ))),
            None => Ok(Files { all, rows }),
        }
    }

    fn row_bytes(&self) -> usize {
        self.all.iter().map(|(_, own)| own.row_bytes() + own.conversion_bytes()).sum()
    }

    /// The vectors of some rows, by name.
    fn read(&self, rows: &Range<usize>) -> Result<Vec<(&str, Vec<u8>)>> {
        let mut all = Vec::with_capacity(self.all.len());
        for (name, own) in &self.all {
            let mut bytes = Vec::new();
            own.read(rows.start, rows.len(), &mut bytes)?;
            all.push((name.as_str(), bytes));
        }
        Ok(all)
    }
}

/// Runs `stratann collection upsert`.
pub(super) fn upsert(args: &Upsert, output: Output) -> Result<Verdict> {
    let settings: UpsertSettings = args.table.given.read();
    let condition = match args.if_unchanged_since {
        Some(seq) => Condition::IfNotNewer(seq),
        None if args.if_absent => Condition::IfAbsent,
        None => Condition::Always,
    };
    let printer = ProgressPrinter::new(output);
    // Held to the end: it writes points into segments meanwhile.
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let files = Files::open(args, &collection, output)?;
    let rows = files.rows;
    let ids = match &settings.ids {
        Some(path) => Ids::read(path)?.check_rows(rows, path)?,
        None => Ids::from_number(settings.first_id, rows)?,
    };
    let mut payloads = args.payload.as_deref().map(|path| PayloadFile::open(path, rows)).transpose()?;
    let row_bytes = files.row_bytes();
    let batches = ids.batches_of(|row| row_bytes + payloads.as_ref().map_or(0, |own| own.bytes_of(row)));
    printer.stage("checking vectors", rows as u64, "vectors");
    for batch in &batches {
        printer.check_interrupted()?;
        files.read(batch)?;
        printer.advance(batch.len() as u64);
    }
    printer.stage("writing", rows as u64, "vectors");
    let started = Instant::now();
    let mut document = UpsertDocument { name: args.name.clone(), rows: rows as u64, ..Default::default() };
    in_batches(&batches, ("rows", rows), &printer, |batch| {
        let vectors = files.read(batch)?;
        let given: Vec<_> =
            vectors.iter().map(|(name, vectors)| GivenVectors { name, vectors, has: None }).collect();
        let ids = ids.of(batch.clone());
        if args.update {
            let done = Patience::new(&printer, &collection).make(|to| to.update_vectors(&ids, &given))?;
            document.seq = done.seq;
            document.replaced += done.changed;
            document.repeated += batch.len() as u64 - done.changed;
            return Ok(());
        }
        let own = payloads.as_mut().map_or(Ok(Vec::new()), |own| own.read(batch))?;
        let own: Vec<Option<&[u8]>> = own.iter().map(Option::as_deref).collect();
        let done =
            Patience::new(&printer, &collection).make(|to| to.upsert_named(&ids, &given, &own, condition))?;
        document.seq = done.seq;
        document.new += done.new;
        document.replaced += done.replaced;
        document.repeated += done.repeated;
        document.skipped.extend(done.skipped);
        Ok(())
    })?;
    printer.finish();
    document.seconds = started.elapsed().as_secs_f64();
    output.result(&document, || upsert_text(&document))?;
    Ok(Verdict::Fine)
}

fn upsert_text(document: &UpsertDocument) -> String {
    let UpsertDocument { name, new, replaced, repeated, skipped, seq, seconds, .. } = document;
    let skipped = match skipped.len() {
        0 => String::new(),
        skipped => format!("; {} points were left as they were", count(skipped as u64)),
    };
    let repeated = match repeated {
        0 => String::new(),
        repeated => {
            format!(
                "; {} rows have an id that a later row has, too, and the later one counts",
                count(*repeated)
            )
        }
    };
    format!(
        "{name}: {} new points, {} replaced, in {}{repeated}{skipped}; change {}\n",
        count(*new),
        count(*replaced),
        duration(*seconds),
        count(*seq)
    )
}

/// Runs `stratann collection delete`.
pub(super) fn delete(args: &Delete, output: Output) -> Result<Verdict> {
    let settings: DeleteSettings = args.table.given.read();
    let filter = args.filter.read()?;
    if let Some(option) = args.filter.option().filter(|_| args.ids.is_some() || !settings.id.is_empty()) {
        return Err(Error::bad_input(format!("ids and {option} are both given; leave one of them out")));
    }
    if let Some(filter) = filter {
        return delete_matching(args, &filter, output);
    }
    let ids = named_ids(args.ids.as_deref(), &settings.id)?.ok_or_else(|| {
        Error::bad_input("no ids are given; give a file of them, or --id, --where or --filter")
    })?;
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    printer.stage("deleting", ids.len() as u64, "ids");
    let started = Instant::now();
    let seq = collection.seq().map_err(plain)?;
    let mut document =
        DeleteDocument { name: args.name.clone(), ids: ids.len() as u64, seq, ..Default::default() };
    in_batches(&ids.batches(0), ("ids", ids.len()), &printer, |batch| {
        let done = Patience::new(&printer, &collection).make(|from| from.delete(&ids.of(batch.clone())))?;
        document.seq = done.seq;
        document.deleted += done.deleted;
        document.unknown += done.unknown;
        Ok(())
    })?;
    printer.finish();
    document.seconds = started.elapsed().as_secs_f64();
    output.result(&document, || {
        let unknown = match document.unknown {
            0 => String::new(),
            unknown => format!("; {} ids have no point", count(unknown)),
        };
        format!(
            "{}: deleted {} points{unknown}; change {}\n",
            args.name,
            count(document.deleted),
            count(document.seq)
        )
    })?;
    Ok(Verdict::Fine)
}

/// The ids of a file or of `--id`; `None` where neither is given.
///
/// # Errors
/// Both at once; a file that cannot be read; what is no id.
pub(super) fn named_ids(file: Option<&Path>, tokens: &[String]) -> Result<Option<Ids>> {
    match (file, tokens) {
        (None, []) => Ok(None),
        (Some(_), [_, ..]) => {
            Err(Error::bad_input("ids come from a file or from --id; leave one of them out"))
        }
        (Some(path), []) => Ids::read(path).map(Some),
        (None, tokens) => {
            let ids = tokens.iter().map(|token| ExternalId::of_token(token));
            Ok(Some(Ids::Any(ids.collect::<Result<_>>()?)))
        }
    }
}

/// Deletes the points that match.
fn delete_matching(args: &Delete, filter: &Arc<Predicate>, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    args.filter.check(Some(filter), &collection)?;
    let started = Instant::now();
    let done = Patience::new(&printer, &collection).make(|from| from.delete_matching(filter))?;
    printer.finish();
    let unindexed = WithoutIndex::of(&done.unindexed);
    unindexed.note(output);
    let document = MatchingDocument {
        name: args.name.clone(),
        deleted: done.deleted,
        changed: done.changed,
        changes: done.changes,
        seq: done.seq,
        unindexed: unindexed.texts(),
        seconds: started.elapsed().as_secs_f64(),
    };
    output.result(&document, || {
        format!("{}: deleted {} points; change {}\n", args.name, count(document.deleted), count(document.seq))
    })?;
    Ok(Verdict::Fine)
}

/// Makes changes batch by batch. An error says which rows are durable.
fn in_batches(
    batches: &[Range<usize>],
    (what, all): (&str, usize),
    printer: &ProgressPrinter,
    mut change: impl FnMut(&Range<usize>) -> Result<()>,
) -> Result<()> {
    for batch in batches {
        let made = printer.check_interrupted().and_then(|()| change(batch));
        made.map_err(|e| Error { message: unfinished(&e.message, (batch.start, what, all)), ..e })?;
        printer.advance(batch.len() as u64);
    }
    Ok(())
}

/// The text of an error after the first `durable` rows.
fn unfinished(message: &str, (durable, what, all): (usize, &str, usize)) -> String {
    let (durable, all) = (count(durable as u64), count(all as u64));
    format!(
        "{message}; the first {durable} of {all} {what} are durable; the same command again does all of them"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_which_rows_are_durable() {
        let text = unfinished("interrupted", (1500, "rows", 2000));
        assert!(text.contains("interrupted; the first 1,500 of 2,000 rows are durable"), "{text}");
    }
}
