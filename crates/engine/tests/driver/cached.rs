//! The cache changes no answer, whatever its size and the kind of the index.

use stratann_core::query::{Mode, QueryStats};
use stratann_engine::Metric;
use stratann_engine::build::IndexKind;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::options::LearnOptions;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_params::choices::Learn;
use stratann_storage::cache::ExtentCache;

use super::common::{Built, graph_set, quick};
use super::{ASKED, Ended, ask, blocks_of, drive, memory, options, params, place};

/// Counters of the requests of a query, whether a cache answered them or not.
fn asked_for(stats: &QueryStats) -> QueryStats {
    QueryStats { reads: stats.reads_asked(), cache_hits: 0, pages_read: 0, bytes_read: 0, ..*stats }
}

fn without_hits(ended: &[Ended]) -> Vec<Ended> {
    ended.iter().map(|e| Ended { stats: asked_for(&e.stats), ..e.clone() }).collect()
}

#[test]
fn a_cache_changes_nothing_but_its_hits() {
    let (count, block_bytes) = blocks_of(&place().built.index.view());
    let entry_bytes = block_bytes as u64 + 128;
    let plain = drive(memory(16, 1), None, params(Mode::Barrier), ASKED, options(8, 2)).unwrap();
    assert!(plain.iter().all(|e| e.stats.cache_hits == 0));
    let all = u64::from(count) * entry_bytes * 2;
    let of_blocks = |budget| ExtentCache::of_blocks(budget, count, block_bytes as u32);
    for budget in [5 * entry_bytes, all / 20, all] {
        let cache = of_blocks(budget).unwrap();
        let cold = drive(memory(16, 1), Some(&cache), params(Mode::Barrier), ASKED, options(8, 2)).unwrap();
        let warm = drive(memory(16, 2), Some(&cache), params(Mode::Barrier), ASKED, options(8, 2)).unwrap();
        assert_eq!(without_hits(&cold), without_hits(&plain));
        assert_eq!(without_hits(&warm), without_hits(&plain));
        assert!(cache.used_bytes() <= budget);
        let pages = (block_bytes / stratann_core::PAGE) as u64;
        assert!(warm.iter().all(|e| e.stats.pages_read == e.stats.reads * pages), "hits have no pages");
        if budget == all {
            assert!(warm.iter().all(|e| e.stats.reads == 0), "all blocks are cached");
        }
    }
    assert!(of_blocks(3 * entry_bytes).is_none());
}

#[test]
fn an_index_with_a_cache_counts_its_hits() {
    let options = OpenOptions { cache_budget: 32 << 20, ..OpenOptions::default() };
    let cached = Index::open(place().built.dir.path(), options).unwrap();
    let search = SearchOptions {
        effort: Effort::SearchList(50, Some(1.0)),
        threads: 2,
        width: Width::Fixed(1),
        ..SearchOptions::default()
    };
    let plain = ask(&place().built.index, &search);
    let cold = ask(&cached, &search);
    let warm = ask(&cached, &search);
    assert_eq!((&plain.0, &plain.1), (&cold.0, &cold.1));
    assert_eq!((&plain.0, &plain.1), (&warm.0, &warm.1));
    assert_eq!((warm.2.reads, warm.2.pages_read, warm.2.bytes_read), (0, 0, 0));
    assert_eq!(asked_for(&warm.2), asked_for(&plain.2));
}

/// Lists, adjacency lists and records of a `hybrid-ivf` are cached as well, byte by byte, in whole and in part.
#[test]
fn lists_are_cached_too() {
    let built = Built::new(graph_set(), &quick(IndexKind::HybridIvf, Metric::L2));
    let open = |cache_budget| {
        let learning = LearnOptions { learn: Learn::Off, ..LearnOptions::default() };
        let open = OpenOptions { cache_budget, head_budget: Some(0), learning, ..OpenOptions::default() };
        Index::open(built.dir.path(), open).unwrap()
    };
    let search = SearchOptions {
        effort: Effort::Nprobe(10, None, None),
        width: Width::Fixed(2),
        in_flight: Some(8),
        ..SearchOptions::default()
    };
    let plain = ask(&open(0), &search);
    assert!(plain.2.reads > 0 && plain.2.cache_hits == 0);
    for cache_budget in [64 << 10, 512 << 10, 64 << 20] {
        let index = open(cache_budget);
        for pass in 0..3 {
            let found = ask(&index, &search);
            assert_eq!((&found.0, &found.1), (&plain.0, &plain.1), "{cache_budget} bytes, pass {pass}");
            let kind_counters = QueryStats { edge_reads: 0, record_reads: 0, ..asked_for(&found.2) };
            assert_eq!(kind_counters, QueryStats { edge_reads: 0, record_reads: 0, ..asked_for(&plain.2) });
            let cached = index.account().components.iter().find(|c| c.0.contains("cache")).map_or(0, |c| c.1);
            assert!(cached <= cache_budget, "{cached} of {cache_budget}");
            if pass > 0 && cache_budget == 64 << 20 {
                assert_eq!((found.2.reads, found.2.bytes_read), (0, 0));
            }
        }
    }
}
