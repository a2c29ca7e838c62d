//! `stratann collection`: the collections of a data folder, and their points.

use clap::Subcommand;
use serde::Serialize;
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Facts, Info, Kind, MemoryLimits, Node, Spec, Specs};
use stratann_params::collection::{CollectionSettings, CreateSettings, LimitSettings};
use stratann_params::{IndexKind, Param, Place, Stage};
use stratann_storage::budget::size;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use self::limits::{LIMITS, LimitsDocument};
use self::vectors::SpecsDocument;
use crate::Verdict;
use crate::data_folder::{self, plain};
use crate::options::{self, KindChoice};
use crate::output::{Output, count, table};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;

mod changes;
mod cursor;
mod export;
mod import;
mod limits;
mod patience;
mod payload_file;
mod points;
mod schema;
mod vectors;

/// Create, fill, examine and drop the collections of a data folder
///
/// A collection has points: vectors with ids, which may change at any time. Each change is durable when its command has
/// ended, or its request to `stratann serve --data` has its reply. `stratann search --data` searches a collection. One
/// process at a time has a data folder open.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(Create),
    List(List),
    Info(InfoArgs),
    Limit(limits::Limit),
    Drop(Drop),
    Upsert(changes::Upsert),
    Delete(changes::Delete),
    Get(points::Get),
    Scroll(points::Scroll),
    Count(points::Count),
    Schema(schema::SchemaArgs),
    Import(import::Import),
    Export(export::Export),
    Verify(Verify),
    Compact(Compact),
}

/// The options that all commands of collections have.
const SHARED: [&str; 2] = ["data", "ram_budget"];

/// The table's options of every command of collections.
struct PlaceRows;

impl Rows for PlaceRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        SHARED.contains(&param.name)
    }
}

/// The table's options of a new collection.
struct CreateRows;

impl Rows for CreateRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        [&SHARED[..], &["dim", "metric", "dtype"], &LIMITS].concat().contains(&param.name)
    }

    fn goes_without(param: &Param) -> bool {
        // Vectors by name have theirs.
        param.name == "dim"
    }
}

/// Create an empty collection
#[derive(clap::Args)]
#[command(after_long_help = CREATE_EXAMPLES)]
struct Create {
    /// Its name: 1 to 255 bytes without control characters and /
    name: String,
    /// Kind of index of its larger parts; auto leaves the choice to each of them
    #[arg(long, value_name = "KIND", default_value = "auto", hide_possible_values = true)]
    #[arg(value_parser = options::kinds())]
    kind: KindChoice,
    /// Vectors of a name, in place of --dim, --metric, --dtype and --kind; give it for each name
    #[arg(long, value_name = "NAME=DIM,…")]
    vectors: Vec<String>,
    #[command(flatten)]
    table: Parameters<CreateRows>,
}

const CREATE_EXAMPLES: &str = "\
Examples:
  stratann collection create --data photos.data photos --dim 384 --metric cosine
  stratann collection create --data photos.data small --dim 384 --memory-quota 1GiB --memory-minimum 64MiB
  stratann collection create --data shop.data shop --vectors title=384,cosine --vectors image=512,ip,u8,grid-ivf
  stratann collection upsert --data photos.data photos base.fbin
  stratann search --data photos.data photos query.fbin -k 10";

/// List the collections
#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

/// Show what a collection is made of
#[derive(clap::Args)]
struct InfoArgs {
    /// Name of the collection
    name: String,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

/// Drop a collection with all of its points
#[derive(clap::Args)]
struct Drop {
    /// Name of the collection
    name: String,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

/// Compare all that is stored of a collection
///
/// The exit code is 1 at the first difference, which the error names.
#[derive(clap::Args)]
struct Verify {
    /// Name of the collection
    name: String,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

/// Make one segment of all points
///
/// A search of one segment costs least. The segment is an index of the collection's kind, built within --ram-budget. An
/// open data folder merges segments in the background, too; this command merges all at once. An interruption leaves the
/// collection as it was.
#[derive(clap::Args)]
struct Compact {
    /// Name of the collection
    name: String,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

/// A collection, and how it was made.
#[derive(Serialize)]
struct Described {
    name: String,
    #[serde(flatten)]
    specs: SpecsDocument,
}

impl Described {
    fn of(name: &str, specs: &Specs) -> Described {
        Described { name: name.into(), specs: SpecsDocument::of(specs) }
    }
}

/// A collection in the list: what it is, or why it cannot be used.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    Usable(Described),
    Damaged { name: String, error: String },
}

#[derive(Serialize)]
struct ListDocument {
    collections: Vec<Listed>,
    /// Why nothing can be written, if the storage engine is damaged.
    read_only: Option<String>,
}

#[derive(Serialize)]
struct SegmentDocument {
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    rows: u64,
    dead: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    indexes: Option<Vec<IndexDocument>>,
}

/// The index of a name of vectors in a segment.
#[derive(Serialize)]
struct IndexDocument {
    vector_name: String,
    kind: &'static str,
    rows: u64,
}

#[derive(Serialize)]
struct InfoDocument {
    #[serde(flatten)]
    described: Described,
    points: u64,
    seq: u64,
    delta_points: u64,
    delta_bytes: u64,
    segments: Vec<SegmentDocument>,
    /// Indexes that checkpoints and merges built since the folder was opened, and payloads that were written again.
    indexes_built: u64,
    payloads_folded: u64,
    rows_taken_over: u64,
    /// Why the last checkpoint or merge failed, if it did.
    trouble: Option<String>,
    /// Kinds of jobs that wait or run.
    jobs: Vec<&'static str>,
    memory_bytes: u64,
    #[serde(flatten)]
    limits: LimitsDocument,
}

#[derive(Serialize)]
struct DropDocument<'a> {
    name: &'a str,
    rows: u64,
    unfinished: Option<String>,
}

#[derive(Serialize)]
struct VerifyDocument<'a> {
    name: &'a str,
    points: u64,
    seq: u64,
}

/// Runs `stratann collection`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    match &args.command {
        Command::Create(args) => create(args, output),
        Command::List(args) => list(args, output),
        Command::Info(args) => info(args, output),
        Command::Limit(args) => limits::limit(args, output),
        Command::Drop(args) => drop_collection(args, output),
        Command::Upsert(args) => changes::upsert(args, output),
        Command::Delete(args) => changes::delete(args, output),
        Command::Get(args) => points::get(args, output),
        Command::Scroll(args) => points::scroll(args, output),
        Command::Count(args) => points::count_points(args, output),
        Command::Schema(args) => schema::schema(args, output),
        Command::Import(args) => import::import(args, output),
        Command::Export(args) => export::export(args, output),
        Command::Verify(args) => verify(args, output),
        Command::Compact(args) => compact(args, output),
    }
}

/// Opens the data folder that options name.
fn opened<R: Rows>(parameters: &Parameters<R>, printer: &ProgressPrinter) -> Result<Node> {
    let settings = settings(parameters)?;
    data_folder::open(&data_folder::path(settings.data)?, settings.ram_budget, printer)
}

fn settings<R: Rows>(parameters: &Parameters<R>) -> Result<CollectionSettings> {
    parameters.check(None, Place::Collections)?;
    Ok(parameters.given.read())
}

fn create(args: &Create, output: Output) -> Result<Verdict> {
    let settings = settings(&args.table)?;
    let own: CreateSettings = args.table.given.read();
    let known = |what: &str| Error::bad_input(format!("{what}; use a newer stratann"));
    let specs = match own.dim {
        Some(dim) if args.vectors.is_empty() => Specs::from(Spec {
            dim: usize::try_from(dim).unwrap_or(usize::MAX),
            metric: Metric::from_name(own.metric.name()).ok_or_else(|| known("an unknown metric"))?,
            dtype: DType::from_name(own.dtype.name()).ok_or_else(|| known("an unknown type"))?,
            kind: args.kind.0,
        }),
        None if args.vectors.is_empty() => {
            return Err(Error::bad_input("no dimensions are given; give --dim 384, or --vectors title=384"));
        }
        _ => {
            let given = ["dim", "metric", "dtype"].into_iter().find(|name| args.table.given.has(name));
            if let Some(option) = given.or(args.kind.0.map(|_| "kind")) {
                return Err(Error::bad_input(format!(
                    "--{option} and --vectors are both given; say it for each name, as in --vectors title=384,cosine"
                )));
            }
            vectors::specs(&args.vectors)?
        }
    };
    let limit_settings: LimitSettings = args.table.given.read();
    let mut limits = MemoryLimits::default();
    limits::change(&limit_settings, &mut limits)?;
    let printer = ProgressPrinter::new(output);
    let folder = data_folder::path(settings.data)?;
    let node = data_folder::open_or_make(&folder, settings.ram_budget, &printer)?;
    node.create_limited(&args.name, specs.clone(), limits).map_err(plain)?;
    printer.finish();
    let document = Described::of(&args.name, &specs);
    output.result(&document, || {
        format!("{}: created in {}, {}\n", args.name, folder.display(), document.specs.text())
    })?;
    Ok(Verdict::Fine)
}

fn list(args: &List, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let all = node.collections().map_err(plain)?;
    printer.finish();
    let listed = |Info { name, specs }: Info| match specs {
        Ok(specs) => Listed::Usable(Described::of(&name, &specs)),
        Err(e) => Listed::Damaged { name, error: e.message },
    };
    let read_only = node.why_read_only().map(String::from);
    let document = ListDocument { collections: all.into_iter().map(listed).collect(), read_only };
    output.result(&document, || {
        let note = document.read_only.as_ref().map_or(String::new(), |why| format!("read-only: {why}\n"));
        list_text(&document.collections) + &note
    })?;
    let is_sound = document.read_only.is_none()
        && document.collections.iter().all(|listed| matches!(listed, Listed::Usable(_)));
    Ok(if is_sound { Verdict::Fine } else { Verdict::Failed })
}

fn list_text(all: &[Listed]) -> String {
    if all.is_empty() {
        return "there is no collection; make one with `stratann collection create`\n".into();
    }
    let row = |listed: &Listed| match listed {
        Listed::Usable(Described { name, specs }) => [vec![name.clone()], specs.columns()].concat(),
        Listed::Damaged { name, error } => vec![name.clone(), format!("cannot be used: {error}")],
    };
    table(&["name", "dimensions", "type", "metric", "kind"], &all.iter().map(row).collect::<Vec<_>>())
}

fn info(args: &InfoArgs, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let facts = collection.facts().map_err(plain)?;
    printer.finish();
    let document = info_document(Described::of(&args.name, collection.specs()), &facts);
    output.result(&document, || info_text(&document))?;
    Ok(Verdict::Fine)
}

fn info_document(described: Described, facts: &Facts) -> InfoDocument {
    let segments = facts.segments.iter().map(|segment| SegmentDocument {
        number: segment.number,
        kind: segment.kind.map(IndexKind::name),
        rows: segment.rows,
        dead: segment.dead,
        bytes: segment.bytes,
        indexes: segment.kind.is_none().then(|| {
            let each = segment.indexes.iter().map(|own| IndexDocument {
                vector_name: own.vector_name.clone(),
                kind: own.kind.name(),
                rows: own.rows,
            });
            each.collect()
        }),
    });
    InfoDocument {
        described,
        points: facts.points,
        seq: facts.seq,
        delta_points: facts.delta_points,
        delta_bytes: facts.delta_bytes,
        segments: segments.collect(),
        indexes_built: facts.indexes_built,
        payloads_folded: facts.payloads_folded,
        rows_taken_over: facts.rows_taken_over,
        trouble: facts.trouble.as_ref().map(|e| e.message.clone()),
        jobs: facts.jobs.clone(),
        memory_bytes: facts.memory_bytes,
        limits: LimitsDocument::of(&facts.limits),
    }
}

fn info_text(document: &InfoDocument) -> String {
    let mut text = format!(
        "{}: {} points of {}; change {}\n{} points in memory, {}\nmemory {}: {}\n",
        document.described.name,
        count(document.points),
        document.described.specs.text(),
        count(document.seq),
        count(document.delta_points),
        size(document.delta_bytes),
        size(document.memory_bytes),
        document.limits.text()
    );
    for segment in &document.segments {
        let kinds = segment.indexes.iter().flatten();
        let kinds = kinds.map(|own| format!("{} {} of {} rows", own.vector_name, own.kind, count(own.rows)));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        text += &format!(
            "segment {}: {}, {} rows, {} dead, {}\n",
            segment.number,
            segment.kind.unwrap_or(if kinds.is_empty() { "no vectors" } else { &kinds }),
            count(segment.rows),
            count(segment.dead),
            size(segment.bytes)
        );
    }
    if !document.jobs.is_empty() {
        text += &format!("jobs that wait or run: {}\n", document.jobs.join(", "));
    }
    if let Some(trouble) = &document.trouble {
        text += &format!("the last checkpoint or merge failed: {trouble}\n");
    }
    text
}

fn compact(args: &Compact, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    collection.compact(&printer).map_err(|e| match e.kind {
        Kind::Other(ErrorKind::Interrupted) => Error {
            kind: ErrorKind::Interrupted,
            message: format!(
                "interrupted; all points of {} are there, run it again to make one segment",
                args.name
            ),
        },
        _ => plain(e),
    })?;
    let facts = collection.facts().map_err(plain)?;
    printer.finish();
    let document = info_document(Described::of(&args.name, collection.specs()), &facts);
    output.result(&document, || info_text(&document))?;
    Ok(Verdict::Fine)
}

fn drop_collection(args: &Drop, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let dropped = opened(&args.table, &printer)?.drop_collection(&args.name).map_err(plain)?;
    printer.finish();
    let unfinished = dropped.unfinished.map(|e| e.message);
    let document = DropDocument { name: &args.name, rows: dropped.rows, unfinished };
    output.result(&document, || {
        let left = document.unfinished.as_ref();
        let left = left.map_or(String::new(), |why| format!("; some of it is removed later: {why}"));
        format!("{}: dropped{left}\n", args.name)
    })?;
    Ok(Verdict::Fine)
}

fn verify(args: &Verify, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    printer.stage("verifying", 1, "collections");
    let found = node.verify(&args.name).map_err(plain)?;
    printer.finish();
    let document = VerifyDocument { name: &args.name, points: found.points, seq: found.seq };
    output.result(&document, || {
        format!("{}: sound; {} points, change {}\n", args.name, count(found.points), count(found.seq))
    })?;
    Ok(Verdict::Fine)
}
