use stratann_kernel::{DType, Metric};

use super::*;

const SPEC: Spec = Spec { dim: 2, metric: Metric::L2, dtype: DType::U8, kind: None };

fn put(id: &ExternalId, seq: u64, vector: [u8; 2]) -> impl Fn(&Delta) {
    let id = id.clone();
    move |delta| {
        let place = Place { seq, ordinal: 0 };
        delta.apply(seq, [Change::Put { id: &id, place, vector: &vector }].into_iter());
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
        assert_eq!(state.nearest(&SPEC, &[0, 0], 1000).len(), number + 1);
    }
    assert_eq!(delta.state().points(), 160);
    assert_eq!(delta.state().nearest(&SPEC, &[0, 0], 1000).len(), 160);
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
        assert_eq!(delta.reader().place(id), Some(Place { seq, ordinal: 0 }));
        let found = delta.reader().points(&ids).0;
        assert_eq!(found.iter().flatten().count() as u64, state.points());
        assert!(found.iter().flatten().all(|point| point.vector == [point.seq as u8, 1]));
    }
    assert_eq!(delta.state().id_bytes(), 90);
    delta.apply(501, ids.iter().map(Change::Remove));
    assert_eq!((delta.state().rows(), delta.state().points(), delta.state().id_bytes()), (0, 0, 0));
}

#[test]
fn ties_are_broken_by_ids() {
    let delta = Delta::new(SPEC);
    let ids = [9, 3, 7, 1].map(ExternalId::Number);
    for (seq, id) in (1..).zip(&ids) {
        put(id, seq, [5, 5])(&delta);
    }
    let found = delta.state().nearest(&SPEC, &[5, 5], 3);
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
        delta.apply(number, [Change::Put { id: &id, place, vector: &vector }].into_iter());
    }
    let query = [f32::MAX, -f32::MAX].map(f32::to_le_bytes).concat();
    let found = delta.state().nearest(&spec, &query, 3);
    assert_eq!(found.iter().map(|hit| hit.id.clone()).collect::<Vec<_>>(), [2, 3, 1].map(ExternalId::Number));
    assert_eq!(found[2].distance, f32::INFINITY);
}
