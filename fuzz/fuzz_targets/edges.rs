//! Edges of a member in its local graph.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::edges::{Edges, edge_bytes, write_edges};
use stratann_fuzz::{edits, seal};

fuzz_target!(|data: &[u8]| {
    let (choice, content) = edits::first(data);
    let degree = usize::from(choice % 32);
    let mut bytes = [&[0; 4], content].concat();
    bytes.resize(edge_bytes(degree), choice);
    seal::edges(0, 9, &mut bytes);
    let Some(edges) = Edges::verify(degree, 0, 9, &bytes) else { return };
    assert!(edges.count() <= degree);
    let neighbours: Vec<(u32, f32)> =
        edges.neighbours().map(|(number, (least, _))| (number, least.max(0.0))).collect();
    assert_eq!(neighbours.len(), edges.count());
    let mut again = Vec::new();
    write_edges(degree, 0, 9, &neighbours, &mut again);
    let read = Edges::verify(degree, 0, 9, &again).expect("written edges");
    assert!(read.neighbours().map(|n| n.0).eq(neighbours.iter().map(|n| n.0)));
});
