//! `stratann collection import`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use stratann_import::{Columns, FileRows, Rows as FileBatch, Wanted, open, shape_of};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{self, Collection, Condition, MemoryLimits, Node, Spec};
use stratann_node::rows::ExternalId;
use stratann_params::collection::{CreateSettings, UpsertSettings};
use stratann_params::{Param, Stage};
use stratann_storage::{Error, Progress, Result};

use super::changes::patiently;
use super::cursor::{Cursor, FileState};
use super::{SHARED, settings};
use crate::Verdict;
use crate::data_folder::{self, Ids, plain};
use crate::output::{Output, count, duration};
use crate::parameters::{Parameters, Rows};
use crate::point_columns::{begin_stage, payload_columns};
use crate::progress::ProgressPrinter;

/// Rows that are left out between two looks for an interruption.
const SKIPPED_AT_ONCE: u64 = 100_000;

/// The table's options of imports.
struct ImportRows;

impl Rows for ImportRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        SHARED.contains(&param.name) || ["metric", "dtype", "first_id"].contains(&param.name)
    }
}

/// Import points from Parquet, Arrow, JSON lines or vector files
///
/// Rows are written in batches, each of which is durable as a whole. The same command goes on where an interrupted one
/// ended; it begins at the first row once all files are imported. Memory is bounded by a batch.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Import {
    /// Name of the collection
    name: String,
    /// Files: .parquet, .arrow .feather .ipc .arrows, .jsonl .ndjson, .npy, and the other vector files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Column of ids: whole numbers, UUIDs or texts [default: id, or the row number where there is no such column]
    #[arg(long, value_name = "COLUMN")]
    ids: Option<String>,
    /// Column of vectors: lists of numbers [default: vector, or the only column of lists of numbers]
    #[arg(long, value_name = "COLUMN")]
    vectors: Option<String>,
    /// Columns that become fields of payloads, separated by commas; all; none [default: all]
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    payload: Vec<String>,
    /// Create the collection with the dimensions of the first file, and with --metric and --dtype, if it is not there
    #[arg(long)]
    create: bool,
    /// Begin at the first row, also where an interrupted import could go on
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    table: Parameters<ImportRows>,
}

const EXAMPLES: &str = "\
Examples:
  stratann collection import --data shop.data shop products.parquet --create --metric cosine
  stratann collection import --data shop.data shop products.parquet --ids sku --vectors embedding --payload title,price
  stratann collection import --data shop.data shop points.jsonl
  stratann collection import --data shop.data shop part-*.arrow --payload none

A line of JSON: {\"id\": 7, \"vector\": [0.5, 1], \"payload\": {\"title\": \"x\"}}. Other fields of a line, and columns,
become fields of the payload. What cannot be one is an error that names row and column. Floats are rounded to the type
of the collection; whole numbers stay exact; NaN, null and what would overflow are refused. Of rows with one id the last
one counts, and the report says how many there were.";

#[derive(Default, Serialize)]
struct Document {
    name: String,
    files: usize,
    rows: u64,
    /// Rows that an earlier, interrupted import has written.
    resumed_rows: u64,
    new: u64,
    replaced: u64,
    repeated: u64,
    seq: u64,
    seconds: f64,
}

/// What does not change while files are imported.
struct Importer<'a> {
    collection: &'a Collection,
    columns: &'a Columns,
    wanted: Wanted,
    printer: &'a ProgressPrinter,
}

/// Runs `stratann collection import`.
pub(super) fn import(args: &Import, output: Output) -> Result<Verdict> {
    let shared = settings(&args.table)?;
    let columns = columns(args)?;
    let printer = ProgressPrinter::new(output);
    let folder = data_folder::path(shared.data)?;
    let node = match args.create {
        true => data_folder::open_or_make(&folder, shared.ram_budget, &printer)?,
        false => data_folder::open(&folder, shared.ram_budget, &printer)?,
    };
    let collection = collection(args, &node, &columns)?;
    let spec = collection.spec().map_err(no_names)?;
    let wanted = Wanted { dim: spec.dim, dtype: spec.dtype, metric: spec.metric };
    let own = Importer { collection: &collection, columns: &columns, wanted, printer: &printer };
    let first_id = args.table.given.read::<UpsertSettings>().first_id;
    let mut cursor = Cursor::open(&collection.folder(), &format!("{columns:?} {first_id}"), args.restart);
    let started = Instant::now();
    let mut document = Document { name: args.name.clone(), files: args.files.len(), ..Document::default() };
    document.seq = collection.seq().map_err(plain)?;
    let mut next_id = first_id;
    for (at, path) in args.files.iter().enumerate() {
        let rows = own.file(path, (at, next_id), &mut cursor, &mut document)?;
        next_id = next_id.checked_add(rows).ok_or_else(|| {
            Error::bad_input(format!(
                "--first-id is {first_id}, and ids would end beyond 2^64 - 1; give a smaller one"
            ))
        })?;
    }
    cursor.finish()?;
    printer.finish();
    document.seconds = started.elapsed().as_secs_f64();
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

fn text(document: &Document) -> String {
    let Document { name, rows, resumed_rows, new, replaced, repeated, seq, seconds, .. } = document;
    let resumed = match resumed_rows {
        0 => String::new(),
        rows => format!("; {} rows were imported before an interruption", count(*rows)),
    };
    let repeated = match repeated {
        0 => String::new(),
        rows => {
            format!("; {} rows have an id that a later row has, too, and the later one counts", count(*rows))
        }
    };
    format!(
        "{name}: {} rows, {} new points, {} replaced, in {}{resumed}{repeated}; change {}\n",
        count(*rows),
        count(*new),
        count(*replaced),
        duration(*seconds),
        count(*seq)
    )
}

/// The error of an import into a collection whose vectors have names.
fn no_names(e: collections::Error) -> Error {
    let e = plain(e);
    Error {
        message: format!("{}; write them with `stratann collection upsert --vectors NAME=FILE`", e.message),
        ..e
    }
}

/// The columns that options name.
fn columns(args: &Import) -> Result<Columns> {
    let payload = payload_columns(&args.payload)?;
    Ok(Columns { ids: args.ids.clone(), vectors: args.vectors.clone(), payload })
}

/// The collection, which is made if it may be.
fn collection(args: &Import, node: &Node, columns: &Columns) -> Result<Collection> {
    let given = &args.table.given;
    let own: CreateSettings = given.read();
    let known = |what: &str| Error::bad_input(format!("{what}; use a newer stratann"));
    let metric = Metric::from_name(own.metric.name()).ok_or_else(|| known("an unknown metric"))?;
    let dtype = DType::from_name(own.dtype.name()).ok_or_else(|| known("an unknown type"))?;
    let is_there = node.collections().map_err(plain)?.iter().any(|info| info.name == args.name);
    if args.create && !is_there {
        let first = args.files.first().ok_or_else(|| Error::bad_input("no file is given; name one"))?;
        let (dim, of_file) = shape_of(first, columns)?;
        let dtype = if given.has("dtype") { dtype } else { of_file };
        let spec = Spec { dim, metric, dtype, kind: None };
        return node.create_limited(&args.name, spec, MemoryLimits::default()).map_err(plain);
    }
    let collection = node.collection(&args.name).map_err(plain)?;
    let spec = collection.spec().map_err(no_names)?;
    for (option, asked, is) in
        [("metric", metric.name(), spec.metric.name()), ("dtype", dtype.name(), spec.dtype.name())]
    {
        if given.has(option) && asked != is {
            return Err(Error::bad_input(format!(
                "the collection \"{}\" is there, with {option} {is}; leave --{option} {asked} out, or name another one",
                args.name
            )));
        }
    }
    Ok(collection)
}

impl Importer<'_> {
    /// Imports a file; returns how many rows it has.
    fn file(
        &self,
        path: &Path,
        (at, first_id): (usize, u64),
        cursor: &mut Cursor,
        document: &mut Document,
    ) -> Result<u64> {
        let mut state = FileState::begin(path, self.collection.seq().map_err(plain)?)?;
        let known = cursor.known(at, &state);
        if let Some(known) = known {
            document.resumed_rows += known.rows;
            state = known;
        }
        let is_resumed = state.rows > 0;
        if is_resumed {
            self.printer.note(&format!(
                "note: {} rows of {} were imported before; go on behind them (--restart begins at the first row)",
                count(state.rows),
                path.display()
            ));
        }
        if state.is_whole {
            return Ok(state.rows);
        }
        let before = state.rows;
        let mut rows = open(path, self.columns, &self.wanted)?;
        self.begin_stage(path, &*rows);
        let imported = self.rows(path, &mut *rows, (at, first_id, is_resumed), &mut state, cursor, document);
        document.rows += state.rows - before;
        imported.map_err(|e| {
            let durable = count(state.rows);
            let remedy = "the same command goes on behind them";
            let message = format!(
                "{}; the first {durable} rows of {} are durable, and {remedy}",
                e.message,
                path.display()
            );
            Error { message, ..e }
        })?;
        Ok(state.rows)
    }

    fn begin_stage(&self, path: &Path, rows: &dyn FileRows) {
        begin_stage(self.printer, "importing", path, rows);
    }

    fn rows(
        &self,
        path: &Path,
        rows: &mut dyn FileRows,
        (at, first_id, mut is_repeated): (usize, u64, bool),
        state: &mut FileState,
        cursor: &mut Cursor,
        document: &mut Document,
    ) -> Result<()> {
        let mut left = state.rows;
        while left > 0 {
            self.printer.check_interrupted()?;
            let skipped = rows.skip(left.min(SKIPPED_AT_ONCE))?;
            if skipped == 0 {
                return Err(Error::bad_input(format!(
                    "{} has fewer rows than were imported; give --restart to begin at its first row",
                    path.display()
                )));
            }
            left -= skipped;
        }
        let mut shown = 0;
        while let Some(batch) = rows.next_rows()? {
            let ids = ids_of(&batch, first_id)?;
            let row_bytes = |row: usize| {
                let payload = batch.payloads.get(row).and_then(Option::as_ref).map_or(0, Vec::len);
                self.collection.specs().row_bytes() + payload
            };
            for part in ids.batches_of(row_bytes) {
                self.printer.check_interrupted()?;
                self.write(
                    &batch,
                    (&ids.of(part.clone()), part.clone()),
                    (state.seq, is_repeated),
                    document,
                )?;
                is_repeated = false;
                state.rows = batch.first + part.end as u64;
                cursor.note(at, state)?;
            }
            self.printer.advance(rows.done().saturating_sub(shown));
            shown = rows.done();
        }
        state.is_whole = true;
        cursor.note(at, state)
    }

    /// Writes some rows of a batch. Rows whose ids earlier rows of the file have are counted, but not where the batch
    /// may be one that was written before an interruption.
    fn write(
        &self,
        batch: &FileBatch,
        (ids, part): (&[ExternalId], std::ops::Range<usize>),
        (seq, may_be_there): (u64, bool),
        document: &mut Document,
    ) -> Result<()> {
        let row_bytes = self.collection.specs().row_bytes();
        let bytes = part.start * row_bytes..part.end * row_bytes;
        let vectors = batch.vectors.get(bytes).unwrap_or_default();
        let own = batch.payloads.get(part).unwrap_or_default();
        let payloads: Vec<Option<&[u8]>> = own.iter().map(Option::as_deref).collect();
        let condition = if may_be_there { Condition::Always } else { Condition::IfNotNewer(seq) };
        let write = |condition| {
            patiently(self.printer, self.collection, |to| to.upsert_if(ids, vectors, &payloads, condition))
        };
        let done = write(condition)?;
        document.new += done.new;
        document.replaced += done.replaced;
        document.repeated += done.repeated + done.skipped.len() as u64;
        document.seq = document.seq.max(done.seq);
        if !done.skipped.is_empty() {
            // The later row counts.
            document.seq = write(Condition::Always)?.seq;
        }
        Ok(())
    }
}

/// The ids of a batch: its own, or numbers.
fn ids_of(batch: &FileBatch, first_id: u64) -> Result<Ids> {
    match &batch.ids {
        Some(ids) => Ok(Ids::Any(ids.iter().map(ExternalId::of_filter).collect())),
        None => match first_id.checked_add(batch.first) {
            Some(first) => Ids::from_number(first, batch.count),
            None => Err(Error::bad_input("ids would end beyond 2^64 - 1; give a smaller --first-id")),
        },
    }
}
