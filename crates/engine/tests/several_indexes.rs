//! Several indexes open in one process: what happens to the disk of one is nothing to the others.

mod common;

use common::{Built, Set, clustered, graph_set, list_options, queries, quick};
use stratann_engine::build::IndexKind;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

fn open(built: &Built) -> Index {
    let cached = OpenOptions { cache_budget: 1 << 20, head_budget: Some(0), ..OpenOptions::default() };
    Index::open(built.dir.path(), cached).unwrap()
}

fn search(index: &Index, asked: &Set, effort: Effort) -> Answers {
    let options = SearchOptions { k: 10, effort, threads: 2, ..SearchOptions::default() };
    index.search(&asked.bytes, &options, &Quiet).unwrap()
}

#[test]
fn an_index_whose_disk_fails_does_not_touch_the_others() {
    let asked = queries(60, 24);
    let lists = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| own.clusters = Some(20));
    let flat = Set::new(DType::F32, 24, &clustered(2000, 24, 12, 3));
    let built = [
        (Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2)), Effort::SearchList(40, None)),
        (Built::new(graph_set(), &lists), Effort::Nprobe(8, None, None)),
        (Built::new(flat, &quick(IndexKind::Flat, Metric::L2)), Effort::SearchList(10, None)),
    ];
    let sound: Vec<Answers> =
        built.iter().map(|(built, effort)| search(&open(built), &asked, *effort)).collect();
    let path =
        |at: usize| built[at].0.dir.path().join(["v1-blocks.bin", "v1-lists.bin", "v1-blocks.bin"][at]);
    for failing in 0..built.len() {
        let indexes: Vec<Index> = built.iter().map(|(built, _)| open(built)).collect();
        let whole = std::fs::read(path(failing)).unwrap();
        // Reads beyond the new end come back empty.
        let file = std::fs::File::options().write(true).open(path(failing)).unwrap();
        file.set_len(4096).unwrap();
        std::thread::scope(|scope| {
            for (at, index) in indexes.iter().enumerate() {
                let (asked, sound, effort) = (&asked, &sound[at], built[at].1);
                scope.spawn(move || {
                    for _ in 0..3 {
                        let found = search(index, asked, effort);
                        if at == failing {
                            assert!(found.failed.len() > 30, "only {} queries failed", found.failed.len());
                        } else {
                            assert!(found.failed.is_empty(), "index {at}: {:?}", found.failed);
                            assert_eq!((&found.ids, &found.distances), (&sound.ids, &sound.distances));
                        }
                    }
                });
            }
        });
        std::fs::write(path(failing), whole).unwrap();
    }
}
