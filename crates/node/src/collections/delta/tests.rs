use stratann_kernel::{DType, Metric};

use super::*;
use crate::collections::spec::Spec;

const SPEC: Spec = Spec { dim: 2, metric: Metric::L2, dtype: DType::U8, kind: None };

/// The nearest of all rows, which are those of the lists.
fn nearest(state: &State, spec: &Spec, query: &[u8], k: usize) -> Vec<Hit> {
    let wanted = Wanted { k, recall: 1.0, bound: f32::INFINITY, all_rows: true };
    let of = VectorsOf { name: 0, spec };
    let all = state.nearest(of, query, &wanted, &mut Searching::default());
    let by_lists = Wanted { all_rows: false, ..wanted };
    assert_eq!(state.nearest(of, query, &by_lists, &mut Searching::default()), all);
    all
}

fn put(id: &ExternalId, seq: u64, vector: [u8; 2]) -> impl Fn(&Delta) {
    let id = id.clone();
    move |delta| {
        let place = Place { seq, ordinal: 0 };
        let vectors = Cow::Borrowed(&vector[..]);
        delta.apply(seq, [Change::Put { id: &id, place, vectors, payload: None }].into_iter());
    }
}

#[test]
fn a_state_does_not_change_while_later_ones_are_made() {
    let delta = Delta::new(SPEC);
    let ids: Vec<_> = (0..300).map(ExternalId::Number).collect();
    let mut states = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        put(id, number as u64 + 1, [number as u8, 0])(&delta);
        states.push(delta.state());
    }
    delta.apply(301, ids.iter().take(140).map(Change::Remove));
    for (number, state) in states.iter().enumerate() {
        assert_eq!((state.points(), state.seq), (number as u64 + 1, number as u64 + 1));
        assert_eq!(nearest(state, &SPEC, &[0, 0], 1000).len(), number + 1);
    }
    assert_eq!(delta.state().points(), 160);
    assert_eq!(nearest(&delta.state(), &SPEC, &[0, 0], 1000).len(), 160);
}

#[test]
fn dead_rows_are_removed_once_they_are_more_than_half() {
    let delta = Delta::new(SPEC);
    let ids: Vec<_> = (0..10).map(ExternalId::Number).collect();
    for seq in 1..=500 {
        let id = &ids[seq as usize % 10];
        put(id, seq, [seq as u8, 1])(&delta);
        let state = delta.state();
        assert!(state.rows() <= 2 * state.points(), "{} rows of {} points", state.rows(), state.points());
        assert_eq!(delta.reader().place(id).map(|(place, _)| place), Some(Place { seq, ordinal: 0 }));
        let found = delta.reader().points(&ids).0;
        assert_eq!(found.iter().flatten().count() as u64, state.points());
        assert!(found.iter().flatten().all(|point| point.vector() == [point.seq as u8, 1]));
    }
    assert_eq!(delta.state().bytes().ids, 90);
    delta.apply(501, ids.iter().map(Change::Remove));
    assert_eq!((delta.state().rows(), delta.state().points(), delta.state().bytes().ids), (0, 0, 0));
}

#[test]
fn ties_are_broken_by_ids() {
    let delta = Delta::new(SPEC);
    let ids = [9, 3, 7, 1].map(ExternalId::Number);
    for (seq, id) in (1..).zip(&ids) {
        put(id, seq, [5, 5])(&delta);
    }
    let found = nearest(&delta.state(), &SPEC, &[5, 5], 3);
    assert_eq!(found.iter().map(|hit| hit.id.clone()).collect::<Vec<_>>(), [1, 3, 7].map(ExternalId::Number));
}

#[test]
fn distances_that_are_no_number_are_the_largest() {
    let spec = Spec { dim: 2, metric: Metric::Ip, dtype: DType::F32, kind: None };
    let delta = Delta::new(spec);
    let vectors = [[f32::MAX, f32::MAX], [0.0, -0.0], [0.0, 0.0]];
    for (number, vector) in (1..).zip(vectors) {
        let (id, vector) = (ExternalId::Number(number), vector.map(f32::to_le_bytes).concat());
        let place = Place { seq: number, ordinal: 0 };
        let vectors = Cow::Borrowed(&vector[..]);
        delta.apply(number, [Change::Put { id: &id, place, vectors, payload: None }].into_iter());
    }
    let query = [f32::MAX, -f32::MAX].map(f32::to_le_bytes).concat();
    let found = nearest(&delta.state(), &spec, &query, 3);
    assert_eq!(found.iter().map(|hit| hit.id.clone()).collect::<Vec<_>>(), [2, 3, 1].map(ExternalId::Number));
    assert_eq!(found[2].distance, f32::INFINITY);
}

/// Small changes of many points: writes, overwrites and deletes, by a number.
fn change(delta: &Delta, spec: &Spec, number: u64, known: u64) {
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let ids: Vec<_> = (0..200).map(|_| ExternalId::Number(next(known))).collect();
    // Half of them are in a corner, and many are equal.
    let mut component =
        || (next(9) * (1 + 3 * (number % 2))) as f32 - if spec.dtype == DType::U8 { 0.0 } else { 3.5 };
    let vectors: Vec<Vec<u8>> = ids
        .iter()
        .map(|_| components(spec.dtype, &std::array::from_fn::<_, 5, _>(|_| component())))
        .collect();
    let place = Place { seq: number, ordinal: 0 };
    let changes = ids.iter().zip(&vectors).enumerate().map(|(at, (id, vector))| match at % 5 {
        4 => Change::Remove(id),
        _ => Change::Put { id, place, vectors: Cow::Borrowed(&vector[..]), payload: None },
    });
    delta.apply(number, changes);
}

fn components(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => stratann_kernel::element::narrow_f16(values).collect(),
        DType::U8 => values.iter().map(|x| *x as u8 + 1).collect(),
        DType::I8 => values.iter().map(|x| (*x * 2.0) as i8 as u8).collect(),
    }
}

/// What searches of a state find.
fn found(state: &State, spec: &Spec) -> Vec<Vec<Hit>> {
    let queries = [[1.0, 2.0, 3.0, 0.5, 1.5], [9.0, 0.0, 9.0, 20.0, 3.0], [4.0; 5]];
    queries.iter().map(|query| nearest(state, spec, &components(spec.dtype, query), 12)).collect()
}

#[test]
fn lists_find_what_all_distances_do_while_rows_change_are_sealed_and_filed_again() {
    for (metric, dtype) in Metric::ALL.into_iter().flat_map(|metric| DType::ALL.map(|dtype| (metric, dtype)))
    {
        let spec = Spec { dim: 5, metric, dtype, kind: None };
        let delta = Delta::new(spec);
        let mut held = Vec::new();
        for number in 1..=60 {
            change(&delta, &spec, number, 4000);
            let state = delta.state();
            match number {
                20 => _ = delta.seal(),
                24 => delta.unseal(),
                30 => _ = delta.seal(),
                40 => {
                    let of_lists =
                        state.lists[0].groups.iter().filter_map(|group| group.lists.as_ref()).next_back();
                    let mut state = State::clone(&state);
                    let coarse = of_lists.unwrap().coarse().clone();
                    state.set_coarse(0, groups::CoarseOf { segment: 1, coarse });
                    delta.publish(state);
                }
                45 => delta.take_sealed_out(30, None),
                55 => delta.apply(
                    number,
                    (0..3500).map(ExternalId::Number).collect::<Vec<_>>().iter().map(Change::Remove),
                ),
                _ => {}
            }
            if number % 3 == 0 {
                let state = delta.state();
                held.push((found(&state, &spec), state));
            }
        }
        let groups = delta.state().lists[0].groups.iter().filter(|group| group.lists.is_some()).count();
        assert!(groups > 0, "{metric:?} {dtype:?}");
        held.iter().for_each(|(expected, state)| assert_eq!(found(state, &spec), *expected));
    }
}

#[test]
fn a_bound_leaves_out_what_is_beyond_it() {
    let spec = Spec { dim: 5, metric: Metric::L2, dtype: DType::F32, kind: None };
    let delta = Delta::new(spec);
    (1..=25).for_each(|number| change(&delta, &spec, number, 9000));
    let (state, query) = (delta.state(), components(DType::F32, &[4.0; 5]));
    let all = nearest(&state, &spec, &query, 40);
    let mut searching = Searching::default();
    let wanted = Wanted { k: 40, recall: 1.0, bound: all[20].distance, all_rows: false };
    let within: Vec<_> = all.into_iter().filter(|hit| hit.distance <= wanted.bound).collect();
    assert_eq!(state.nearest(VectorsOf { name: 0, spec: &spec }, &query, &wanted, &mut searching), within);
    let DeltaStats { rows, lists, codes, distances } = searching.stats;
    assert!(rows == state.rows() && lists > 0 && codes <= rows && distances < codes, "{:?}", searching.stats);
}
