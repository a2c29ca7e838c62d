//! `stratann collection export`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use stratann_import::export::{IdKinds, ParquetWriter, Points, VectorShape};
use stratann_node::collections::{Collection, LIMIT_MAX, NamedSpec, Point, Specs};
use stratann_node::rows::ExternalId;
use stratann_payload::{IdValue, Predicate};
use stratann_storage::output::{AtomicFile, OutputPath};
use stratann_storage::{Error, Progress, Result};

use super::points::page_of;
use super::{PlaceRows, opened};
use crate::Verdict;
use crate::data_folder::plain;
use crate::output::{Output, count, duration, print_escaped};
use crate::parameters::Parameters;
use crate::point_filter::{PointFilterArgs, WithoutIndex};
use crate::points::PointJson;
use crate::progress::ProgressPrinter;

/// Export points to a Parquet file or to JSON lines
///
/// `stratann collection import` of the file gives the same points: ids, vectors bit for bit, and payloads.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Export {
    /// Name of the collection
    name: String,
    /// File to write: .parquet or .jsonl; - for JSON lines on stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    filter: PointFilterArgs,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

const EXAMPLES: &str = "\
Examples:
  stratann collection export --data shop.data shop -o shop.parquet
  stratann collection export --data shop.data shop -o cheap.jsonl --where \"price < 50\"

Points are in the order of their ids. A Parquet file has the columns id, vector (fixed_size_list) and payload (JSON).
Where vectors have names, it has a column for each name, and lines of JSON have them by name (vectors).";

#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    points: u64,
    unindexed: Vec<String>,
    seconds: f64,
}

/// A file that points are written to.
enum Sink {
    Stdout,
    JsonLines(Box<AtomicFile>),
    Parquet(Box<ParquetWriter<Writer>>),
}

/// The file as the Parquet writer takes it.
struct Writer(AtomicFile);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes).map_err(|e| std::io::Error::other(e.message))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn write(&mut self, points: &[Point], specs: &Specs) -> Result<()> {
        match self {
            Sink::Stdout => print_escaped(&lines_of(points, specs)?),
            Sink::JsonLines(file) => file.write(lines_of(points, specs)?.as_bytes()),
            Sink::Parquet(writer) => {
                let column =
                    |name: usize| points.iter().map(move |point| point.vectors.get(name)?.as_deref());
                writer.write(&Points {
                    ids: points.iter().map(|point| value_of(&point.id)).collect(),
                    vectors: (0..specs.count()).map(|name| column(name).collect()).collect(),
                    payloads: points.iter().map(|point| point.payload.as_deref()).collect(),
                })
            }
        }
    }

    fn commit(self) -> Result<()> {
        match self {
            Sink::Stdout => Ok(()),
            Sink::JsonLines(file) => file.commit(),
            Sink::Parquet(writer) => writer.finish()?.0.commit(),
        }
    }
}

/// Points as lines of JSON.
fn lines_of(points: &[Point], specs: &Specs) -> Result<String> {
    let mut lines = String::new();
    for point in points {
        let line = serde_json::to_string(&PointJson::of(point, Some(specs)));
        lines += &line.map_err(|e| {
            Error::corrupt(format!("the payload of {} is no JSON: {e}; verify the collection", point.id))
        })?;
        lines.push('\n');
    }
    Ok(lines)
}

fn value_of(id: &ExternalId) -> IdValue {
    match id {
        ExternalId::Number(number) => IdValue::Number(*number),
        ExternalId::Uuid(bytes) => IdValue::Uuid(*bytes),
        ExternalId::Text(text) => IdValue::Text(text.clone()),
    }
}

/// Where points go, by the name of the file.
enum Target {
    Stdout,
    JsonLines(OutputPath),
    Parquet(OutputPath),
}

impl Target {
    fn of(path: &Path, force: bool) -> Result<Target> {
        if path == Path::new("-") {
            return Ok(Target::Stdout);
        }
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        match suffix.as_deref() {
            Some("jsonl" | "ndjson") => Ok(Target::JsonLines(OutputPath::check(path, force, &[])?)),
            Some("parquet") => Ok(Target::Parquet(OutputPath::check(path, force, &[])?)),
            _ => Err(Error::bad_input(format!(
                "{}: unknown suffix of a file of points; use .parquet or .jsonl, or - for stdout",
                path.display()
            ))),
        }
    }

    fn create(&self, collection: &Collection) -> Result<Sink> {
        Ok(match self {
            Target::Stdout => Sink::Stdout,
            Target::JsonLines(path) => Sink::JsonLines(Box::new(path.create()?)),
            Target::Parquet(path) => {
                let shape = |own: &NamedSpec| VectorShape {
                    name: own.name.clone(),
                    dim: own.spec.dim,
                    dtype: own.spec.dtype,
                };
                let shapes: Vec<VectorShape> = collection.specs().iter().map(shape).collect();
                let kinds = id_kinds(collection)?;
                let writer = ParquetWriter::new(Writer(path.create()?), path.path(), &shapes, kinds)?;
                Sink::Parquet(Box::new(writer))
            }
        })
    }
}

/// Kinds of ids of all points, of which numbers are the first in their order.
fn id_kinds(collection: &Collection) -> Result<IdKinds> {
    let first = collection.scroll(None, 1).map_err(plain)?;
    let other = collection.scroll(Some(&ExternalId::Number(u64::MAX)), 1).map_err(plain)?;
    let has_numbers = matches!(first.points.first().map(|point| &point.id), Some(ExternalId::Number(_)));
    Ok(match (has_numbers, other.points.is_empty()) {
        (true, false) => IdKinds::Mixed,
        (false, false) => IdKinds::Texts,
        _ => IdKinds::Numbers,
    })
}

/// Runs `stratann collection export`.
pub(super) fn export(args: &Export, output: Output) -> Result<Verdict> {
    let filter = args.filter.read()?;
    let target = Target::of(&args.output, args.force)?;
    if output.json && matches!(target, Target::Stdout) {
        return Err(Error::bad_input("-o - and --json both print on stdout; leave one of them out"));
    }
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let started = Instant::now();
    let all = match &filter {
        None => collection.count().map_err(plain)?,
        Some(filter) => collection.count_matching(filter).map_err(plain)?.points,
    };
    printer.stage("exporting", all, "points");
    let mut sink = target.create(&collection)?;
    let (points, unindexed) = each_page(&collection, filter.as_ref(), &printer, &mut sink)?;
    sink.commit()?;
    printer.finish();
    unindexed.note(output);
    let seconds = started.elapsed().as_secs_f64();
    let document = Document { name: &args.name, points, unindexed: unindexed.texts(), seconds };
    let text = || format!("{}: exported {} points in {}\n", args.name, count(points), duration(seconds));
    match target {
        Target::Stdout => output.note(text().trim_end()),
        _ => output.result(&document, text)?,
    }
    Ok(Verdict::Fine)
}

/// Writes all points; returns how many there are.
fn each_page(
    collection: &Collection,
    filter: Option<&Arc<Predicate>>,
    printer: &ProgressPrinter,
    sink: &mut Sink,
) -> Result<(u64, WithoutIndex)> {
    let (mut points, mut unindexed, mut after) = (0, WithoutIndex::default(), None);
    loop {
        printer.check_interrupted()?;
        let page = page_of(collection, after.as_ref(), (LIMIT_MAX, filter))?;
        unindexed.add(&page.unindexed);
        sink.write(&page.points, collection.specs())?;
        points += page.points.len() as u64;
        printer.advance(page.points.len() as u64);
        after = page.next;
        if after.is_none() {
            return Ok((points, unindexed));
        }
    }
}
