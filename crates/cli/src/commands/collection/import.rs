//! `stratann collection import`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use stratann_import::spool::begin_stage;
use stratann_import::{Columns, FileRows, Rows as FileBatch, VectorColumn, Wanted, open, shapes_of};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{
    Collection, Condition, GivenVectors, MemoryLimits, NamedSpec, Node, Spec, Specs,
};
use stratann_node::rows::ExternalId;
use stratann_params::collection::{CreateSettings, UpsertSettings};
use stratann_params::{Param, Stage};
use stratann_storage::{Error, Progress, Result};

use super::cursor::{Cursor, FileState};
use super::patience::Patience;
use super::{SHARED, settings, vectors};
use crate::Verdict;
use crate::data_folder::{self, Ids, plain};
use crate::output::{Output, count, duration};
use crate::parameters::{Parameters, Rows};
use crate::point_columns::payload_columns;
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
    /// Files: .parquet, .arrow .feather .ipc .arrows, .jsonl .ndjson, .npy, .hdf5 and other vector files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Column of ids: whole numbers, UUIDs or texts [default: id, or the row number where there is no such column]
    #[arg(long, value_name = "COLUMN")]
    ids: Option<String>,
    /// Column of vectors: lists of numbers [default: vector, or the only column of lists of numbers]. Where vectors
    /// have names: NAME=COLUMN, for each name whose column has another name
    #[arg(long, value_name = "COLUMN")]
    vectors: Vec<String>,
    /// Columns that become fields of payloads, separated by commas; all; none [default: all]
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    payload: Vec<String>,
    /// Create the collection with the dimensions of the first file, and with --metric and --dtype, if it is not there.
    /// With NAME=COLUMN its vectors have these names
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
  stratann collection import --data shop.data both pages.parquet --create --vectors title=t --vectors image=picture

A line of JSON: {\"id\": 7, \"vector\": [0.5, 1], \"payload\": {\"title\": \"x\"}}. Where vectors have names it has
{\"id\": 7, \"vectors\": {\"image\": [0.5, 1]}}; null, and what is not there, is a point without a vector of the name.
Other fields of a line, and columns, become fields of the payload. What cannot be one is an error that names row and
column. Floats are rounded to the type of the collection; whole numbers stay exact; NaN, null and what would overflow
are refused. Of rows with one id the last one counts, and the report says how many there were.";

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
    /// Times that the collection had no room for a batch, which was waited for.
    waits: u64,
    /// Names of vectors that some file has none of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names_without: Vec<String>,
    seq: u64,
    seconds: f64,
}

/// What does not change while files are imported.
struct Importer<'a> {
    collection: &'a Collection,
    columns: &'a Columns,
    wanted: Vec<Wanted>,
    printer: &'a ProgressPrinter,
    patience: Patience<'a>,
}

/// Runs `stratann collection import`.
pub(super) fn import(args: &Import, output: Output) -> Result<Verdict> {
    let shared = settings(&args.table)?;
    let mut columns = columns(args)?;
    let printer = ProgressPrinter::new(output);
    let folder = data_folder::path(shared.data)?;
    let node = match args.create {
        true => data_folder::open_or_make(&folder, shared.ram_budget, &printer)?,
        false => data_folder::open(&folder, shared.ram_budget, &printer)?,
    };
    let collection = collection(args, &node, &mut columns)?;
    let wanted = |own: &NamedSpec| {
        let Spec { dim, dtype, metric, .. } = own.spec;
        Wanted { name: own.name.clone(), dim, dtype, metric }
    };
    let wanted = collection.specs().iter().map(wanted).collect();
    let patience = Patience::new(&printer, &collection);
    let own = Importer { collection: &collection, columns: &columns, wanted, printer: &printer, patience };
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
    document.names_without.sort_unstable();
    document.names_without.dedup();
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

/// The columns that options name, but for those of vectors, which depend on the collection.
fn columns(args: &Import) -> Result<Columns> {
    Ok(Columns { ids: args.ids.clone(), vectors: Vec::new(), payload: payload_columns(&args.payload)? })
}

/// The collection, which is made if it may be. Completes the columns by those of its vectors.
fn collection(args: &Import, node: &Node, columns: &mut Columns) -> Result<Collection> {
    let given = &args.table.given;
    let own: CreateSettings = given.read();
    let known = |what: &str| Error::bad_input(format!("{what}; use a newer stratann"));
    let metric = Metric::from_name(own.metric.name()).ok_or_else(|| known("an unknown metric"))?;
    let dtype = DType::from_name(own.dtype.name()).ok_or_else(|| known("an unknown type"))?;
    let is_there = node.collections().map_err(plain)?.iter().any(|info| info.name == args.name);
    if args.create && !is_there {
        let dtype = given.has("dtype").then_some(dtype);
        let specs = specs_of_file(args, columns, (metric, dtype))?;
        return node.create_limited(&args.name, specs, MemoryLimits::default()).map_err(plain);
    }
    let collection = node.collection(&args.name).map_err(plain)?;
    columns.vectors = vectors::columns(&args.vectors, collection.specs())?;
    for Spec { metric: own_metric, dtype: own_dtype, .. } in collection.specs().iter().map(|own| own.spec) {
        for (option, asked, is) in
            [("metric", metric.name(), own_metric.name()), ("dtype", dtype.name(), own_dtype.name())]
        {
            if given.has(option) && asked != is {
                return Err(Error::bad_input(format!(
                    "the collection \"{}\" is there, with {option} {is}; leave --{option} {asked} out, or name \
                     another one",
                    args.name
                )));
            }
        }
    }
    Ok(collection)
}

/// The vectors of a new collection, as the first file has them: by name where columns are given by name. Completes the
/// columns.
fn specs_of_file(
    args: &Import,
    columns: &mut Columns,
    (metric, dtype): (Metric, Option<DType>),
) -> Result<Specs> {
    let first = args.files.first().ok_or_else(|| Error::bad_input("no file is given; name one"))?;
    columns.vectors = match &args.vectors[..] {
        [] => Vec::new(),
        [column] if !column.contains('=') => vec![(String::new(), column.clone())],
        given => vectors::named_columns(given)?,
    };
    let mut names: Vec<&str> = columns.vectors.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        names.push("");
    }
    let shapes = shapes_of(first, columns, &names)?;
    let spec = |(dim, of_file)| Spec { dim, metric, dtype: dtype.unwrap_or(of_file), kind: None };
    let all = names.iter().zip(shapes).map(|(name, shape)| ((*name).to_string(), spec(shape)));
    Specs::named(all.collect::<Vec<_>>()).map_err(plain)
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
        let mut noted = Vec::new();
        self.note_names(path, &*rows, &mut noted);
        let imported = self.rows(path, &mut *rows, (at, first_id, is_resumed), &mut state, cursor, document);
        self.note_names(path, &*rows, &mut noted);
        document.rows += state.rows - before;
        document.waits = self.patience.waits();
        document.names_without.extend(noted);
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

    /// Says of which names a file has no vectors, each once.
    fn note_names(&self, path: &Path, rows: &dyn FileRows, noted: &mut Vec<String>) {
        for name in rows.names_without() {
            if !noted.contains(&name) {
                self.printer.note(&format!(
                    "note: {} has no vectors for {name:?}; its points have none of this name (--vectors NAME=COLUMN \
                     names a column)",
                    path.display()
                ));
                noted.push(name);
            }
        }
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
        (ids, part): (&[ExternalId], Range<usize>),
        (seq, may_be_there): (u64, bool),
        document: &mut Document,
    ) -> Result<()> {
        let vectors: Vec<GivenVectors<'_>> =
            batch.vectors.iter().zip(&self.wanted).map(|(own, wanted)| given(own, wanted, &part)).collect();
        let own = batch.payloads.get(part).unwrap_or_default();
        let payloads: Vec<Option<&[u8]>> = own.iter().map(Option::as_deref).collect();
        let condition = if may_be_there { Condition::Always } else { Condition::IfNotNewer(seq) };
        let write = |condition| self.patience.make(|to| to.upsert_named(ids, &vectors, &payloads, condition));
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

/// Vectors of a name of some rows of a batch.
fn given<'a>(own: &'a VectorColumn, wanted: &Wanted, part: &Range<usize>) -> GivenVectors<'a> {
    let row_bytes = wanted.dim * wanted.dtype.size();
    let has = own.has.get(part.clone()).unwrap_or_default();
    let count = |has: &[bool]| has.iter().filter(|has| **has).count();
    let first = count(own.has.get(..part.start).unwrap_or_default()) * row_bytes;
    let vectors = own.vectors.get(first..first + count(has) * row_bytes).unwrap_or_default();
    GivenVectors { name: &own.name, vectors, has: Some(has) }
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
