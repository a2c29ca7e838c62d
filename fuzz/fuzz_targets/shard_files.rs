//! The files of an index that is spread over servers: the placement, and the blocks of each server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::query::{Budget, Extent, QueryState, Scratch, StoreId};
use stratann_engine::index::OpenOptions;
use stratann_engine::spread::{Shard, scatter};
use stratann_engine::verify::verify;
use stratann_fuzz::place::{SERVERS, Which, place};
use stratann_fuzz::{edits, run, seal};
use stratann_storage::Quiet;

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let place = place(Which::Spread);
    if choice == u8::MAX {
        // The description of a folder of separate indexes.
        std::fs::write(place.path().join(scatter::DESCRIPTION), data).expect("a file in the scratch folder");
        if let Ok(description) = scatter::describe(place.path()) {
            assert!(description.count() == description.rows.len());
            let again = description.to_text().expect("a description that was read");
            let origin = std::path::Path::new("description");
            assert_eq!(scatter::Description::from_text(&again, origin).ok(), Some(description));
            let _ = scatter::open_part(place.path(), 0, OpenOptions::default());
        }
        return;
    }
    let at = usize::from(choice) % place.files.len();
    let (name, valid) = place.files.iter().nth(at).expect("a data file");
    let mut content = edits::bytes(valid, data);
    if name.contains("-blocks-") {
        seal::blocks(&place.manifest.blocks, &mut content);
    }
    let _lock = place.replace(name, &content);
    // Not every time, because it takes as long as everything else.
    if choice % 4 == 0 {
        verify(place.path(), &Quiet).expect("a report");
    }
    for server in 0..SERVERS {
        let Ok(shard) = Shard::open(place.path(), server, OpenOptions::default()) else { continue };
        let path = place.path().join(format!("v1-blocks-{server:02}.bin"));
        let own = std::fs::read(path).expect("a data file");
        assert_eq!(own.len(), shard.held() as usize * place.manifest.blocks.bytes);
        let view = shard.view(u64::MAX);
        // The file of all blocks as this server sees it; those of others are missing.
        let mut file = vec![0; place.manifest.blocks.count as usize * place.manifest.blocks.bytes];
        let size = place.manifest.blocks.bytes;
        for (block, bytes) in (0u64..).zip(file.chunks_exact_mut(size)) {
            let whole = Extent { store: StoreId(0), offset: block * size as u64, bytes: size as u32 };
            if let Some(at) = shard.locate(whole) {
                bytes.copy_from_slice(&own[at.offset as usize..at.end() as usize]);
            }
        }
        let (query, mut scratch) = (run::query(), Scratch::default());
        let mut state = QueryState::new(run::params(&view), Budget::default());
        scratch.prepare(&view, &query);
        run::step(&mut state, &view, &mut scratch, &file);
        let _ = shard.account();
    }
});
