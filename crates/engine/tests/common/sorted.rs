//! An index of the kind that only tests have: a `flat` over rows in the order of their first component.

use std::sync::Arc;

use stratann_core::kinds::{IndexView, KindView, sorted};
use stratann_engine::build::IndexKind;
use stratann_engine::{DType, Metric};

use super::{Built, Set, clustered, quick};

pub const DIM: usize = 24;
const ROWS: usize = 12_000;

pub struct Sorted {
    pub built: Built,
    pub file: Arc<Vec<u8>>,
    first: Vec<f32>,
}

/// Clustered rows whose first component tells most of a distance.
fn spread_out(rows: usize, seed: u64) -> Vec<f32> {
    let mut values = clustered(rows, DIM, 40, seed);
    values.iter_mut().step_by(DIM).for_each(|first| *first *= 12.0);
    values
}

pub fn queries(count: usize) -> Set {
    Set::new(DType::F32, DIM, &spread_out(count, 2))
}

impl Sorted {
    pub fn new(metric: Metric) -> Sorted {
        let values = spread_out(ROWS, 1);
        let mut rows: Vec<&[f32]> = values.chunks_exact(DIM).collect();
        rows.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let built = Built::new(Set::new(DType::F32, DIM, &rows.concat()), &quick(IndexKind::Flat, metric));
        let blocks = built.index.manifest().blocks.count as usize;
        let layout = built.index.view().kind.flat().unwrap().block;
        let each = layout.payload_bytes() / layout.node_bytes();
        let first: Vec<f32> = rows.iter().step_by(each).map(|row| row[0]).collect();
        assert!(first.len() == blocks && blocks >= 15, "{} of {blocks} blocks", first.len());
        let file = built.blocks();
        Sorted { built, file, first }
    }

    pub fn blocks(&self) -> u32 {
        self.first.len() as u32
    }

    pub fn view(&self) -> IndexView<'_> {
        let flat = self.built.index.view();
        let block = flat.kind.flat().unwrap().block;
        IndexView { kind: KindView::Sorted(sorted::View { block, first: &self.first }), ..flat }
    }
}
