//! The files of a `gpu-ivf`: blocks, codes, ids of lists, centroids, and what baselines read. One is changed, the index
//! is opened, searched in every way and checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::kinds::KindParams;
use stratann_core::kinds::gpu_ivf::baseline::{CODE_LISTS, LISTS, ROWS, Source};
use stratann_core::query::{Budget, Extent, Loss, Outcome, Params, QueryState, Scratch, run as run_query};
use stratann_engine::index::{Index, OpenBaselines, OpenOptions};
use stratann_engine::verify::verify;
use stratann_fuzz::place::{Place, Which, place};
use stratann_fuzz::{edits, run, seal};
use stratann_storage::Quiet;

/// Files that queries read, each with its store.
const STORES: [&str; 4] = ["v1-blocks.bin", "v1-list-vectors.bin", "v1-list-codes.bin", "v1-row-blocks.bin"];

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let place = place(Which::Gpu);
    let at = usize::from(choice) % place.files.len();
    let (name, valid) = place.files.iter().nth(at).expect("a data file");
    let mut content = edits::bytes(valid, data);
    reseal(place, name, &mut content);
    let _lock = place.replace(name, &content);
    // Not every time, because it takes as long as everything else.
    if choice % 4 == 0 {
        verify(place.path(), &Quiet).expect("a report");
    }
    let baselines = [OpenBaselines::No, OpenBaselines::OnDisk, OpenBaselines::Resident][at % 3];
    let options = OpenOptions { baselines, ..OpenOptions::default() };
    let Ok(index) = Index::open(place.path(), options) else { return };
    let _ = index.account();
    let sources = [Source::Codes, Source::Lists, Source::CodeLists, Source::ResidentLists];
    for (source, by_rows) in sources.into_iter().flat_map(|source| [(source, false), (source, true)]) {
        search(place, &index, (name, &content), source, by_rows);
    }
});

/// Recomputes the checksums of a file that queries read.
fn reseal(place: &Place, name: &str, content: &mut [u8]) {
    let view = place.index().view();
    let own = view.kind.gpu_ivf().and_then(|own| own.baselines).expect("files of baselines");
    let seed = own.list.checksum_seed;
    match STORES.iter().position(|store| *store == name) {
        Some(0 | 3) => seal::blocks(&place.manifest.blocks, content),
        Some(1) => seal::posting_lists(seed, own.list_pages, content),
        Some(2) => seal::posting_lists(seed, own.code_list_pages, content),
        _ => {}
    }
}

/// Searches once; files that are not open are missing.
fn search(place: &Place, index: &Index, changed: (&str, &[u8]), source: Source, by_rows: bool) {
    let view = index.view();
    let mut params: Params = run::params(&view);
    if let KindParams::GpuIvf(own) = &mut params.kind {
        (own.compared.source, own.compared.by_rows, own.whole_blocks) = (source, by_rows, !by_rows);
    }
    let (query, mut scratch) = (run::query(), Scratch::default());
    let mut state = QueryState::new(params, Budget::default());
    scratch.prepare(&view, &query);
    run_query(&mut state, &view, &mut scratch, |at: Extent| {
        let store =
            [LISTS, CODE_LISTS, ROWS].iter().position(|&store| store == at.store).map_or(0, |s| s + 1);
        let file: &[u8] = if changed.0 == STORES[store] { changed.1 } else { &place.files[STORES[store]] };
        let start = usize::try_from(at.offset).unwrap_or(usize::MAX);
        file.get(start..start.saturating_add(at.bytes as usize)).ok_or(Loss::Short)
    });
    assert!(state.outcome() != Outcome::Running);
}
