//! Times of the delta alone with vectors of a file.
//!
//! `DELTA_DATA=base.u8bin DELTA_QUERIES=query.u8bin cargo test --release -p stratann-node -- --ignored --nocapture
//! times_of_the_delta`. The first rows of the file are in memory, and the centroids are of the others.
#![allow(clippy::print_stdout, reason = "it reports times")]

use std::time::{Duration, Instant};

use stratann_core::delta::{Coarse, LISTS_MAX, SAMPLE_OF_LIST};
use stratann_kernel::{DType, Metric};

use super::groups::CoarseOf;
use super::*;
use crate::collections::spec::Spec;

fn setting(name: &str, usual: &str) -> String {
    std::env::var(name).unwrap_or(usual.to_string())
}

/// Dimensions and vectors of a file of bytes, f16 or f32.
fn read(path: &str) -> (usize, Vec<u8>) {
    let bytes = stratann_storage::input::read(path.as_ref()).unwrap();
    (u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize, bytes[8..].to_vec())
}

/// The mean over all queries of the shortest of some times.
fn time(queries: &[&[u8]], mut search: impl FnMut(&[u8])) -> Duration {
    let shortest = |query: &&[u8], search: &mut dyn FnMut(&[u8])| {
        let times = (0..5).map(|_| {
            let begin = Instant::now();
            search(query);
            begin.elapsed()
        });
        times.min().unwrap()
    };
    queries.iter().map(|query| shortest(query, &mut search)).sum::<Duration>() / queries.len() as u32
}

/// Applies rows in batches of 100. Returns how many a second, by the median batch.
fn apply(delta: &Delta, rows: &[&[u8]]) -> f64 {
    let ids: Vec<_> = (0..rows.len() as u64).map(ExternalId::Number).collect();
    let mut times = Vec::new();
    for (seq, (ids, rows)) in (1..).zip(ids.chunks(100).zip(rows.chunks(100))) {
        let begin = Instant::now();
        let place = Place { seq, ordinal: 0 };
        delta.apply(
            seq,
            ids.iter().zip(rows).map(|(id, vector)| Change::Put {
                id,
                place,
                vectors: Cow::Borrowed(*vector),
                payload: None,
            }),
        );
        times.push(begin.elapsed());
    }
    let all: Duration = times.iter().sum();
    times.sort();
    println!("a batch of 100: median {:?}, longest {:?}", times[times.len() / 2], times[times.len() - 1]);
    rows.len() as f64 / all.as_secs_f64()
}

#[test]
#[ignore = "measures times, of a file that is given"]
fn times_of_the_delta() {
    let Ok(data) = std::env::var("DELTA_DATA") else { return };
    let (dim, mut base) = read(&data);
    let (_, mut queries) = read(&std::env::var("DELTA_QUERIES").unwrap());
    let metric = Metric::from_name(&setting("DELTA_METRIC", "l2")).unwrap();
    let ends = [("f16bin", DType::F16), ("fbin", DType::F32), ("u8bin", DType::U8), ("i8bin", DType::I8)];
    let mut dtype = ends.into_iter().find(|(end, _)| data.ends_with(end)).unwrap().1;
    if setting("DELTA_F32", "") == "1" && dtype == DType::U8 {
        let wide = |bytes: &[u8]| bytes.iter().flat_map(|x| f32::from(*x).to_le_bytes()).collect();
        (base, queries, dtype) = (wide(&base), wide(&queries), DType::F32);
    }
    let spec = Spec { dim, metric, dtype, kind: None };
    let count: usize = setting("DELTA_ROWS", "32000").parse().unwrap();
    let all: Vec<&[u8]> = base.chunks_exact(spec.row_bytes()).collect();
    let queries: Vec<&[u8]> = queries.chunks_exact(spec.row_bytes()).take(300).collect();
    let (rows, others) = all.split_at(count);
    let step = (others.len() / (LISTS_MAX * SAMPLE_OF_LIST)).max(1);
    let sample = others.iter().step_by(step).copied().flatten().copied().collect::<Vec<u8>>();
    let coarse = Coarse::of_sample(spec.shape(), &sample, LISTS_MAX).unwrap();
    let of = VectorsOf { name: 0, spec: &spec };
    println!("{count} rows of {dim} {}, {}", dtype.name(), metric.name());
    let plain = Delta::new(spec);
    {
        // Rows stay without lists.
        let mut state = State::clone(&plain.state());
        state.lists[0].groups.push(groups::Group::without_lists());
        plain.publish(state);
    }
    println!("without codes {:.0} rows a second", apply(&plain, rows));
    let delta = Delta::new(spec);
    let mut state = State::clone(&delta.state());
    state.set_coarse(0, CoarseOf { segment: 1, coarse: Arc::new(coarse) });
    delta.publish(state);
    println!("with codes {:.0} rows a second", apply(&delta, rows));
    let state = delta.state();
    for (k, recall) in
        [(10, 2.0), (10, 0.9), (10, 0.95), (10, 0.99), (10, 1.0), (1, 0.95), (100, 0.95), (100, 2.0)]
    {
        let wanted = Wanted { k, recall, bound: f32::INFINITY, all_rows: recall > 1.0 };
        let mut searching = Searching::default();
        let mut hits = 0;
        for query in &queries {
            let truth =
                state.nearest(of, query, &Wanted { all_rows: true, ..wanted }, &mut Searching::default());
            let found = state.nearest(of, query, &wanted, &mut searching);
            hits += found.iter().filter(|hit| hit.distance <= truth[k - 1].distance).count();
        }
        let stats = searching.stats;
        let time = time(&queries, |query| _ = state.nearest(of, query, &wanted, &mut searching));
        let each = |sum: u64| sum as f64 / queries.len() as f64;
        println!(
            "k {k} recall {recall}: {:.4} in {time:?}; lists {:.1}, codes {:.0}, distances {:.0}",
            hits as f64 / (queries.len() * k) as f64,
            each(stats.lists),
            each(stats.codes),
            each(stats.distances)
        );
    }
}
