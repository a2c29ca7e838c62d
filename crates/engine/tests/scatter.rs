//! Separate indexes for the servers of a cluster: every row in one of them, as it was; equal bytes on any number of
//! threads; and no trace of what did not work.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Built, Set, clustered, graph_options, quick};
use stratann_core::format::block::Block;
use stratann_engine::build::IndexKind;
use stratann_engine::index::OpenOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::scatter::{PartIndex, describe, open, open_part, scatter, server_folder};
use stratann_engine::spread::{Method, PartitionOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::{ErrorKind, Progress, Quiet};

const ROWS: usize = 3000;

/// Norms and ids lie beside the vectors: f16 under cosine, with names for the rows.
fn source() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let ids = dir.path().join("ids.u64bin");
        let header = [ROWS as u32, 1].map(u32::to_le_bytes).concat();
        let names: Vec<u8> = (0..ROWS as u64).flat_map(|row| name(row).to_le_bytes()).collect();
        std::fs::write(&ids, [header, names].concat()).unwrap();
        let mut options = graph_options(quick(IndexKind::DiskGraph, Metric::Cosine), |own| {
            (own.nodes_per_block, own.code_bytes) = (Some(9), Some(12));
        });
        options.ids = Some(ids);
        Built::new(Set::new(DType::F16, 24, &clustered(ROWS, 24, 20, 1)), &options)
    })
}

fn name(row: u64) -> u64 {
    (1 << 40) + 7 * row
}

fn options(threads: usize) -> PartitionOptions {
    PartitionOptions { threads, method: Method::Kmeans, ..PartitionOptions::new(3) }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(files(&entry.path()).into_iter().map(|(k, v)| (format!("{name}/{k}"), v))),
            false => {
                all.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}

#[test]
fn every_row_is_in_one_index_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("apart");
    let report = scatter(source().dir.path(), &out, (&options(2), 3), &Quiet).unwrap();
    assert_eq!(describe(&out).unwrap(), report.description);
    let (description, indexes) = open(&out, source().index.manifest()).unwrap();
    assert_eq!(description.rows.iter().sum::<u64>(), ROWS as u64);
    let mut seen = vec![false; ROWS];
    for (index, rows) in indexes.iter().zip(&description.rows) {
        assert_eq!(index.manifest().rows, *rows);
        let built = source().index.manifest();
        assert!(built.build.iter().all(|(key, value)| index.manifest().build.get(key) == Some(value)));
        let view = index.view();
        for number in 0..view.kind.disk_graph().unwrap().blocks {
            let bytes = index.read_block(number).unwrap();
            let block = Block::open(view.kind.disk_graph().unwrap().block, bytes.bytes()).unwrap();
            for slot in 0..block.count() {
                let row = ((block.external_id(slot) - name(0)) / 7) as usize;
                assert_eq!(block.vector(slot), source().set.row(row), "row {row}");
                assert!(!std::mem::replace(&mut seen[row], true), "row {row} twice");
            }
        }
    }
    assert!(seen.iter().all(|&s| s));
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let run = |threads: usize| {
        let out = dir.path().join(threads.to_string());
        scatter(source().dir.path(), &out, (&options(threads), 3), &Quiet).unwrap();
        files(&out)
    };
    let (one, three) = (run(1), run(3));
    assert_eq!(one.keys().collect::<Vec<_>>(), three.keys().collect::<Vec<_>>());
    assert!(one.iter().all(|(name, bytes)| three[name] == *bytes));
}

/// Asks to stop when a stage of this name has begun so many times.
struct StopAt(&'static str, AtomicU64);

impl Progress for StopAt {
    fn stage(&self, name: &str, _: u64, _: &str) {
        if name.contains(self.0) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.1.load(Ordering::SeqCst) > 0
    }
}

#[test]
fn what_is_stopped_leaves_nothing_and_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("apart");
    scatter(source().dir.path(), &out, (&options(2), 3), &Quiet).unwrap();
    let before = files(dir.path());
    for stage in ["dividing rows", "part 1 of 2", "part 2 of 2"] {
        let options = PartitionOptions { servers: 2, force: true, ..options(2) };
        let stop = StopAt(stage, AtomicU64::new(0));
        let error = scatter(source().dir.path(), &out, (&options, 2), &stop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Interrupted, "{stage}: {error}");
        assert!(!error.message.contains("--resume"), "{error}");
        assert_eq!(
            files(dir.path()).keys().collect::<Vec<_>>(),
            before.keys().collect::<Vec<_>>(),
            "{stage}"
        );
    }
    assert!(files(dir.path()) == before);
    let options = PartitionOptions { servers: 2, force: true, ..options(2) };
    assert_eq!(scatter(source().dir.path(), &out, (&options, 2), &Quiet).unwrap().description.servers, 2);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 3);
}

#[test]
fn copies_and_damage_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("apart");
    let copied = PartitionOptions { replicas: 2, ..options(2) };
    let error = scatter(source().dir.path(), &out, (&copied, 3), &Quiet).unwrap_err();
    assert!(error.message.contains("without copies"), "{error}");
    let error = describe(&out).unwrap_err();
    assert!(error.message.contains("holds no separate indexes"), "{error}");
    scatter(source().dir.path(), &out, (&options(2), 3), &Quiet).unwrap();
    std::fs::write(out.join("scatter-gather.json"), "{\"servers\": 3}").unwrap();
    assert_eq!(describe(&out).unwrap_err().kind, ErrorKind::Corrupt);
    scatter(source().dir.path(), &out, (&PartitionOptions { force: true, ..options(2) }, 3), &Quiet).unwrap();
    std::fs::remove_dir_all(server_folder(&out, 1)).unwrap();
    assert!(open(&out, source().index.manifest()).is_err());
}

#[test]
fn a_part_may_be_partitioned_over_several_servers() {
    let dir = tempfile::tempdir().unwrap();
    let (alone, out) = (dir.path().join("alone"), dir.path().join("parts"));
    scatter(source().dir.path(), &alone, (&PartitionOptions { servers: 2, ..options(2) }, 2), &Quiet)
        .unwrap();
    let spread = PartitionOptions { servers: 6, replicas: 2, ..options(2) };
    let made = scatter(source().dir.path(), &out, (&spread, 2), &Quiet).unwrap().description;
    assert_eq!((made.servers, made.count(), made.servers_each(), made.replicas), (6, 2, 3, Some(2)));
    assert_eq!(made, describe(&out).unwrap());
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 3, "two parts and the description");
    for server in 0..6 {
        let (described, opened) = open_part(&out, server, OpenOptions::default()).unwrap();
        let PartIndex::Shard(shard) = opened else { panic!("server {server} has a whole index") };
        let part = server / 3;
        assert_eq!(
            (described.place(server, &out).unwrap(), shard.placement().servers()),
            ((part, server % 3), 3)
        );
        assert!(shard.placement().all().iter().all(|replicas| replicas.count_ones() == 2));
        // The same rows as in a part of one server.
        let (_, whole) = Manifest::read(&server_folder(&alone, part)).unwrap();
        assert_eq!(made.rows[part], whole.rows);
    }
    let error = open_part(&out, 6, OpenOptions::default()).err().unwrap();
    assert!(error.message.contains("no server 6"), "{error}");
    let error = open(&out, source().index.manifest()).err().unwrap();
    assert!(error.message.contains("parts of 3 servers each"), "{error}");
    for (servers, parts) in [(6, 4), (6, 0), (2, 3)] {
        let wrong = PartitionOptions { servers, ..options(2) };
        let error =
            scatter(source().dir.path(), &dir.path().join("no"), (&wrong, parts), &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::BadInput && error.message.contains("divides"), "{error}");
    }
    let many = PartitionOptions { servers: 4, replicas: 3, ..options(2) };
    let error = scatter(source().dir.path(), &dir.path().join("no"), (&many, 2), &Quiet).unwrap_err();
    assert!(error.message.contains("replicas is 3") && !dir.path().join("no").exists(), "{error}");
}
