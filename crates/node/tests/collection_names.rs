//! Collections whose vectors have names, compared with a naive model.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use common::points::{components, number, open};
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{
    Chosen, Collection, Condition, GivenVectors, Kind, Node, Point, SearchOptions, Spec, Specs,
};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_payload::Filter;
use stratann_storage::{ErrorKind, Progress, Quiet};

/// The vector of each name, or none.
type Vectors = [Option<Vec<u8>>; 3];

/// Names in their order, and what their vectors are.
fn specs() -> Specs {
    let spec = |dim, metric, dtype| Spec { dim, metric, dtype, kind: None };
    let all = [
        ("title", spec(3, Metric::L2, DType::F32)),
        ("image é", spec(2, Metric::Ip, DType::U8)),
        ("colour", spec(4, Metric::Cosine, DType::F16)),
    ];
    Specs::named(all.map(|(name, spec)| (name.to_string(), spec))).unwrap()
}

/// What a collection must hold.
#[derive(Clone, Debug, Default)]
struct Model {
    points: BTreeMap<ExternalId, (u64, Vectors, Option<Vec<u8>>)>,
    seq: u64,
}

impl Model {
    fn nearest(&self, specs: &Specs, name: usize, query: &[u8], k: usize) -> Vec<(ExternalId, f32)> {
        let spec = specs.iter().nth(name).unwrap().spec;
        let mut exact = Exact::default();
        exact.set(spec.metric, spec.dtype, spec.dim, query);
        let distance = |vector: &[u8]| exact.distance(vector, inverse_norm(spec.dtype, vector)) + 0.0;
        let with_it = self.points.iter().filter_map(|(id, own)| Some((id, own.1[name].as_ref()?)));
        let mut all: Vec<_> = with_it.map(|(id, vector)| (id.clone(), distance(vector))).collect();
        all.sort_by(|one, two| one.1.partial_cmp(&two.1).unwrap());
        all.truncate(k);
        all
    }

    fn difference(&self, collection: &Collection) -> Option<String> {
        let (mut after, mut expected) = (None, self.points.iter());
        loop {
            let page = collection.scroll(after.as_ref(), 7).unwrap();
            for Point { id, seq, vectors, payload } in page.points {
                let next = expected.next();
                let is_same = |(known, own): (&ExternalId, &(u64, Vectors, Option<Vec<u8>>))| {
                    *known == id && own.0 == seq && own.1[..] == vectors[..] && own.2 == payload
                };
                if !next.is_some_and(is_same) {
                    return Some(format!("{id:?} {seq} {vectors:?} instead of {next:?}"));
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return expected.next().map(|missing| format!("{missing:?} is missing")),
            }
        }
    }
}

fn vector(specs: &Specs, name: usize, value: u8) -> Vec<u8> {
    let spec = specs.iter().nth(name).unwrap().spec;
    // Few different ones, so that ties are frequent.
    let values: Vec<f32> =
        (0..spec.dim).map(|at| 1.0 + f32::from(value.wrapping_mul(at as u8 + 3) % 5)).collect();
    components(spec.dtype, &values)
}

/// Components of those that are there, and which ones are.
fn column(specs: &Specs, name: usize, values: &[Option<u8>]) -> (Vec<u8>, Vec<bool>) {
    let there = values.iter().flatten().flat_map(|value| vector(specs, name, *value));
    (there.collect(), values.iter().map(Option::is_some).collect())
}

/// Values of each name for some points, as they are given; a name may be missing.
type Values = [Option<Vec<Option<u8>>>; 3];

fn with_given<T>(specs: &Specs, values: &Values, call: impl FnOnce(&[GivenVectors<'_>]) -> T) -> T {
    let columns: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(name, own)| own.as_ref().map(|own| column(specs, name, own)))
        .collect();
    let given = specs.iter().zip(&columns).filter_map(|(own, column)| {
        let (vectors, has) = column.as_ref()?;
        Some(GivenVectors { name: &own.name, vectors, has: Some(has) })
    });
    call(&given.collect::<Vec<_>>())
}

fn vectors_at(specs: &Specs, values: &Values, at: usize) -> Vectors {
    std::array::from_fn(|name| {
        let value = values[name].as_ref().and_then(|own| own[at]);
        value.map(|value| vector(specs, name, value))
    })
}

fn upsert(points: &Collection, model: &mut Model, ids: &[ExternalId], values: &Values, payload: Option<u8>) {
    let (specs, seq) = (points.specs().clone(), model.seq + 1);
    let json = payload.map(|number| format!(r#"{{"n":{number}}}"#).into_bytes());
    let payloads = vec![json.as_deref(); ids.len()];
    let done =
        with_given(&specs, values, |given| points.upsert_named(ids, given, &payloads, Condition::Always));
    assert_eq!(done.unwrap().seq, seq);
    for (at, id) in ids.iter().enumerate() {
        model.points.insert(id.clone(), (seq, vectors_at(&specs, values, at), json.clone()));
    }
    model.seq = seq;
}

/// Changes vectors; refused where an id has no point.
fn update(points: &Collection, model: &mut Model, ids: &[ExternalId], values: &Values) {
    let specs = points.specs().clone();
    let done = with_given(&specs, values, |given| points.update_vectors(ids, given));
    let is_known = ids.iter().all(|id| model.points.contains_key(id));
    if !is_known || values.iter().all(Option::is_none) {
        assert_eq!(done.unwrap_err().kind, Kind::Other(ErrorKind::BadInput));
        return;
    }
    model.seq += 1;
    let mut different: Vec<_> = ids.iter().collect();
    different.sort();
    different.dedup();
    let done = done.unwrap();
    assert_eq!((done.seq, done.changed), (model.seq, different.len() as u64));
    // Of several of an id the last one counts, as a whole.
    let last: BTreeMap<&ExternalId, usize> = ids.iter().zip(0..).collect();
    for (id, at) in last {
        let own = model.points.get_mut(id).unwrap();
        own.0 = model.seq;
        for (name, changed) in values.iter().enumerate() {
            if let Some(changed) = changed {
                own.1[name] = changed[at].map(|value| vector(&specs, name, value));
            }
        }
    }
}

fn filter_of(text: &str) -> Arc<stratann_payload::Predicate> {
    Arc::new(Filter::from_json(text.as_bytes()).unwrap().compile())
}

fn search(points: &Collection, model: &Model, (name, value, k): (usize, u8, usize)) {
    let specs = points.specs();
    let of = specs.iter().nth(name).unwrap().name.clone();
    let query = vector(specs, name, value);
    let vector_name = Some(of.clone());
    let options =
        SearchOptions { k, recall: 1.0, vector_name, with_vectors: true, ..SearchOptions::default() };
    let found = points.search_with(&query, &options).unwrap();
    assert_eq!(found.seq, model.seq);
    let hits = |found: &stratann_node::collections::Found| -> Vec<(ExternalId, f32)> {
        found.hits[0].iter().map(|hit| (hit.id.clone(), hit.distance)).collect()
    };
    assert_eq!(hits(&found), model.nearest(specs, name, &query, k), "{of}");
    for hit in &found.hits[0] {
        assert_eq!(hit.vector, model.points[&hit.id].1[name]);
    }
    // With a filter for another name: only points that have both.
    let other = (name + 1) % 3;
    let text = format!(r#"{{"must": [{{"has_vector": "{}"}}]}}"#, specs.iter().nth(other).unwrap().name);
    let filter = filter_of(&text);
    let with_both = Model {
        points: model.points.clone().into_iter().filter(|(_, own)| own.1[other].is_some()).collect(),
        ..model.clone()
    };
    let counted = points.count_matching(&filter).unwrap();
    assert_eq!(counted.points, with_both.points.len() as u64, "{text}");
    let options = SearchOptions { filter: Some(filter), ..options };
    let found = points.search_with(&query, &options).unwrap();
    assert_eq!(hits(&found), with_both.nearest(specs, name, &query, k), "{of}, {text}");
}

#[derive(Clone, Debug)]
enum Step {
    Upsert(Vec<u8>, Values, Option<u8>),
    Update(Vec<u8>, Values),
    Delete(Vec<u8>),
    Payload(Vec<u8>, u8),
    Search(usize, u8, usize),
    CloseIdle,
    Checkpoint,
    Compact,
    Reopen,
}

fn some_ids() -> impl Strategy<Value = (Vec<u8>, Values)> {
    let value = prop::option::weighted(0.7, 0_u8..40);
    (1_usize..10).prop_flat_map(move |count| {
        let column = prop::option::weighted(0.8, prop::collection::vec(value.clone(), count));
        let ids = prop::collection::hash_set(0_u8..30, count).prop_map(|ids| ids.into_iter().collect());
        (ids, prop::array::uniform3(column))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let ids = || prop::collection::vec(0_u8..30, 1..12);
    prop_oneof![
        6 => (some_ids(), prop::option::of(0_u8..4)).prop_map(|((ids, values), n)| Step::Upsert(ids, values, n)),
        4 => some_ids().prop_map(|(ids, values)| Step::Update(ids, values)),
        2 => ids().prop_map(Step::Delete),
        2 => (ids(), 0_u8..4).prop_map(|(ids, number)| Step::Payload(ids, number)),
        5 => (0_usize..3, 0_u8..40, 1_usize..40).prop_map(|(name, value, k)| Step::Search(name, value, k)),
        1 => Just(Step::CloseIdle),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

fn numbers(ids: &[u8]) -> Vec<ExternalId> {
    ids.iter().map(|id| number(u64::from(*id))).collect()
}

fn check(steps: Vec<Step>) {
    let place = tempfile::tempdir().unwrap();
    let mut node = open(place.path()).unwrap();
    let mut points = node.create_collection("points", specs()).unwrap();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Upsert(ids, values, payload) => {
                upsert(&points, &mut model, &numbers(&ids), &values, payload);
            }
            Step::Update(ids, values) => update(&points, &mut model, &numbers(&ids), &values),
            Step::Delete(ids) => {
                let ids = numbers(&ids);
                let gone = ids.iter().filter(|id| model.points.remove(id).is_some()).count();
                model.seq += u64::from(gone > 0);
                assert_eq!(points.delete(&ids).unwrap().deleted, gone as u64);
            }
            Step::Payload(ids, number) => {
                let (ids, json) = (numbers(&ids), format!(r#"{{"n":{number}}}"#).into_bytes());
                let done = points.overwrite_payload(Chosen::Ids(&ids), &json).unwrap();
                model.seq = done.seq;
                // A point of a segment counts as changed whatever it has.
                for (at, found) in points.get(&ids).unwrap().into_iter().enumerate() {
                    let Some(own) = model.points.get_mut(&ids[at]) else { continue };
                    (own.0, own.2) = (found.unwrap().seq, Some(json.clone()));
                }
            }
            Step::Search(name, value, k) => search(&points, &model, (name, value, k)),
            Step::CloseIdle => _ = node.close_idle(),
            Step::Checkpoint => points.checkpoint(&Quiet).unwrap(),
            Step::Compact => points.compact(&Quiet).unwrap(),
            Step::Reopen => {
                drop((points, node));
                node = open(place.path()).unwrap();
                points = node.collection("points").unwrap();
                assert_eq!(*points.specs(), specs());
            }
        }
        assert_eq!(points.count().unwrap(), model.points.len() as u64);
    }
    assert_eq!(model.difference(&points), None);
    let verified = node.verify("points").unwrap();
    assert_eq!((verified.seq, verified.points), (model.seq, model.points.len() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_collection_of_names_is_its_model(steps in prop::collection::vec(step(), 1..60)) {
        check(steps);
    }
}

/// A number that looks random.
fn noise(at: u64) -> u64 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

fn of_kind(dim: usize, dtype: DType, kind: IndexKind) -> Spec {
    Spec { dim, metric: Metric::L2, dtype, kind: Some(kind) }
}

/// The vector of a name that a point has, if it has one.
fn made(spec: &Spec, name: usize, id: u64) -> Option<Vec<u8>> {
    let is_there = name == 0 || !noise(1000 * id + name as u64).is_multiple_of(5);
    let value = |at: usize| (noise(id * 64 + at as u64 + 7 * name as u64) % 100) as f32;
    is_there.then(|| components(spec.dtype, &(0..spec.dim).map(value).collect::<Vec<_>>()))
}

fn put(points: &Collection, ids: std::ops::Range<u64>) {
    let ids: Vec<u64> = ids.collect();
    for some in ids.chunks(1000) {
        let specs = points.specs();
        let columns: Vec<(Vec<u8>, Vec<bool>)> = specs
            .iter()
            .enumerate()
            .map(|(name, own)| {
                let all: Vec<_> = some.iter().map(|id| made(&own.spec, name, *id)).collect();
                (all.iter().flatten().flatten().copied().collect(), all.iter().map(Option::is_some).collect())
            })
            .collect();
        let given: Vec<_> = specs
            .iter()
            .zip(&columns)
            .map(|(own, (vectors, has))| GivenVectors { name: &own.name, vectors, has: Some(has) })
            .collect();
        let external: Vec<_> = some.iter().map(|id| number(*id)).collect();
        points.upsert_named(&external, &given, &[], Condition::Always).unwrap();
    }
}

/// Recall of searches of a name at 0.9, of points that are there.
fn recall(points: &Collection, name: usize, ids: &[u64]) -> f64 {
    let own = points.specs().iter().nth(name).unwrap().clone();
    let (mut found, k) = (0, 10);
    let queries: Vec<Vec<u8>> = (0..40).filter_map(|at| made(&own.spec, name, 1_000_000 + at)).collect();
    for query in &queries {
        let mut exact = Exact::default();
        exact.set(own.spec.metric, own.spec.dtype, own.spec.dim, query);
        let with_it =
            ids.iter().filter_map(|id| Some((exact.distance(&made(&own.spec, name, *id)?, 0.0), *id)));
        let mut all: Vec<(f32, u64)> = with_it.collect();
        all.sort_by(|one, two| one.partial_cmp(two).unwrap());
        let options =
            SearchOptions { k, recall: 0.9, vector_name: Some(own.name.clone()), ..SearchOptions::default() };
        let hits = points.search_with(query, &options).unwrap().hits.remove(0);
        assert!(hits.iter().all(|hit| {
            let ExternalId::Number(id) = hit.id else { panic!("a number") };
            let vector = made(&own.spec, name, id).expect("it has a vector of the name");
            // Some kinds sum components in another order.
            let expected = exact.distance(&vector, 0.0);
            ids.contains(&id) && (expected - hit.distance).abs() <= 1e-4 * expected.max(1.0)
        }));
        found += hits.iter().filter(|hit| hit.distance <= 1.0001 * all[k - 1].0).count();
    }
    found as f64 / (queries.len() * k) as f64
}

#[test]
fn each_name_has_an_index_of_its_kind_over_the_points_that_have_it() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let kinds = [
        ("a", of_kind(16, DType::U8, IndexKind::DiskGraph)),
        ("b", of_kind(24, DType::F32, IndexKind::GridIvf)),
        ("c", of_kind(8, DType::F32, IndexKind::HybridIvf)),
    ];
    let specs = Specs::named(kinds.map(|(name, spec)| (name.to_string(), spec))).unwrap();
    let points = node.create_collection("points", specs.clone()).unwrap();
    put(&points, 0..6000);
    points.compact(&Quiet).unwrap();
    let gone: Vec<_> = (0..6000).step_by(7).map(number).collect();
    points.delete(&gone).unwrap();
    put(&points, 6000..6500);
    let left: Vec<u64> = (0..6500).filter(|id| *id >= 6000 || id % 7 > 0).collect();
    let check = |points: &Collection| {
        for (name, own) in specs.iter().enumerate() {
            let recall = recall(points, name, &left);
            assert!(recall >= 0.88, "{}: {recall}", own.name);
        }
        let some: Vec<_> = left.iter().step_by(97).map(|id| number(*id)).collect();
        for point in points.get(&some).unwrap().into_iter().flatten() {
            let ExternalId::Number(id) = point.id else { panic!("a number") };
            let expected = specs.iter().enumerate().map(|(name, own)| made(&own.spec, name, id));
            assert_eq!(point.vectors, expected.collect::<Vec<_>>());
        }
        node.verify("points").unwrap();
    };
    let facts = points.facts().unwrap();
    let [one] = &facts.segments[..] else { panic!("{facts:?}") };
    let found: Vec<_> = one.indexes.iter().map(|own| (own.vector_name.as_str(), Some(own.kind))).collect();
    assert_eq!(found, kinds.map(|(name, spec)| (name, spec.kind)));
    assert!(one.kind.is_none() && one.indexes[0].rows == 6000 && one.indexes[1].rows < 5000);
    check(&points);
    points.compact(&Quiet).unwrap();
    assert_eq!(points.facts().unwrap().segments.len(), 1);
    check(&points);
    // Payloads of many are folded in: no index is built.
    let built = points.facts().unwrap().indexes_built;
    points
        .overwrite_payload(Chosen::Matching(&filter_of(r#"{"must": [{"has_vector": "b"}]}"#)), br#"{"b":1}"#)
        .unwrap();
    points.compact(&Quiet).unwrap();
    let facts = points.facts().unwrap();
    assert_eq!((facts.payloads_folded, facts.indexes_built), (1, built));
    check(&points);
    drop(points);
    node.close_idle();
    node.close_idle();
    check(&node.collection("points").unwrap());
}

#[test]
fn what_does_not_fit_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", specs()).unwrap();
    let refused = |done: Result<_, stratann_node::collections::Error>, why: &str| {
        let error = done.map(|_: ()| ()).unwrap_err();
        assert!(error.message.contains(why), "{error}");
        assert_eq!(error.kind, Kind::Other(ErrorKind::BadInput));
    };
    let ids = [number(1), number(2)];
    let title = components(DType::F32, &[1.0; 6]);
    let put = |given: &[GivenVectors<'_>]| points.upsert_named(&ids, given, &[], Condition::Always).map(drop);
    let of = |name, vectors, has| GivenVectors { name, vectors, has };
    refused(
        put(&[of("titel", &title, None)]),
        r#"unknown vector name "titel"; there are "colour", "image é", "title""#,
    );
    refused(put(&[of("", &title, None)]), r#"have names: "colour""#);
    refused(put(&[of("title", &title, None), of("title", &title, None)]), "given twice");
    refused(put(&[of("title", &title[..12], None)]), r#"vectors "title": 2 ids and 1 vectors"#);
    refused(put(&[of("title", &title, Some(&[true, false]))]), "1 of the points");
    refused(put(&[of("title", &title, Some(&[true]))]), "2 ids, and 1 say");
    refused(points.upsert(&ids, &title).map(drop), "have names");
    refused(points.search(&title[..12], 1).map(drop), "have names");
    let other = |name: &str| SearchOptions { vector_name: Some(name.into()), ..SearchOptions::default() };
    refused(points.search_with(&title, &other("x")).map(drop), r#"unknown vector name "x"; there are"#);
    refused(points.update_vectors(&ids, &[of("title", &title, None)]).map(drop), "no point 1");
    assert!(points.spec().is_err() && points.count() == Ok(0));
    put(&[of("title", &title, None), of("colour", &[], Some(&[false, false]))]).unwrap();
    put(&[]).unwrap();
    assert_eq!(points.get(&ids).unwrap()[0].as_ref().unwrap().vectors, [None, None, None]);
    let one =
        node.create_collection("one", Spec { dim: 3, metric: Metric::L2, dtype: DType::F32, kind: None });
    let one = one.unwrap();
    refused(one.search_with(&title, &other("x")).map(drop), "have no names");
    one.upsert(&ids, &title).unwrap();
    let given = [of("", &title[..12], Some(&[true, false][..]))];
    refused(one.update_vectors(&ids, &given).map(drop), "point 1 has no vector");
    let given = [of("", &title, None)];
    assert_eq!(one.update_vectors(&ids, &given).unwrap().changed, 2);
    assert!(Specs::named([]).is_err());
}

#[test]
fn a_name_that_no_point_has_takes_no_index_and_finds_nothing() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", specs()).unwrap();
    let ids: Vec<_> = (0..30).map(number).collect();
    let vectors: Vec<u8> = (0..30).flat_map(|value| vector(&specs(), 2, value)).collect();
    points
        .upsert_named(
            &ids,
            &[GivenVectors { name: "title", vectors: &vectors, has: None }],
            &[],
            Condition::Always,
        )
        .unwrap();
    let options = |name: &str| SearchOptions { vector_name: Some(name.into()), ..SearchOptions::default() };
    let query = vector(&specs(), 1, 3);
    for _ in 0..2 {
        assert!(points.search_with(&query, &options("image é")).unwrap().hits[0].is_empty());
        assert_eq!(points.search_with(&vectors[..12], &options("title")).unwrap().hits[0].len(), 10);
        points.compact(&Quiet).unwrap();
    }
    let facts = points.facts().unwrap();
    assert_eq!(facts.segments[0].indexes.len(), 1);
    // Points without any vector are in a segment, too.
    points.upsert_named(&ids, &[], &[], Condition::Always).unwrap();
    points.compact(&Quiet).unwrap();
    let facts = points.facts().unwrap();
    assert_eq!((facts.segments[0].rows, facts.segments[0].indexes.len()), (30, 0));
    assert!(points.search_with(&query, &options("image é")).unwrap().hits[0].is_empty());
    assert_eq!(node.verify("points").unwrap().points, 30);
    drop((points, node));
    let node: Node = open(place.path()).unwrap();
    assert_eq!(node.verify("points").unwrap().points, 30);
}

/// Interrupts in a stage when it has come so often.
struct StopsIn {
    stage: &'static str,
    times: std::sync::atomic::AtomicI64,
}

impl Progress for StopsIn {
    fn stage(&self, name: &str, _: u64, _: &str) {
        if name == self.stage {
            self.times.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.times.load(std::sync::atomic::Ordering::Relaxed) <= 0
    }
}

#[test]
fn graphs_of_names_grow_after_an_interruption_and_another_opening() {
    let place = tempfile::tempdir().unwrap();
    let spec = Spec { dim: 8, metric: Metric::L2, dtype: DType::U8, kind: Some(IndexKind::DiskGraph) };
    let specs = Specs::named(["all", "some"].map(|name| (name.to_string(), spec))).unwrap();
    let mut noise = common::Noise(3);
    let vectors: Vec<u8> = (0..8 * 10_000).map(|_| noise.below(200) as u8).collect();
    // Every second point has a vector of the second name.
    let write = |points: &Collection, ids: std::ops::Range<usize>| {
        let has: Vec<bool> = ids.clone().map(|id| id % 2 == 0).collect();
        let some: Vec<u8> = ids
            .clone()
            .filter(|id| id % 2 == 0)
            .flat_map(|id| &vectors[8 * id..8 * id + 8])
            .copied()
            .collect();
        let given = [
            GivenVectors { name: "all", vectors: &vectors[8 * ids.start..8 * ids.end], has: None },
            GivenVectors { name: "some", vectors: &some, has: Some(&has) },
        ];
        let ids: Vec<ExternalId> = ids.map(|id| number(id as u64)).collect();
        points.upsert_named(&ids, &given, &[], Condition::Always).unwrap();
    };
    let mut node = open(place.path()).unwrap();
    let mut points = node.create_collection("points", specs).unwrap();
    (0..9000).step_by(1000).for_each(|first| write(&points, first..first + 1000));
    points.compact(&Quiet).unwrap();
    assert_eq!(points.facts().unwrap().rows_taken_over, 0);
    for (times, first) in [(1, 9000), (2, 9500)] {
        write(&points, first..first + 500);
        points.delete(&(first as u64 - 50..first as u64).map(number).collect::<Vec<_>>()).unwrap();
        let stopped = points.compact(&StopsIn { stage: "graph", times: times.into() });
        assert_eq!(stopped.map_err(|e| e.kind), Err(Kind::Other(ErrorKind::Interrupted)), "{times}");
        drop((points, node));
        node = open(place.path()).unwrap();
        points = node.collection("points").unwrap();
        points.compact(&Quiet).unwrap();
        assert!(points.facts().unwrap().rows_taken_over > 4000, "{:?}", points.facts());
    }
    assert_eq!(node.verify("points").unwrap().points, 9900);
    let is_there = |id: usize| !(8950..9000).contains(&id) && !(9450..9500).contains(&id);
    for name in ["all", "some"] {
        let mut found = 0;
        for query in (0..10_000).step_by(199).map(|at| &vectors[8 * at..8 * at + 8]) {
            let to = |id: usize| -> i32 {
                let own = &vectors[8 * id..8 * id + 8];
                query.iter().zip(own).map(|(x, y)| (i32::from(*x) - i32::from(*y)).pow(2)).sum()
            };
            let with_it = (0..10_000).filter(|id| is_there(*id) && (name == "all" || id % 2 == 0));
            let mut distances: Vec<i32> = with_it.map(to).collect();
            distances.sort_unstable();
            let options = SearchOptions { vector_name: Some(name.into()), ..SearchOptions::default() };
            let hits = &points.search_with(query, &options).unwrap().hits[0];
            found += hits.iter().filter(|hit| hit.distance <= distances[9] as f32).count();
        }
        assert!(found >= 470, "{name}: {found} of 510");
    }
}
