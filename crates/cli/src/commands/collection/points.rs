//! `stratann collection get`, `scroll` and `count`.

use std::path::PathBuf;

use serde::Serialize;
use stratann_node::collections::{Collection, LIMIT_MAX, Page, Point};
use stratann_node::rows::ExternalId;
use stratann_params::collection::DeleteSettings;
use stratann_params::{Param, Stage};
use stratann_storage::{Error, Progress, Result};

use super::changes::named_ids;
use super::{PlaceRows, SHARED, opened};
use crate::Verdict;
use crate::data_folder::plain;
use crate::output::{Output, count, json_line, print_json};
use crate::parameters::{Parameters, Rows};
use crate::point_filter::{PointFilterArgs, WithoutIndex};
use crate::points::{IdJson, PointJson};
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

/// Print points in the order of their ids, as a line of JSON each
#[derive(clap::Args)]
#[command(after_long_help = SCROLL_EXAMPLES)]
pub(super) struct Scroll {
    /// Name of the collection
    name: String,
    /// Begin behind this id
    #[arg(long, value_name = "ID")]
    after: Option<String>,
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

Numbers come first, then UUIDs, then strings.";

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
    missing: Vec<IdJson<'a>>,
}

#[derive(Serialize)]
struct ScrollDocument<'a> {
    name: &'a str,
    points: Vec<PointJson<'a>>,
    /// Id for `--after`, or null at the end.
    next: Option<IdJson<'a>>,
    seq: u64,
    unindexed: Vec<String>,
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
                None => missing.push(IdJson(id)),
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
    let mut after = args.after.as_deref().map(ExternalId::of_token).transpose()?;
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let specs = args.with_vectors.then_some(collection.specs());
    let (mut left, mut kept, mut unindexed) = (args.limit, Vec::<Point>::new(), WithoutIndex::default());
    let mut seq = 0;
    while left > 0 {
        printer.check_interrupted()?;
        let limit = usize::try_from(left).unwrap_or(usize::MAX).min(LIMIT_MAX);
        let page = page_of(&collection, after.as_ref(), (limit, filter.as_ref()))?;
        left -= (page.points.len() as u64).min(left);
        unindexed.add(&page.unindexed);
        (seq, after) = (page.seq, page.next);
        for point in page.points {
            match output.json {
                true => kept.push(point),
                false => json_line(&PointJson::of(&point, specs))?,
            }
        }
        if after.is_none() {
            break;
        }
    }
    printer.finish();
    unindexed.note(output);
    if output.json {
        print_json(&ScrollDocument {
            name: &args.name,
            points: kept.iter().map(|point| PointJson::of(point, specs)).collect(),
            next: after.as_ref().map(IdJson),
            seq,
            unindexed: unindexed.texts(),
        })?;
    } else if let Some(id) = &after {
        output.note(&format!("note: more points follow; go on with --after {id}"));
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
    (limit, filter): (usize, Option<&std::sync::Arc<stratann_payload::Predicate>>),
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
