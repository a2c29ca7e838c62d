//! The part of a verification that a `hybrid-ivf` has: its inverted lists, one by one, and the tables that
//! describe them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use stratann_core::PAGE;
use stratann_core::format::directory::Directory;
use stratann_core::format::edges::end_of;
use stratann_core::kinds::hybrid_ivf::View;
use stratann_core::kinds::hybrid_ivf::check::{
    GraphChecker, ListChecker, ListFault, TableFault, members_of_nav, tables as check_tables,
};
use stratann_core::place::Placement;
use stratann_core::view;
use stratann_storage::data_file::open_file;
use stratann_storage::{Result, input};
use xxhash_rust::xxh3::xxh3_64;

use super::learning::file as summary_file;
use super::tables::ListTables;
use crate::base::{IndexShape, shape};
use crate::files;
use crate::findings::{Finding, Verification};
use crate::parallel;
use crate::units::{Held, HeldRanges};

/// Bytes of lists that are checked at a time.
const BATCH_BYTES: u64 = 8 << 20;
/// External ids are compared with each other below so many for each row; beyond they would take more memory than the
/// index.
const IDS_PER_ROW: u64 = 8;

/// A file of lists: of all, or of those of one server.
struct ListFile {
    name: String,
    file: File,
    held: Option<HeldRanges>,
}

impl ListFile {
    /// Offset in this file of bytes of the whole file; `None` when it does not have all of them.
    fn locate(&self, offset: u64, bytes: u64) -> Option<u64> {
        self.held.as_ref().map_or(Some(offset), |held| held.locate(offset, bytes))
    }

    /// Bytes of the whole file; none when they cannot be read, which is as good as damaged.
    fn read(&self, length: usize, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.locate(offset, length as u64).map(|at| self.file.read_exact_at(&mut bytes, at));
        if matches!(read, Some(Ok(()))) { bytes } else { Vec::new() }
    }
}

/// Reads every head and every record. What is in RAM was read and compared with the manifest before.
pub(crate) fn check(check: &mut Verification<'_>) -> Result<()> {
    let opened = check.open(|_| open(check));
    let Some((_, (view, tables))) = check.ok(opened) else { return Ok(()) };
    check_learned(check, &tables);
    let (name, entry) = check.manifest.file(files::LISTS)?;
    let file = open_file(&check.folder.join(name), entry)?;
    Checking::new(view, &tables, check).file(&ListFile { name: name.to_string(), file, held: None })
}

fn check_learned(check: &mut Verification<'_>, tables: &ListTables) {
    for name in summary_file::damaged(check.folder, check.manifest, tables.directory.clusters()) {
        check.found(&name, "what was learned from queries is damaged and not used; delete it");
    }
}

/// Checks every server's file as a whole, and each list in it: what the placement says must be there, and copies must
/// be equal.
pub(crate) fn check_parts(check: &mut Verification<'_>, placement: &Placement) -> Result<()> {
    let opened = open(check);
    let Some((view, tables)) = check.ok(opened) else { return Ok(()) };
    check_learned(check, &tables);
    let (folder, manifest) = (check.folder, check.manifest);
    let ranges = tables.unit_ranges(manifest);
    for server in 0..placement.servers() {
        let Some((name, entry)) = check.ok(manifest.file(&manifest.part_role(server))) else { continue };
        check.file(name, entry, &mut |_| {})?;
        let held = HeldRanges::new(&ranges, Held { placement, server });
        if held.file_bytes() != entry.bytes {
            let what = format!("it has {} bytes, by the placement {}", entry.bytes, held.file_bytes());
            check.found(name, what);
        }
    }
    let mut checking = Checking::new(view, &tables, check);
    for server in 0..placement.servers() {
        let Ok((name, _)) = manifest.file(&manifest.part_role(server)) else { continue };
        // What cannot be opened was found above.
        let Ok(file) = input::open(&folder.join(name)) else { continue };
        let held = Some(HeldRanges::new(&ranges, Held { placement, server }));
        checking.file(&ListFile { name: name.to_string(), file, held })?;
    }
    Ok(())
}

/// Reads what describes the lists.
fn open(check: &Verification<'_>) -> Result<(view::Base<'static>, ListTables)> {
    let manifest = check.manifest;
    let IndexShape { metric, dtype, block, .. } = shape(check.folder, manifest)?;
    let view = view::Base::whole((metric, dtype), manifest.dim, manifest.rows as u32);
    Ok((view, ListTables::load(check.folder, manifest, &block)?))
}

/// The check of one file after another.
struct Checking<'a, 'v> {
    view: view::Base<'a>,
    tables: &'a ListTables,
    in_nav: Vec<(u32, u32)>,
    ids: Ids,
    // Of each list that was sound in a file: the hash of its bytes, and the number of that file.
    sound: Vec<Option<(u64, u32)>>,
    names: Vec<String>,
    check: &'a mut Verification<'v>,
}

impl<'a, 'v> Checking<'a, 'v> {
    /// Checks the tables.
    fn new(
        view: view::Base<'a>,
        tables: &'a ListTables,
        check: &'a mut Verification<'v>,
    ) -> Checking<'a, 'v> {
        let mut found = Vec::new();
        check_tables(&tables.view(), &mut found);
        found.iter().for_each(|fault| check.report.found(of_table(check, fault)));
        let lists = tables.directory.list_count();
        check.report.lists = Some(lists);
        Checking {
            view,
            tables,
            in_nav: members_of_nav(&tables.view()),
            ids: Ids::new(check.manifest.rows),
            sound: vec![None; lists as usize],
            names: Vec::new(),
            check,
        }
    }

    /// Checks the lists of a file, and the edges of its clusters that are graphs.
    fn file(&mut self, file: &ListFile) -> Result<()> {
        self.names.push(file.name.clone());
        let tables = self.tables;
        let is_here = |list: u32| {
            let held = file.held.as_ref();
            held.is_none_or(|held| held.locate(tables.directory.codes[list as usize], 1).is_some())
        };
        let lists: Vec<u32> = (0..tables.directory.list_count()).filter(|&list| is_here(list)).collect();
        for batch in batches(tables, &lists) {
            self.check.progress.check_interrupted()?;
            let bytes: u64 = batch.iter().map(|&list| bytes_of(tables, list)).sum();
            let (view, in_nav) = (&self.view, &self.in_nav);
            let checked = parallel::map_with(
                batch,
                || ListChecker::new(view),
                |c, &list| check_list(view, file, c, (&tables.view(), list), in_nav),
            );
            checked.iter().for_each(|checked| self.note(file, checked));
            self.check.progress.advance(bytes);
        }
        self.graphs(file, &lists)
    }

    /// Notes what came of one list. The ids of its first sound copy count.
    fn note(&mut self, file: &ListFile, checked: &Checked) {
        for fault in &checked.found {
            self.check.report.found(of_list(file, self.tables, checked.list, fault));
        }
        let number = self.names.len() as u32 - 1;
        match &mut self.sound[checked.list as usize] {
            Some((hash, first)) => {
                if checked.found.is_empty() && *hash != checked.hash {
                    let what = format!("it differs from its copy in {}", self.names[*first as usize]);
                    self.check
                        .report
                        .found(Finding { list: Some(checked.list), ..Finding::of(&file.name, what) });
                }
                return;
            }
            sound if checked.found.is_empty() || file.held.is_none() => *sound = Some((checked.hash, number)),
            _ => return,
        }
        for id in checked.ids.iter().filter(|&&id| !self.ids.is_new(id)) {
            let what = format!("external id {id} is given to two vectors");
            self.check.report.found(Finding { list: Some(checked.list), ..Finding::of(&file.name, what) });
        }
        self.check.report.nodes += checked.ids.len() as u64;
    }

    /// Checks the edges of clusters that are graphs, one cluster after another.
    fn graphs(&mut self, file: &ListFile, lists: &[u32]) -> Result<()> {
        let (directory, shape) = (&self.tables.directory, &self.tables.shape);
        let parts = self.tables.view();
        let number = self.names.len() as u32 - 1;
        let has_first = |&c: &u32| lists.binary_search(&directory.lists_of(c).start).is_ok();
        for cluster in (0..directory.clusters()).filter(|&c| directory.has_edges(c)).filter(has_first) {
            self.check.progress.check_interrupted()?;
            let mut checker = GraphChecker::new(&self.view, cluster);
            for list in directory.lists_of(cluster) {
                let length = directory.members(list) as usize * shape.record_bytes();
                checker.list(&self.view, &parts, list, &file.read(length, directory.records[list as usize]));
            }
            let mut found = Vec::new();
            let edges = checker.edges(&parts, &pages_of_edges(file, directory, cluster), &mut found);
            let first = directory.lists_of(cluster).start;
            let is_first_copy = self.sound[first as usize].is_none_or(|sound| sound.1 == number);
            self.check.report.edges += if is_first_copy { edges } else { 0 };
            for fault in &found {
                self.check.report.found(of_list(file, self.tables, first, fault));
            }
        }
        Ok(())
    }
}

/// The pages with the edges of a cluster. What else is in them is left out.
fn pages_of_edges(file: &ListFile, directory: &Directory, cluster: u32) -> Vec<u8> {
    let members = directory.members_of(cluster).len() as u32;
    let start = directory.edges[cluster as usize];
    let page = PAGE as u64;
    let skip = (start % page) as usize;
    let own = file.read((end_of(directory.degree as usize, start, members) - start) as usize, start);
    let mut bytes = vec![0; (skip + own.len()).next_multiple_of(PAGE)];
    bytes[skip..skip + own.len()].copy_from_slice(&own);
    if own.is_empty() { own } else { bytes }
}

/// Result of the check of one list.
struct Checked {
    list: u32,
    found: Vec<ListFault>,
    ids: Vec<u64>,
    // Of its list codes and its records.
    hash: u64,
}

fn check_list(
    view: &view::Base<'_>,
    file: &ListFile,
    checker: &mut ListChecker,
    (clusters, list): (&View<'_>, u32),
    in_nav: &[(u32, u32)],
) -> Checked {
    let at = list as usize;
    let members = clusters.directory.members(list) as usize;
    let head = file.read(clusters.shape.list_codes_bytes(members), clusters.directory.codes[at]);
    let records = file.read(members * clusters.shape.record_bytes(), clusters.directory.records[at]);
    let hash = xxh3_64(&head) ^ xxh3_64(&records).rotate_left(1);
    let mut checked = Checked { list, found: Vec::new(), ids: Vec::new(), hash };
    let ids = clusters.directory.ids[at]..clusters.directory.ids[at + 1];
    let in_nav = &in_nav[in_nav.partition_point(|m| m.0 < ids.start)..];
    checker.list(view, clusters, list, (&head, &records), in_nav, &mut checked.found, &mut checked.ids);
    checked
}

fn bytes_of(clusters: &ListTables, list: u32) -> u64 {
    let members = clusters.directory.members(list) as usize;
    (clusters.shape.list_codes_bytes(members) + members * clusters.shape.record_bytes()) as u64
}

/// Runs of lists of about [`BATCH_BYTES`] together.
fn batches<'l>(clusters: &ListTables, lists: &'l [u32]) -> Vec<&'l [u32]> {
    let (mut out, mut from, mut held) = (Vec::new(), 0, 0);
    for (at, &list) in lists.iter().enumerate() {
        held += bytes_of(clusters, list);
        if held >= BATCH_BYTES {
            out.push(&lists[from..at + 1]);
            (from, held) = (at + 1, 0);
        }
    }
    out.push(&lists[from..]);
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

fn of_table(check: &Verification<'_>, fault: &TableFault) -> Finding {
    let of = |role: &str, what: String| Finding::of(&check.name_of(role), what);
    match *fault {
        TableFault::Overlap(list) => Finding {
            list: Some(list),
            ..of(files::DIRECTORY, "its place overlaps that of another list".into())
        },
        TableFault::SubLists(cluster) => {
            of(files::SUBLISTS, format!("cluster {cluster} has no entry for each of its lists"))
        }
        TableFault::Edges(cluster) => {
            of(files::DIRECTORY, format!("cluster {cluster} is to be a graph, but has no edges"))
        }
        TableFault::NavNode(node) => of(
            files::NAV,
            format!("node {node} names a member of another cluster, or itself as its neighbour"),
        ),
    }
}

fn of_list(file: &ListFile, clusters: &ListTables, list: u32, fault: &ListFault) -> Finding {
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
    let offset = file.locate(offset, 1).unwrap_or(offset);
    Finding { list: Some(list), offset: Some(offset), ..Finding::of(&file.name, what) }
}
