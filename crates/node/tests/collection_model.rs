//! Collections compared with a naive model, change by change.

mod common;

use proptest::prelude::*;

use common::points::{Model, components, open};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Chosen, Collection, Spec, Upserted};
use stratann_node::rows::ExternalId;
use stratann_payload::value::Update;
use stratann_payload::{Path, Payload};
use stratann_storage::Quiet;

#[derive(Clone, Debug)]
enum Step {
    Upsert(Vec<(u8, [u8; 3], Option<u8>)>),
    Delete(Vec<u8>),
    /// Sets a number, or removes it.
    Payload(Vec<u8>, Option<u8>),
    Search(Vec<[u8; 3]>, usize),
    Scroll(u8, usize),
    CloseIdle,
    Checkpoint,
    Compact,
    Reopen,
}

/// Ids of all three forms.
fn id(number: u8) -> ExternalId {
    match number % 3 {
        0 => ExternalId::Number(u64::from(number)),
        1 => ExternalId::Uuid([number; 16]),
        _ => ExternalId::text(&format!("{number}é")).unwrap(),
    }
}

fn step() -> impl Strategy<Value = Step> {
    let ids = 0_u8..30;
    let vector = prop::array::uniform3(0_u8..6);
    let points = prop::collection::vec((ids.clone(), vector.clone(), prop::option::of(0_u8..20)), 1..12);
    prop_oneof![
        6 => points.prop_map(Step::Upsert),
        3 => prop::collection::vec(ids.clone(), 1..12).prop_map(Step::Delete),
        3 => (prop::collection::vec(ids.clone(), 1..12), prop::option::of(0_u8..20))
            .prop_map(|(ids, number)| Step::Payload(ids, number)),
        4 => (prop::collection::vec(vector, 1..4), 1_usize..40).prop_map(|(queries, k)| Step::Search(queries, k)),
        1 => (ids, 1_usize..9).prop_map(|(after, limit)| Step::Scroll(after, limit)),
        1 => Just(Step::CloseIdle),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

/// A payload as compact JSON; some are long.
fn payload(number: u8) -> Vec<u8> {
    let text = "é".repeat(if number.is_multiple_of(5) { 3000 } else { number.into() });
    let (parity, fifth) = (["even", "odd"][usize::from(number % 2)], number / 5);
    format!(r#"{{"list":[{fifth},"{parity}"],"n":{number},"text":"{text}"}}"#).into_bytes()
}

fn vector(spec: &Spec, values: [u8; 3]) -> Vec<u8> {
    // Integers, so that ties are frequent; cosine has none for zero.
    let shift = match (spec.metric, spec.dtype) {
        (Metric::Cosine, _) => -1.0,
        (_, DType::U8) => 0.0,
        _ => 2.0,
    };
    components(spec.dtype, &values.map(|x| f32::from(x) - shift))
}

fn upsert(collection: &Collection, model: &mut Model, points: &[(u8, [u8; 3], Option<u8>)]) {
    let spec = collection.spec().unwrap();
    let ids: Vec<_> = points.iter().map(|(of, ..)| id(*of)).collect();
    let vectors: Vec<u8> = points.iter().flat_map(|(_, values, _)| vector(&spec, *values)).collect();
    let payloads: Vec<_> = points.iter().map(|(_, _, number)| number.map(payload)).collect();
    let seq = model.seq + 1;
    let (new, replaced) = model.upsert_points(seq, &ids, &vectors, &payloads);
    let repeated = ids.len() as u64 - new - replaced;
    let payloads: Vec<_> = payloads.iter().map(Option::as_deref).collect();
    let done = collection.upsert_points(&ids, &vectors, &payloads);
    assert_eq!(done, Ok(Upserted { seq, new, replaced, repeated, skipped: Vec::new() }));
}

fn change_payload(collection: &Collection, model: &mut Model, (numbers, number): (Vec<u8>, Option<u8>)) {
    let ids: Vec<_> = numbers.into_iter().map(id).collect();
    let update = match number {
        Some(number) => Update::Set {
            payload: Payload::parse(format!(r#"{{"n":{number}}}"#).as_bytes()).unwrap(),
            key: None,
        },
        None => Update::DeleteKeys(vec![Path::parse("n").unwrap()]),
    };
    let changed = model.change_payload(model.seq + 1, &ids, &update);
    let done = collection.change_payload(Chosen::Ids(&ids), update).unwrap();
    assert_eq!((done.seq, done.changed), (model.seq, changed));
}

fn check(spec: Spec, steps: Vec<Step>) {
    let place = tempfile::tempdir().unwrap();
    let mut node = open(place.path()).unwrap();
    let mut collection = node.create_collection("points", spec).unwrap();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Upsert(points) => {
                upsert(&collection, &mut model, &points);
            }
            Step::Delete(numbers) => {
                let mut ids: Vec<_> = numbers.into_iter().map(id).collect();
                let deleted = model.delete(model.seq + 1, &ids);
                let done = collection.delete(&ids).unwrap();
                ids.sort();
                ids.dedup();
                assert_eq!((done.seq, done.deleted), (model.seq, deleted));
                assert_eq!(done.unknown, ids.len() as u64 - deleted);
            }
            Step::Payload(numbers, number) => {
                change_payload(&collection, &mut model, (numbers, number));
            }
            Step::Search(queries, k) => {
                let queries: Vec<u8> = queries.into_iter().flat_map(|values| vector(&spec, values)).collect();
                let found = collection.search(&queries, k).unwrap();
                assert_eq!(found.seq, model.seq);
                for (query, hits) in queries.chunks(spec.row_bytes()).zip(&found.hits) {
                    let hits: Vec<_> = hits.iter().map(|hit| (hit.id.clone(), hit.distance)).collect();
                    assert_eq!(hits, model.nearest(&spec, query, k));
                }
                assert_eq!(found.hits.len(), queries.len() / spec.row_bytes());
            }
            Step::Scroll(after, limit) => {
                let page = collection.scroll(Some(&id(after)), limit).unwrap();
                let expected = model.points.keys().filter(|found| **found > id(after)).take(limit);
                assert!(page.points.iter().map(|point| &point.id).eq(expected));
            }
            Step::CloseIdle => _ = node.close_idle(),
            Step::Checkpoint => collection.checkpoint(&Quiet).unwrap(),
            Step::Compact => {
                collection.compact(&Quiet).unwrap();
                let facts = collection.facts().unwrap();
                assert!(facts.segments.len() < 2 && facts.delta_points == 0, "{facts:?}");
                assert!(facts.segments.iter().all(|own| own.dead == 0), "{facts:?}");
            }
            Step::Reopen => {
                drop((collection, node));
                node = open(place.path()).unwrap();
                collection = node.collection("points").unwrap();
            }
        }
        assert_eq!(collection.count().unwrap(), model.points.len() as u64);
    }
    let ids: Vec<_> = (0..40).map(id).collect();
    for (id, found) in ids.iter().zip(collection.get(&ids).unwrap()) {
        let payload = found.as_ref().and_then(|point| point.payload.as_ref());
        assert_eq!(payload, model.payloads.get(id));
        assert_eq!(found.map(|point| (point.seq, point.vector().to_vec())), model.points.get(id).cloned());
    }
    assert_eq!(model.difference(&collection), None);
    let verified = node.verify("points").unwrap();
    assert_eq!((verified.seq, verified.points), (model.seq, model.points.len() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn a_collection_is_its_model(
        metric in prop::sample::select(&Metric::ALL[..]),
        dtype in prop::sample::select(&DType::ALL[..]),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        check(Spec { dim: 3, metric, dtype, kind: None }, steps);
    }
}
