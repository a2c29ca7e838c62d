//! The part of a verification that a `hybrid-ivf` has: its inverted lists, one by one, and the tables that
//! describe them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::prelude::*;
use stratann_core::PAGE;
use stratann_core::plan::hybrid_ivf::View;
use stratann_core::plan::hybrid_ivf::check::{
    GraphChecker, ListChecker, ListFault, TableFault, members_of_nav, tables,
};
use stratann_core::view;

use super::learning::file as summary_file;
use super::open::ListIndex;
use super::tables::ListTables;
use crate::base::{Base, OpenOptions};
use crate::manifest::Manifest;
use crate::verify::report::{Finding, Report, file_in};
use crate::{Error, Progress, Result, files};

/// Bytes of lists that are checked at a time.
const BATCH_BYTES: u64 = 8 << 20;
/// External ids are compared with each other below so many for each row; beyond they would take more memory than the
/// index.
const IDS_PER_ROW: u64 = 8;

/// Reads every head and every record. What is in RAM was read and compared with the manifest before.
pub(crate) fn check(
    folder: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let (base, lists) = match open(folder, number, manifest) {
        Ok(opened) => opened,
        Err(e) => {
            let file = file_in(&e.message, manifest);
            report.found(Finding { file, what: e.message, ..Finding::default() });
            return Ok(());
        }
    };
    let clusters = &*lists.tables;
    if summary_file::is_damaged(folder, manifest, clusters.directory.clusters()) {
        let what = "what was learned from queries is damaged and not used; delete it".into();
        report.found(of_file(summary_file::NAME, what));
    }
    let view = base.view();
    let (name, _) = manifest.file(files::LISTS)?;
    let mut found = Vec::new();
    tables(&lists.view(), &mut found);
    found.iter().for_each(|fault| report.found(of_table(manifest, fault)));
    let file = File::open(folder.join(name)).map_err(|e| Error::io("opening", &folder.join(name), &e))?;
    let in_nav = members_of_nav(&lists.view());
    let mut ids = Ids::new(manifest.rows);
    for batch in batches(clusters) {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let bytes: u64 = batch.clone().map(|l| bytes_of(clusters, l)).sum();
        let checked: Vec<Checked> = batch
            .into_par_iter()
            .map_init(
                || ListChecker::new(&view),
                |c, list| check_list(&view, &file, c, (&lists.view(), list), &in_nav),
            )
            .collect();
        for checked in checked {
            for fault in &checked.found {
                report.found(of_list(name, clusters, checked.list, fault));
            }
            for id in checked.ids.iter().filter(|&&id| !ids.is_new(id)) {
                let what = format!("external id {id} is given to two vectors");
                report.found(Finding { list: Some(checked.list), ..of_file(name, what) });
            }
            report.nodes += checked.ids.len() as u64;
        }
        progress.advance(bytes);
    }
    report.lists = Some(clusters.directory.list_count());
    check_graphs(&view, &lists, name, &file, progress, report)
}

/// Opens the index with no list codes resident: they are read from their file.
fn open(folder: &Path, number: u64, manifest: &Manifest) -> Result<(Base, ListIndex)> {
    let base = Base::open(folder, number, manifest.clone(), files::LISTS)?;
    let options = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let lists = ListIndex::open(&base, &options, &mut Vec::new())?;
    Ok((base, lists))
}

/// Checks the edges of clusters that are graphs, one cluster after another.
fn check_graphs(
    view: &view::Base<'_>,
    lists: &ListIndex,
    name: &str,
    file: &File,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let clusters = &*lists.tables;
    let (parts, directory, shape) = (lists.view(), &clusters.directory, &clusters.shape);
    for cluster in (0..directory.clusters()).filter(|&c| directory.has_edges(c)) {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let read = |length: usize, offset: u64| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes).unwrap_or_default()
        };
        let mut checker = GraphChecker::new(view, cluster);
        for list in directory.lists_of(cluster) {
            let length = directory.members(list) as usize * shape.record_bytes();
            checker.list(view, &parts, list, &read(length, directory.records[list as usize]));
        }
        let members = directory.members_of(cluster).len() as u32;
        let (first, last) = (
            directory.edges_at(cluster, 0).first,
            directory.edges_at(cluster, members.saturating_sub(1)).first,
        );
        let bytes = read((last + 1 - first) as usize * PAGE, u64::from(first) * PAGE as u64);
        let mut found = Vec::new();
        report.edges += checker.edges(&parts, &bytes, &mut found);
        for fault in &found {
            report.found(of_list(name, clusters, directory.lists_of(cluster).start, fault));
        }
    }
    Ok(())
}

/// What came of one list.
struct Checked {
    list: u32,
    found: Vec<ListFault>,
    ids: Vec<u64>,
}

fn check_list(
    view: &view::Base<'_>,
    file: &File,
    checker: &mut ListChecker,
    (clusters, list): (&View<'_>, u32),
    in_nav: &[(u32, u32)],
) -> Checked {
    let mut checked = Checked { list, found: Vec::new(), ids: Vec::new() };
    let at = list as usize;
    let members = clusters.directory.members(list) as usize;
    let read = |length: usize, offset: u64| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).map(|()| bytes)
    };
    // What cannot be read is as good as damaged.
    let head =
        read(clusters.shape.list_codes_bytes(members), clusters.directory.codes[at]).unwrap_or_default();
    let records =
        read(members * clusters.shape.record_bytes(), clusters.directory.records[at]).unwrap_or_default();
    let ids = clusters.directory.ids[at]..clusters.directory.ids[at + 1];
    let in_nav = &in_nav[in_nav.partition_point(|m| m.0 < ids.start)..];
    checker.list(view, clusters, list, (&head, &records), in_nav, &mut checked.found, &mut checked.ids);
    checked
}

fn bytes_of(clusters: &ListTables, list: u32) -> u64 {
    let members = clusters.directory.members(list) as usize;
    (clusters.shape.list_codes_bytes(members) + members * clusters.shape.record_bytes()) as u64
}

/// Consecutive lists of about [`BATCH_BYTES`] together.
fn batches(clusters: &ListTables) -> Vec<std::ops::Range<u32>> {
    let (mut out, mut from, mut held) = (Vec::new(), 0, 0);
    for list in 0..clusters.directory.list_count() {
        held += bytes_of(clusters, list);
        if held >= BATCH_BYTES {
            out.push(from..list + 1);
            (from, held) = (list + 1, 0);
        }
    }
    out.push(from..clusters.directory.list_count());
    out
}

/// The external ids met so far, as bits; those out of its range are not remembered.
struct Ids(Vec<u64>);

impl Ids {
    fn new(rows: u64) -> Ids {
        Ids(vec![0; (rows * IDS_PER_ROW).div_ceil(64) as usize])
    }

    fn is_new(&mut self, id: u64) -> bool {
        let Some(word) = usize::try_from(id / 64).ok().and_then(|at| self.0.get_mut(at)) else { return true };
        let bit = 1 << (id % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

fn of_file(name: &str, what: String) -> Finding {
    Finding { file: name.into(), what, ..Finding::default() }
}

/// The file that a role has in this index.
fn name_of(manifest: &Manifest, role: &str) -> String {
    manifest.file(role).map_or(role.to_string(), |found| found.0.to_string())
}

fn of_table(manifest: &Manifest, fault: &TableFault) -> Finding {
    match *fault {
        TableFault::Overlap(list) => Finding {
            list: Some(list),
            ..of_file(&name_of(manifest, files::DIRECTORY), "its place overlaps that of another list".into())
        },
        TableFault::SubLists(cluster) => of_file(
            &name_of(manifest, files::SUBLISTS),
            format!("cluster {cluster} has no entry for each of its lists"),
        ),
        TableFault::Edges(cluster) => of_file(
            &name_of(manifest, files::DIRECTORY),
            format!("cluster {cluster} is to be a graph, but has no edges"),
        ),
        TableFault::NavNode(node) => of_file(
            &name_of(manifest, files::NAV),
            format!("node {node} names a member of another cluster, or itself as its neighbour"),
        ),
    }
}

fn of_list(name: &str, clusters: &ListTables, list: u32, fault: &ListFault) -> Finding {
    let record = |id| clusters.directory.record_at(&clusters.shape, id);
    let edges = |id: u32| {
        let cluster = clusters.directory.cluster_of(list);
        let at = clusters.directory.edges_at(cluster, id - clusters.directory.members_of(cluster).start);
        u64::from(at.first) * PAGE as u64 + u64::from(at.skip)
    };
    let list = match *fault {
        ListFault::Edges(id) | ListFault::Edge(id) | ListFault::Length(id) => clusters.directory.list_of(id),
        _ => list,
    };
    let head = clusters.directory.codes[list as usize];
    let (offset, what) = match *fault {
        ListFault::Codes => (head, "the head's checksum or layout is wrong".to_string()),
        ListFault::Misplaced => (head, "its members are not those that the directory says".into()),
        ListFault::Centroid => (head, "its centroid is not that of its cluster".into()),
        ListFault::Record(id) => (record(id), format!("the record of member {id} is damaged")),
        ListFault::Vector(id) => (record(id), format!("the vector of member {id} is not finite")),
        ListFault::Radius(id) => {
            (head, format!("member {id} lies farther from its code than the radius says"))
        }
        ListFault::Distance(id) => {
            (head, format!("the distance of member {id} to the centroid is not the one that is stored"))
        }
        ListFault::Term(id) => (head, format!("the term of member {id} is not that of its code")),
        ListFault::Edges(id) => (edges(id), format!("the edges of member {id} are damaged")),
        ListFault::Edge(id) => (
            edges(id),
            format!("an edge of member {id} leads to itself or to no other member of its cluster"),
        ),
        ListFault::Length(id) => {
            (edges(id), format!("the length of an edge of member {id} is not the one that is stored"))
        }
        ListFault::Nav(node) => {
            (head, format!("node {node} of the navigation graph is not the member that it names"))
        }
    };
    Finding { list: Some(list), offset: Some(offset), ..of_file(name, what) }
}
