//! A build as tasks that processes on several machines do, over one folder that all of them share.
//!
//! A task reads files that earlier tasks have left in `partial/`, writes its own under names that no other task uses,
//! each whole or not at all, and gives facts. So it may be done twice, even at the same time. What must come before
//! what, [`super`] knows.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use stratann_params::build::GraphOptions;
use stratann_params::choices::OnBadRow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stratann_storage::data_file::FileEntry;
use stratann_storage::names::FileName;
use stratann_storage::{Error, Progress, Result, budget};

use super::BLOCKS;
use crate::curve::Curve;
use crate::dataset::{self, Reader, Scan};
use crate::files;
use crate::kinds::disk_graph::build::divide::Division;
use crate::kinds::disk_graph::build::graph_stage::{self, GraphFacts};
use crate::kinds::disk_graph::build::layout_stage::Layout;
use crate::kinds::disk_graph::build::{
    DIVIDE, GRAPH, cells, code_bytes, codes_target, divide, layout_stage, merge, write_head_graph,
};
use crate::kinds::flat;
use crate::kinds::options::KindOptions;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use crate::stages::blocks::layout::LayoutFacts;
use crate::stages::blocks::write::Written;
use crate::stages::build::{Build, ScanFacts, content_of_ids, made_with};
use crate::stages::options::BuildOptions;
use crate::stages::stage::{CODES, LAYOUT, SCAN};
use crate::stages::state::{Partial, State, facts};
use crate::stages::{codes, publish};

/// One piece of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Looks at a part of the rows.
    Scan(usize),
    /// Checks the ids that the user gave.
    Ids,
    /// Prepares the codes.
    Codebook,
    /// Finds what the rows will be divided by.
    Centroids,
    /// Finds where a part of the rows belongs.
    Nearest(usize),
    /// Divides all rows into cells.
    Divide,
    /// Builds one graph of all rows.
    Graph,
    /// Builds the graph of a cell.
    Cell(usize),
    /// Joins what several cells found for the rows of one.
    Merge(usize),
    /// Encodes a part of the rows.
    Encode(usize),
    /// Decides which rows of a cell share a block.
    Pack(usize),
    /// Gives every row its id.
    Number,
    /// Writes the blocks of a cell.
    Blocks(usize),
    /// Puts all codes in the order of ids.
    Codes,
    /// Builds the head graph.
    Head,
    /// Puts all blocks into one file.
    Join,
    /// Lays out an index without a graph.
    Flat,
    /// Measures what recall costs.
    Calibrate,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, part) = match *self {
            Task::Scan(p) => ("scan", Some(p)),
            Task::Ids => ("ids", None),
            Task::Codebook => ("codebook", None),
            Task::Centroids => ("centroids", None),
            Task::Nearest(p) => ("nearest", Some(p)),
            Task::Divide => ("divide", None),
            Task::Graph => ("graph", None),
            Task::Cell(c) => ("cell", Some(c)),
            Task::Merge(c) => ("merge", Some(c)),
            Task::Encode(p) => ("encode", Some(p)),
            Task::Pack(c) => ("pack", Some(c)),
            Task::Number => ("number", None),
            Task::Blocks(c) => ("blocks", Some(c)),
            Task::Codes => ("codes", None),
            Task::Head => ("head", None),
            Task::Join => ("join", None),
            Task::Flat => ("flat", None),
            Task::Calibrate => ("calibrate", None),
        };
        match part {
            Some(part) => write!(f, "{name}-{part}"),
            None => write!(f, "{name}"),
        }
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(text: &str) -> Result<Task> {
        let unknown = || Error::bad_input(format!("{text:?} is no task of a build"));
        let (name, part) = match text.split_once('-') {
            Some((name, part)) => (name, Some(part.parse::<usize>().map_err(|_| unknown())?)),
            None => (text, None),
        };
        Ok(match (name, part) {
            ("scan", Some(p)) => Task::Scan(p),
            ("ids", None) => Task::Ids,
            ("codebook", None) => Task::Codebook,
            ("centroids", None) => Task::Centroids,
            ("nearest", Some(p)) => Task::Nearest(p),
            ("divide", None) => Task::Divide,
            ("graph", None) => Task::Graph,
            ("cell", Some(c)) => Task::Cell(c),
            ("merge", Some(c)) => Task::Merge(c),
            ("encode", Some(p)) => Task::Encode(p),
            ("pack", Some(c)) => Task::Pack(c),
            ("number", None) => Task::Number,
            ("blocks", Some(c)) => Task::Blocks(c),
            ("codes", None) => Task::Codes,
            ("head", None) => Task::Head,
            ("join", None) => Task::Join,
            ("flat", None) => Task::Flat,
            ("calibrate", None) => Task::Calibrate,
            _ => return Err(unknown()),
        })
    }
}

/// Facts of a build that a process needs to do a task of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub(crate) number: u64,
    pub(crate) state: State,
}

/// Result of a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Facts that later tasks need.
    pub facts: Value,
    /// Largest resident set of the process that did it.
    pub peak_rss_bytes: u64,
}

/// Result of a part of the scan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScanPart {
    pub(crate) skipped: Vec<u64>,
    pub(crate) max_squared_norm: f64,
    pub(crate) content: u64,
}

/// Result of the check of the user's ids.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct IdFacts {
    pub(crate) largest: u64,
    pub(crate) content: u64,
}

impl IdFacts {
    fn of(ids: &[u64]) -> IdFacts {
        IdFacts { largest: ids.iter().copied().max().unwrap_or(0), content: content_of_ids(ids) }
    }
}

/// The last stage: measures what recall costs on the files so far.
pub(crate) type Calibrate = fn(&Build<'_>, &Manifest, &Scan) -> Result<Vec<Curve>>;

/// Does one task of the build in the folder `out`. `base` and `options` are those that the build was begun with;
/// threads may differ.
///
/// # Errors
/// A folder that cannot be seen from here, another base or other options than the build was begun with; what the task
/// itself meets. A task that fails leaves nothing that counts.
pub(crate) fn run(
    base: &Reader,
    out: &Path,
    options: &BuildOptions,
    job: Job,
    task: Task,
    calibrate: Calibrate,
    progress: &dyn Progress,
) -> Result<Done> {
    let plan = crate::kinds::checked_plan(base, options)?;
    let mut partial = Partial::attach(out, job.state, &made_with(base, job.number, options))?;
    let name = task.to_string();
    let facts = match partial.task_facts(&name) {
        Some(facts) => facts,
        None => {
            let pool = crate::stages::pool(plan.threads)?;
            let mut build = Build::new(base, options, &plan, &mut partial, job.number, progress);
            let facts = pool.install(|| work(&mut build, task, calibrate))?;
            partial.finish_task(&name, &facts)?;
            facts
        }
    };
    budget::release_freed();
    Ok(Done { facts, peak_rss_bytes: budget::process().peak_rss_bytes })
}

fn work(build: &mut Build<'_>, task: Task, calibrate: Calibrate) -> Result<Value> {
    match task {
        Task::Scan(part) => {
            let (metric, rows) = (build.options.metric, build.parts().rows_of(part));
            let scan = dataset::scan_rows(build.base, metric, OnBadRow::Skip, rows, build.progress)?;
            let Scan { skipped, max_squared_norm, content, .. } = scan;
            return Ok(json!(ScanPart { skipped, max_squared_norm, content }));
        }
        Task::Ids => {
            let rows = build.base.shape().rows;
            let ids = build.options.ids.as_ref().map(|path| dataset::read_ids(path, rows)).transpose()?;
            return Ok(json!(IdFacts::of(&ids.unwrap_or_default())));
        }
        _ => {}
    }
    let scan: ScanFacts = facts(build.partial, SCAN)?;
    let scan = build.take_scan(scan);
    match (&build.options.kind, task) {
        (_, Task::Flat) => {
            load_ids(build)?;
            Ok(json!(flat::build::write_blocks(build, &scan)?))
        }
        (KindOptions::DiskGraph(own), _) => graph_work(build, own, (&scan, task), calibrate),
        (other, _) => Err(Error::bad_input(format!("{task} is no task of a {}", other.kind().name()))),
    }
}

/// Does a task of a `disk-graph`.
fn graph_work(
    build: &mut Build<'_>,
    own: &GraphOptions,
    (scan, task): (&Scan, Task),
    calibrate: Calibrate,
) -> Result<Value> {
    let space = |b: &Build<'_>| b.space(scan, own.exact_points);
    let division = |b: &Build<'_>| facts::<Division>(b.partial, DIVIDE);
    let graph = |b: &Build<'_>| facts::<GraphFacts>(b.partial, GRAPH);
    Ok(match task {
        Task::Scan(_) | Task::Ids | Task::Flat => Value::Null,
        Task::Codebook => {
            json!(codes::make_coder(build, code_bytes(build, own), &space(build)?, scan)?)
        }
        Task::Centroids => json!(divide::centroids(build, own, &space(build)?, scan)?),
        Task::Nearest(part) => json!(divide::nearest(build, &space(build)?, scan, part)?),
        Task::Divide => json!(divide::divide(build, own, &space(build)?, scan)?),
        Task::Graph => json!(graph_stage::in_one(build, own, &space(build)?, scan)?),
        Task::Cell(cell) => {
            json!(cells::build_cell(build, own, &space(build)?, &division(build)?, cell)?)
        }
        Task::Merge(cell) => {
            json!(merge::merge_cell(build, own, &space(build)?, &division(build)?, cell)?)
        }
        Task::Encode(part) => json!(codes::encode_part(build, &space(build)?, scan, part)?),
        Task::Pack(cell) => json!(Layout { build, own, scan, graph: &graph(build)? }.pack_to_file(cell)?),
        Task::Number => json!(layout_stage::number(build, &graph(build)?)?),
        Task::Blocks(cell) => {
            load_ids(build)?;
            json!(Layout { build, own, scan, graph: &graph(build)? }.write_cell(cell)?)
        }
        Task::Codes => json!(codes::join(build, &codes_target(build, own.codes), scan)?),
        Task::Head => json!(write_head_graph(build, own, &space(build)?, scan)?),
        Task::Join => {
            let written: Written = facts(build.partial, BLOCKS)?;
            json!(Layout { build, own, scan, graph: &graph(build)? }.join(&written)?)
        }
        Task::Calibrate => {
            load_ids(build)?;
            let layout: LayoutFacts = facts(build.partial, LAYOUT)?;
            let manifest = publish::manifest(
                build,
                scan.rows,
                layout.blocks,
                facts(build.partial, CODES)?,
                Section::None {},
            )?;
            let curves = calibrate(build, &manifest, scan)?;
            json!((curves, manifest.files))
        }
    })
}

/// Loads the ids that the user gave, which were checked before.
fn load_ids(build: &mut Build<'_>) -> Result<()> {
    let rows = build.base.shape().rows;
    build.external = build.options.ids.as_ref().map(|path| dataset::load_ids(path, rows)).transpose()?;
    Ok(())
}

/// Facts of the file that [`Task::Join`] wrote.
pub(crate) fn joined(number: u64, entry: FileEntry) -> BTreeMap<FileName, FileEntry> {
    BTreeMap::from([(files::name(number, files::BLOCKS), entry)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_what_their_names_say() {
        let all = [
            Task::Scan(3),
            Task::Ids,
            Task::Codebook,
            Task::Centroids,
            Task::Nearest(0),
            Task::Divide,
            Task::Graph,
            Task::Cell(12),
            Task::Merge(1),
            Task::Encode(7),
            Task::Pack(2),
            Task::Number,
            Task::Blocks(65_535),
            Task::Codes,
            Task::Head,
            Task::Join,
            Task::Flat,
            Task::Calibrate,
        ];
        for task in all {
            assert_eq!(task.to_string().parse::<Task>().unwrap(), task);
        }
        for wrong in ["", "cell", "cell-", "cell-x", "cell--1", "join-3", "sweep", "graph-"] {
            assert!(wrong.parse::<Task>().unwrap_err().message.contains("no task"), "{wrong}");
        }
    }
}
