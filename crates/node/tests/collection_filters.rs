//! Filters of collections against the plain definition of a filter, over points in memory, checkpoints and segments.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::Noise;
use common::points::{SMALL, filled, number, open, open_busy};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Chosen, Collection, Node, SearchOptions, SegmentFacts, Spec};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_payload::filter::random::Random;
use stratann_payload::value::Update;
use stratann_payload::{
    Filter, IdValue, IndexKind as FieldKind, Path, Payload, PointFacts, Predicate, Schema,
};
use stratann_storage::Quiet;

/// A point of the twin.
struct Facts<'a>(&'a ExternalId);

impl PointFacts for Facts<'_> {
    fn has_id(&self, id: &IdValue) -> bool {
        *self.0 == ExternalId::of_filter(id)
    }

    fn has_vector(&self, name: &str) -> bool {
        name.is_empty()
    }
}

/// Value and payload of each point.
type Twin = BTreeMap<ExternalId, (u64, Payload)>;

fn matching<'a>(twin: &'a Twin, filter: &Filter) -> Vec<(&'a ExternalId, u64)> {
    let holds = |(id, (_, payload)): &(&'a ExternalId, &(u64, Payload))| filter.matches(payload, &Facts(id));
    twin.iter().filter(holds).map(|(id, (value, _))| (id, *value)).collect()
}

/// Compares everything that a filter is used for.
fn compare(points: &Collection, twin: &Twin, filter: &Filter) {
    let (expected, predicate) = (matching(twin, filter), Arc::new(filter.compile()));
    for _ in 0..2 {
        let counted = points.count_matching(&predicate).unwrap();
        assert_eq!(counted.points, expected.len() as u64, "{filter:?}");
    }
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = points.scroll_matching(after.as_ref(), 7, &predicate).unwrap();
        for point in page.points {
            let payload = point.payload.map_or_else(Payload::new, |json| Payload::parse(&json).unwrap());
            assert_eq!(payload, twin[&point.id].1);
            found.push(point.id);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert!(found.iter().eq(expected.iter().map(|(id, _)| *id)), "{filter:?}");
    for (k, recall) in [(3, 1.0), (1000, 1.0), (5, 0.9)] {
        let (filter_of, with_payload) = (Some(predicate.clone()), k > 3);
        let options =
            SearchOptions { k, recall, filter: filter_of, with_payload, ..SearchOptions::default() };
        let hits = points.search_with(&filled(4), &options).unwrap().hits.remove(0);
        for hit in &hits {
            let payload = Some(&twin[&hit.id].1).filter(|own| with_payload && !own.is_empty());
            assert_eq!(hit.payload, payload.map(Payload::to_bytes));
        }
        let mut nearest: Vec<_> =
            expected.iter().map(|(id, value)| (4.0 * (*value as f32 - 4.0).powi(2), *id)).collect();
        nearest.sort_by(|one, two| one.partial_cmp(two).unwrap());
        nearest.truncate(k);
        if recall < 1.0 {
            assert_eq!(hits.len(), nearest.len(), "{filter:?}");
            assert!(hits.iter().all(|hit| expected.iter().any(|(id, _)| **id == hit.id)), "{filter:?}");
            continue;
        }
        assert!(hits.iter().map(|hit| (hit.distance, &hit.id)).eq(nearest), "{filter:?} {k}");
    }
}

fn external(id: &IdValue) -> ExternalId {
    ExternalId::of_filter(id)
}

/// Changes some points, in one of several ways.
fn change(points: &Collection, twin: &mut Twin, (random, noise): (&mut Random, &mut Noise)) {
    let mut ids: Vec<ExternalId> = (0..1 + noise.below(12)).map(|_| external(&random.id())).collect();
    ids.sort();
    ids.dedup();
    if noise.below(4) == 0 {
        points.delete(&ids).unwrap();
        ids.iter().for_each(|id| _ = twin.remove(id));
        return;
    }
    let values: Vec<u64> = ids.iter().map(|_| noise.below(9)).collect();
    let payloads: Vec<Payload> = ids.iter().map(|_| random.payload()).collect();
    let json: Vec<Vec<u8>> = payloads.iter().map(Payload::to_bytes).collect();
    let given: Vec<Option<&[u8]>> = json.iter().map(|json| Some(&**json)).collect();
    let vectors: Vec<u8> = values.iter().flat_map(|value| filled(*value)).collect();
    points.upsert_points(&ids, &vectors, &given).unwrap();
    twin.extend(ids.into_iter().zip(values.into_iter().zip(payloads)));
}

/// Changes the payloads of some points, by ids or by a filter.
fn change_payloads(points: &Collection, twin: &mut Twin, (random, noise): (&mut Random, &mut Noise)) {
    let key = Path::parse(["a", "a.x", "b[0]", "c.y", "a[].x"][noise.below(5) as usize]).unwrap();
    let update = match noise.below(5) {
        0 => Update::Overwrite(random.payload()),
        1 => Update::DeleteKeys(vec![key]),
        2 => Update::Clear,
        3 => Update::Set { payload: random.payload(), key: Some(key) },
        _ => Update::Set { payload: random.payload(), key: None },
    };
    let (ids, filter) = if noise.below(3) == 0 {
        let filter = random.filter();
        let ids = matching(twin, &filter).iter().map(|(id, _)| (*id).clone()).collect();
        (ids, Some(Arc::new(filter.compile())))
    } else {
        let ids: Vec<ExternalId> = (0..1 + noise.below(20)).map(|_| external(&random.id())).collect();
        (ids, None)
    };
    let known = ids.iter().filter(|id| twin.contains_key(id)).collect::<std::collections::BTreeSet<_>>();
    let done = match &filter {
        Some(filter) => points.change_payload(Chosen::Matching(filter), update.clone()),
        None => points.change_payload(Chosen::Ids(&ids), update.clone()),
    };
    let done = done.unwrap();
    assert_eq!(done.changed + done.unchanged, known.len() as u64);
    for id in known {
        twin.get_mut(id).unwrap().1.update(&update).unwrap();
    }
}

fn twin_of(seed: u64, filters: u64) {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let (mut random, mut noise, mut twin) = (Random(seed), Noise(seed), Twin::new());
    for _ in 0..filters {
        match noise.below(16) {
            0 => points.checkpoint(&Quiet).unwrap(),
            1 if noise.below(3) == 0 => points.compact(&Quiet).unwrap(),
            2 => points.set_schema(&random.schema()).unwrap(),
            3 if noise.below(4) == 0 => {
                let filter = random.filter();
                let expected: Vec<_> = matching(&twin, &filter).iter().map(|(id, _)| (*id).clone()).collect();
                let done = points.delete_matching(&Arc::new(filter.compile())).unwrap();
                assert_eq!((done.deleted, done.changed), (expected.len() as u64, 0), "{filter:?}");
                expected.iter().for_each(|id| _ = twin.remove(id));
            }
            4..=6 => change_payloads(&points, &mut twin, (&mut random, &mut noise)),
            _ => change(&points, &mut twin, (&mut random, &mut noise)),
        }
        compare(&points, &twin, &random.filter());
    }
    assert_eq!(node.verify("points").unwrap().points, twin.len() as u64);
    drop((points, node));
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    (0..20).for_each(|_| compare(&points, &twin, &random.filter()));
}

#[test]
fn filters_are_their_definition_over_all_parts() {
    (0..12).for_each(|seed| twin_of(seed, 150));
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn filters_are_their_definition_a_hundred_thousand_times() {
    (100..500).for_each(|seed| twin_of(seed, 250));
}

fn where_of(text: &str) -> Arc<Predicate> {
    Arc::new(Filter::from_where(text).unwrap().compile())
}

fn schema_of(fields: &[(&str, FieldKind)]) -> Schema {
    let mut schema = Schema::new();
    for (path, kind) in fields {
        schema.add(Path::parse(path).unwrap(), *kind).unwrap();
    }
    schema
}

/// Fills a collection with points `n` in turn, which have `n` and `thousandth` in their payloads.
fn fill(points: &Collection, ids: std::ops::Range<u64>) {
    let spec = points.spec().unwrap();
    for first in ids.clone().step_by(1000) {
        let some: Vec<u64> = (first..ids.end.min(first + 1000)).collect();
        let ids: Vec<_> = some.iter().copied().map(number).collect();
        let mut noise = Noise(first);
        let values: Vec<f32> = (0..some.len() * spec.dim).map(|_| noise.below(200) as f32 + 1.0).collect();
        let vectors = common::points::components(spec.dtype, &values);
        let json: Vec<String> =
            some.iter().map(|n| format!(r#"{{"n":{n},"part":"p{}"}}"#, n % 1000)).collect();
        let payloads: Vec<_> = json.iter().map(|json| Some(json.as_bytes())).collect();
        points.upsert_points(&ids, &vectors, &payloads).unwrap();
    }
}

/// Vectors as [`fill`] makes them.
fn queries() -> Vec<Vec<u8>> {
    let query = |seed: u64| {
        let mut noise = Noise(1_000_000 + seed);
        (0..8).map(|_| noise.below(200) as u8 + 1).collect()
    };
    (0..100).map(query).collect()
}

#[test]
fn every_kind_of_index_returns_what_matches() {
    let queries = queries();
    for kind in [
        IndexKind::DiskGraph,
        IndexKind::HybridIvf,
        IndexKind::GridIvf,
        IndexKind::GpuIvf,
        IndexKind::RemoteHnsw,
        IndexKind::Flat,
    ] {
        let place = tempfile::tempdir().unwrap();
        let node = open(place.path()).unwrap();
        let spec = Spec { dim: 8, metric: Metric::L2, dtype: DType::U8, kind: Some(kind) };
        let points = node.create_collection("points", spec).unwrap();
        let schema = schema_of(&[("n", FieldKind::Float), ("part", FieldKind::Keyword)]);
        points.set_schema(&schema).unwrap();
        fill(&points, 0..5000);
        points.compact(&Quiet).unwrap();
        fill(&points, 4500..5500);
        points.checkpoint(&Quiet).unwrap();
        fill(&points, 5200..5800);
        assert_eq!(points.facts().unwrap().segments[0].kind, Some(kind));
        let ratio = |text: &str, matches: &dyn Fn(u64) -> bool| {
            let expected: Vec<u64> = (0..5800).filter(|n| matches(*n)).collect();
            let filter = where_of(text);
            let counted = points.count_matching(&filter).unwrap();
            assert_eq!((counted.points, counted.unindexed.len()), (expected.len() as u64, 0), "{text}");
            let about = points.estimate_matching(&filter).unwrap();
            // Indexes decide all but the rows in memory and those of newer payloads.
            assert!((about.least..=about.most).contains(&counted.points), "{text}: {about:?}");
            assert!(about.points.abs_diff(counted.points) <= 120 && about.payloads <= 256, "{about:?}");
            let all = points.scroll_matching(None, 16_000, &filter).unwrap().points;
            let options = SearchOptions { filter: Some(filter.clone()), ..SearchOptions::default() };
            let hits = points.search_with(&queries.concat(), &options).unwrap().hits;
            let (mut exact, mut found, mut wanted) = (stratann_kernel::distance::Exact::default(), 0, 0);
            for (query, hits) in queries.iter().zip(hits) {
                exact.set(spec.metric, spec.dtype, spec.dim, query);
                let mut distances: Vec<f32> =
                    all.iter().map(|point| exact.distance(point.vector(), 0.0)).collect();
                distances.sort_by(f32::total_cmp);
                distances.truncate(10);
                assert_eq!(hits.len(), distances.len(), "{kind:?} {text}");
                let is_match = |id: &ExternalId| matches!(id, ExternalId::Number(n) if matches(*n));
                assert!(hits.iter().all(|hit| is_match(&hit.id)), "{kind:?} {text}");
                let last = distances.last().copied().unwrap_or(0.0);
                found += hits.iter().filter(|hit| hit.distance <= last).count();
                wanted += distances.len();
            }
            // Three standard errors of the recall of so many queries, of which few miss more than two results.
            let least = options.recall - 0.02;
            assert!(found as f64 >= least * wanted as f64, "{kind:?} {text}: {found} of {wanted}");
        };
        ratio("n < 2900", &|n| n < 2900);
        ratio("n >= 580 and n < 1160", &|n| (580..1160).contains(&n));
        ratio("n >= 5000", &|n| n >= 5000);
        ratio("part in ('p1', 'p500')", &|n| [1, 500].contains(&(n % 1000)));
        ratio("part = 'p999' and n < 1000", &|n| n == 999);
        ratio("n > 6000", &|n| n > 6000);
        node.verify("points").unwrap();
    }
}

fn small(node: &Node) -> Collection {
    let points = node.create_collection("points", SMALL).unwrap();
    let json: Vec<String> = (0..100).map(|n| format!(r#"{{"n":{n},"even":{}}}"#, n % 2 == 0)).collect();
    let payloads: Vec<_> = json.iter().map(|json| Some(json.as_bytes())).collect();
    let ids: Vec<_> = (0..100).map(number).collect();
    let vectors: Vec<u8> = (0..100).flat_map(filled).collect();
    points.upsert_points(&ids, &vectors, &payloads).unwrap();
    points
}

#[test]
fn a_repeated_filter_costs_nothing_and_fields_without_an_index_are_named() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = small(&node);
    points.set_schema(&schema_of(&[("even", FieldKind::Bool)])).unwrap();
    points.checkpoint(&Quiet).unwrap();
    let search = |text: &str| {
        let options = SearchOptions { filter: Some(where_of(text)), ..SearchOptions::default() };
        points.search_with(&filled(7), &options).unwrap()
    };
    let first = search("even = true");
    assert_eq!((first.filter.rows, first.filter.evaluated, first.filter.payloads), (50, 1, 0));
    assert!(first.unindexed.is_empty());
    let again = search("even = true and not (even = false)");
    let equal = search("even = true");
    assert_eq!((equal.filter.cached, equal.filter.evaluated, &equal.hits), (1, 0, &first.hits));
    assert_eq!(again.hits, first.hits);
    let scanned = search("n < 10");
    assert_eq!((scanned.filter.rows, scanned.filter.payloads, scanned.unindexed.len()), (10, 100, 1));
    assert_eq!(scanned.unindexed[0].field, Path::parse("n").unwrap());
    let scanned = search("n < 10");
    assert_eq!((scanned.filter.payloads, scanned.filter.cached, scanned.unindexed.len()), (0, 1, 1));
    // Deletes change what is left, and not what matches.
    points.delete(&[number(0), number(1)]).unwrap();
    let left = search("n < 10");
    assert_eq!((left.filter.rows, left.filter.cached, left.hits[0].len()), (8, 1, 8));
    // Another schema counts from the next segment on.
    let schema = schema_of(&[("n", FieldKind::Integer)]);
    points.set_schema(&schema).unwrap();
    assert_eq!((points.schema().unwrap(), search("n < 10").unindexed.len()), (schema, 1));
    points.compact(&Quiet).unwrap();
    let indexed = search("n < 10");
    assert_eq!((indexed.filter.payloads, indexed.unindexed.len(), &indexed.hits), (0, 0, &left.hits));
    node.verify("points").unwrap();
}

#[test]
fn a_new_schema_reaches_a_segment_that_is_alone() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = small(&node);
    points.compact(&Quiet).unwrap();
    let facts = points.facts().unwrap();
    points.compact(&Quiet).unwrap();
    assert_eq!(points.facts().unwrap().segments, facts.segments, "nothing is to be done");
    let schema = schema_of(&[("n", FieldKind::Integer)]);
    points.set_schema(&schema).unwrap();
    points.set_payload(Chosen::Ids(&[number(3)]), br#"{"n":1000}"#, None).unwrap();
    assert_eq!(points.count_matching(&where_of("n < 10")).unwrap().unindexed.len(), 1);
    drop((points, node));
    // The background writes another index beside the vectors.
    let node = open_busy(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    let begin = std::time::Instant::now();
    let counted = loop {
        let counted = points.count_matching(&where_of("n < 10")).unwrap();
        assert_eq!(counted.points, 9);
        if counted.unindexed.is_empty() {
            break counted;
        }
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "nothing is indexed");
    };
    assert!(counted.filter.payloads < 2, "{counted:?}");
    let names = |facts: &[SegmentFacts]| facts.iter().map(|own| (own.number, own.rows)).collect::<Vec<_>>();
    assert_eq!(names(&points.facts().unwrap().segments), names(&facts.segments), "no segment is made");
    drop((points, node));
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    let counted = points.count_matching(&where_of("n < 10")).unwrap();
    assert_eq!((counted.points, counted.unindexed.len()), (9, 0));
    node.verify("points").unwrap();
    let files = common::files(&place.path().join("s"));
    let indexes: Vec<_> =
        files.iter().filter(|file| file.extension().is_some_and(|e| e == "index")).collect();
    assert!(indexes.len() == 1 && indexes[0].ends_with("payload-2.index"), "{indexes:?}");
    // Without a schema fields are as before.
    points.set_schema(&Schema::new()).unwrap();
    points.compact(&Quiet).unwrap();
    assert_eq!(points.count_matching(&where_of("n < 10")).unwrap().unindexed.len(), 1);
}

#[test]
fn a_count_is_estimated_from_a_sample_where_no_index_decides() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let ids: Vec<_> = (0..4000).map(number).collect();
    let json: Vec<String> = (0..4000u64).map(|n| format!(r#"{{"n":{n},"fifth":{}}}"#, n % 5 == 0)).collect();
    let payloads: Vec<_> = json.iter().map(|json| Some(json.as_bytes())).collect();
    let vectors: Vec<u8> = (0..4000).flat_map(filled).collect();
    points.upsert_points(&ids[..3000], &vectors[..3000 * 16], &payloads[..3000]).unwrap();
    points.checkpoint(&Quiet).unwrap();
    points.upsert_points(&ids[3000..], &vectors[3000 * 16..], &payloads[3000..]).unwrap();
    points.delete(&ids[..100]).unwrap();
    points.set_payload(Chosen::Ids(&ids[100..700]), br#"{"fifth":true}"#, None).unwrap();
    let filter = where_of("fifth = true");
    let about = points.estimate_matching(&filter).unwrap();
    let exact = points.count_matching(&filter).unwrap();
    assert_eq!(exact.points, 600 + 460 + 200);
    assert!(about.points.abs_diff(exact.points) <= 130, "{about:?}");
    assert!(about.least <= exact.points && exact.points <= about.most && about.least < about.most);
    // Of the files, of newer payloads and of memory.
    assert!((500..=768).contains(&about.payloads), "{about:?}");
    assert_eq!((about.unindexed, about.seq), (exact.unindexed, exact.seq));
    let named = Filter::from_json(br#"{"must":[{"has_id":[150,160,99,3500,2000]}]}"#).unwrap();
    let named = Arc::new(named.compile());
    let (about, exact) = (points.estimate_matching(&named).unwrap(), points.count_matching(&named).unwrap());
    assert_eq!(exact.points, 4);
    assert!(about.least <= 4 && about.most >= 4, "{about:?}");
}
