//! `stratann collection get`, `scroll` and `count`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use stratann_node::collections::{Collection, LIMIT_MAX, OrderBy, Page, Point};
use stratann_node::rows::ExternalId;
use stratann_params::collection::DeleteSettings;
use stratann_params::{Param, Stage};
use stratann_payload::{Path, Predicate};
use stratann_storage::{Error, Progress, Result};

use super::changes::named_ids;
use super::{PlaceRows, SHARED, opened};
use crate::Verdict;
use crate::data_folder::plain;
use crate::output::{Output, count, json_line, print_json};
use crate::parameters::{Parameters, Rows};
use crate::point_filter::{PointFilterArgs, WithoutIndex};
use crate::points::PointJson;
use crate::progress::ProgressPrinter;

/// Most points that are read at once: each may have a payload of a MiB.
const AT_ONCE: usize = 64;

/// The table's options of reading by ids.
struct GetRows;

impl Rows for GetRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        SHARED.contains(&param.name) || param.name == "id"
    }
}

/// Print points by their ids, as a line of JSON each
///
/// Ids without a point are left out, and a note counts them.
#[derive(clap::Args)]
#[command(
    after_long_help = GET_EXAMPLES,
    override_usage = "stratann collection get [OPTIONS] --data <DIR> NAME IDS\n       \
                      stratann collection get [OPTIONS] --data <DIR> NAME --id <ID>"
)]
pub(super) struct Get {
    /// Name of the collection
    name: String,
    /// File of ids: .u64bin or .npy, or a text file with one on each line
    ids: Option<PathBuf>,
    /// Print vectors too
    #[arg(long)]
    with_vectors: bool,
    #[command(flatten)]
    table: Parameters<GetRows>,
}

const GET_EXAMPLES: &str = "\
Examples:
  stratann collection get --data photos.data photos --id 3,5
  stratann collection get --data photos.data photos names.txt --with-vectors";

/// Print points in the order of their ids or of a field, as a line of JSON each
#[derive(clap::Args)]
#[command(after_long_help = SCROLL_EXAMPLES)]
pub(super) struct Scroll {
    /// Name of the collection
    name: String,
    /// Begin behind this id, or with --order-by behind the place that the note of a scroll before names
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Order points by a field with a float, integer or datetime index, the least value first
    #[arg(long, value_name = "FIELD")]
    order_by: Option<String>,
    /// The greatest value first
    #[arg(long, requires = "order_by")]
    descending: bool,
    /// Most points
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Print vectors too
    #[arg(long)]
    with_vectors: bool,
    #[command(flatten)]
    filter: PointFilterArgs,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

const SCROLL_EXAMPLES: &str = "\
Examples:
  stratann collection scroll --data photos.data photos --limit 1000 > points.jsonl
  stratann collection scroll --data photos.data photos --where \"price < 50\" --after 7
  stratann collection scroll --data photos.data photos --order-by price --descending --limit 10

Numbers come first, then UUIDs, then strings. With --order-by points without a value in the field are left out; those
with equal values are in the order of their ids.";

/// Count points: all, or those that match a filter
#[derive(clap::Args)]
pub(super) struct Count {
    /// Name of the collection
    name: String,
    /// Where no index decides, read a sample of the payloads, and say between which numbers the count is
    #[arg(long)]
    estimate: bool,
    #[command(flatten)]
    filter: PointFilterArgs,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

#[derive(Serialize)]
struct GetDocument<'a> {
    name: &'a str,
    points: Vec<PointJson<'a>>,
    /// Ids without a point.
    missing: Vec<&'a ExternalId>,
}

#[derive(Serialize)]
struct ScrollDocument<'a> {
    name: &'a str,
    points: Vec<PointJson<'a>>,
    /// Value of `--after` for what follows, or null at the end.
    next: Option<Next<'a>>,
    seq: u64,
    unindexed: Vec<String>,
}

/// Where what follows begins.
#[derive(Serialize)]
#[serde(untagged)]
enum Next<'a> {
    Id(&'a ExternalId),
    Place(&'a str),
}

/// Where a page begins.
enum PageStart {
    /// Behind an id.
    Id(Option<ExternalId>),
    /// Behind a place in the order of a field.
    Place(OrderBy, Option<String>),
}

impl PageStart {
    fn of(args: &Scroll) -> Result<PageStart> {
        match &args.order_by {
            None => Ok(PageStart::Id(args.after.as_deref().map(ExternalId::of_token).transpose()?)),
            Some(field) => {
                let field =
                    Path::parse(field).map_err(|e| Error::bad_input(format!("--order-by: {}", e.message)))?;
                Ok(PageStart::Place(OrderBy { field, descending: args.descending }, args.after.clone()))
            }
        }
    }

    /// The points from here on; then it is where the next page begins. Returns with them the number of the newest
    /// change.
    fn read(
        &mut self,
        collection: &Collection,
        (limit, filter): (usize, Option<&Arc<Predicate>>),
        unindexed: &mut WithoutIndex,
    ) -> Result<(Vec<Point>, u64)> {
        match self {
            PageStart::Id(after) => {
                let page = page_of(collection, after.as_ref(), (limit, filter))?;
                unindexed.add(&page.unindexed);
                *after = page.next;
                Ok((page.points, page.seq))
            }
            PageStart::Place(by, after) => {
                let page = collection.scroll_ordered(by, after.as_deref(), limit, filter).map_err(plain)?;
                unindexed.add(&page.unindexed);
                *after = page.next;
                Ok((page.points, page.seq))
            }
        }
    }

    /// Where the next page begins; `None` at the end.
    fn next(&self) -> Option<Next<'_>> {
        match self {
            PageStart::Id(after) => after.as_ref().map(Next::Id),
            PageStart::Place(_, after) => after.as_deref().map(Next::Place),
        }
    }
}

impl fmt::Display for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Next::Id(id) => write!(f, "{id}"),
            Next::Place(text) => f.write_str(text),
        }
    }
}

#[derive(Serialize)]
struct CountDocument<'a> {
    name: &'a str,
    count: u64,
    /// Between which numbers the count is: itself, unless it is an estimate.
    least: u64,
    most: u64,
    seq: u64,
    unindexed: Vec<String>,
}

/// Runs `stratann collection get`.
pub(super) fn get(args: &Get, output: Output) -> Result<Verdict> {
    let settings: DeleteSettings = args.table.given.read();
    let ids = named_ids(args.ids.as_deref(), &settings.id)?
        .ok_or_else(|| Error::bad_input("no ids are given; give a file of them, or --id"))?;
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let specs = args.with_vectors.then_some(collection.specs());
    let ids = ids.of(0..ids.len());
    let (mut points, mut missing) = (Vec::new(), Vec::new());
    for part in ids.chunks(AT_ONCE.min(collection.page_points())) {
        printer.check_interrupted()?;
        for (id, point) in part.iter().zip(collection.get(part).map_err(plain)?) {
            match point {
                Some(point) if output.json => points.push(point),
                Some(point) => json_line(&PointJson::of(&point, specs))?,
                None => missing.push(id),
            }
        }
    }
    printer.finish();
    if output.json {
        let points = points.iter().map(|point| PointJson::of(point, specs)).collect();
        print_json(&GetDocument { name: &args.name, points, missing })?;
    } else if !missing.is_empty() {
        output.note(&format!("note: {} ids have no point", count(missing.len() as u64)));
    }
    Ok(Verdict::Fine)
}

/// Runs `stratann collection scroll`.
pub(super) fn scroll(args: &Scroll, output: Output) -> Result<Verdict> {
    let filter = args.filter.read()?;
    let mut from = PageStart::of(args)?;
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let specs = args.with_vectors.then_some(collection.specs());
    args.filter.check(filter.as_ref(), &collection)?;
    let (mut left, mut kept, mut unindexed) = (args.limit, Vec::<Point>::new(), WithoutIndex::default());
    let mut seq = 0;
    while left > 0 {
        printer.check_interrupted()?;
        let limit = usize::try_from(left).unwrap_or(usize::MAX).min(LIMIT_MAX);
        let (points, newest) = from.read(&collection, (limit, filter.as_ref()), &mut unindexed)?;
        left -= (points.len() as u64).min(left);
        seq = newest;
        for point in points {
            match output.json {
                true => kept.push(point),
                false => json_line(&PointJson::of(&point, specs))?,
            }
        }
        if from.next().is_none() {
            break;
        }
    }
    printer.finish();
    unindexed.note(output);
    if output.json {
        print_json(&ScrollDocument {
            name: &args.name,
            points: kept.iter().map(|point| PointJson::of(point, specs)).collect(),
            next: from.next(),
            seq,
            unindexed: unindexed.texts(),
        })?;
    } else if let Some(next) = from.next() {
        output.note(&format!("note: more points follow; go on with --after {next}"));
    }
    Ok(Verdict::Fine)
}

/// A page of points in the order of their ids.
///
/// # Errors
/// Those of the collection.
pub(super) fn page_of(
    collection: &Collection,
    after: Option<&ExternalId>,
    (limit, filter): (usize, Option<&Arc<Predicate>>),
) -> Result<Page> {
    let page = match filter {
        None => collection.scroll(after, limit),
        Some(filter) => collection.scroll_matching(after, limit, filter),
    };
    page.map_err(plain)
}

/// Runs `stratann collection count`.
pub(super) fn count_points(args: &Count, output: Output) -> Result<Verdict> {
    let filter = args.filter.read()?;
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    args.filter.check(filter.as_ref(), &collection)?;
    let ([points, least, most], seq, unindexed) = match &filter {
        None => {
            let points = collection.count().map_err(plain)?;
            ([points; 3], collection.seq().map_err(plain)?, WithoutIndex::default())
        }
        Some(filter) if args.estimate => {
            let about = collection.estimate_matching(filter).map_err(plain)?;
            ([about.points, about.least, about.most], about.seq, WithoutIndex::of(&about.unindexed))
        }
        Some(filter) => {
            let counted = collection.count_matching(filter).map_err(plain)?;
            ([counted.points; 3], counted.seq, WithoutIndex::of(&counted.unindexed))
        }
    };
    printer.finish();
    unindexed.note(output);
    let name = &args.name;
    let document = CountDocument { name, count: points, least, most, seq, unindexed: unindexed.texts() };
    output.result(&document, || match least == most {
        true => format!("{name}: {} points; change {}\n", count(points), count(seq)),
        false => format!(
            "{name}: about {} points, {} to {}; change {}\n",
            count(points),
            count(least),
            count(most),
            count(seq)
        ),
    })?;
    Ok(Verdict::Fine)
}
