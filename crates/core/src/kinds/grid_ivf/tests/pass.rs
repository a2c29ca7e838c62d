//! Passes for many queries against searches of one.

use stratann_kernel::topk::TopK;

use super::*;
use crate::kinds::grid_ivf::Scratch as OwnScratch;
use crate::kinds::grid_ivf::pass::{PANEL, Panel, PassQueries};

/// The results of each query, of passes over so many vectors at a time.
fn passed(
    grid: &Grid,
    (queries, exclude): (&[Vec<u8>], &[u32]),
    k: usize,
    step: usize,
) -> Vec<Vec<(u32, u64)>> {
    let IndexView { base, kind: KindView::GridIvf(view) } = grid.view() else { unreachable!() };
    let (mut turned, mut scratch) = (PassQueries::default(), OwnScratch::default());
    queries.iter().for_each(|query| turned.push(&base, &view, query, &mut scratch));
    let mut tops: Vec<TopK> = queries.iter().map(|_| TopK::new(k)).collect();
    let mut panel = Panel::default();
    for first in (0..base.nodes).step_by(step) {
        panel.fill(&view, first..base.nodes.min(first + step as u32)).unwrap();
        // In two tiles.
        let (a, b) = tops.split_at_mut(queries.len() / 2);
        panel.score(&view, (&turned, 0), &exclude[..a.len()], a);
        panel.score(&view, (&turned, a.len()), &exclude[a.len()..], b);
    }
    let bits = |top: TopK| top.into_sorted().iter().map(|hit| (hit.distance.to_bits(), hit.id)).collect();
    tops.into_iter().map(bits).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_pass_has_the_results_of_searches(
        metric in prop::sample::select(Metric::ALL.to_vec()),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        columns in 0..4usize,
        k in prop::sample::select(vec![1u32, 10, 300]),
        (bits, length) in units_and_lengths(),
        step in prop::sample::select(vec![PANEL, 50, 7]),
        count in 1..8usize,
        seed in 0..1000u64,
    ) {
        let grid = Grid::new(metric, dtype, columns, seed).in_units(bits);
        let queries: Vec<Vec<u8>> = (0..count)
            .map(|i| {
                if i % 3 == 1 { grid.vectors[100 * i].clone() } else { grid.query(seed + i as u64, length) }
            })
            .collect();
        let exclude: Vec<u32> = (0..count).map(|i| if i % 2 == 1 { 100 * i as u32 } else { u32::MAX }).collect();
        let found = passed(&grid, (&queries, &exclude), k as usize, step);
        for ((query, &exclude), found) in queries.iter().zip(&exclude).zip(found) {
            let own = Own { exact: true, ..Own::new(1) };
            let params = Params { kind: KindParams::GridIvf(own), exclude, ..Params::grid_ivf(k, 1) };
            let alone = grid.search(query, params);
            let alone: Vec<(u32, u64)> =
                alone.results().iter().map(|hit| (hit.distance.to_bits(), hit.external_id)).collect();
            prop_assert_eq!(found, alone);
        }
    }
}

#[test]
fn a_list_that_is_not_in_memory_is_no_panel() {
    let mut grid = Grid::new(Metric::L2, DType::F32, 1, 5);
    grid.starts[5] = u64::MAX;
    let IndexView { kind: KindView::GridIvf(view), .. } = grid.view() else { unreachable!() };
    let mut panel = Panel::default();
    assert!(panel.fill(&view, 0..3).is_some());
    assert!(panel.fill(&view, 50..80).is_none());
}
