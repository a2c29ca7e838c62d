//! Collections of a process that is killed: every change that was acknowledged is there, once and whole, and nothing else.

mod common;

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::points::{Model, SMALL, filled, number, open, open_busy};
use common::{Noise, Notes, job, job_command, notes, setting};
use stratann_node::collections::{Chosen, Collection, Condition, Error, GivenVectors, Node, Specs};
use stratann_node::rows::{CHUNK_BYTES, ExternalId, Key};
use stratann_payload::value::Update;
use stratann_payload::{Filter, IndexKind, Path, Payload, Schema};
use stratann_storage::Quiet;

/// Ids of the collection `mixed`.
const IDS: u64 = 60;
/// Threads that write the collection `shared` at once, and ids of each.
const WRITERS: u64 = 3;
const OWN_IDS: u64 = 20;
/// Points of a collection that comes and goes.
const FLEETING: u64 = 30;

/// What a change of `mixed` does.
enum Doing {
    /// Vectors, and a payload of all.
    Upsert(Vec<u8>, Option<Vec<u8>>),
    Delete,
    Payload(Update),
}

/// Ids of a change of `mixed`.
fn change(number_of: u64) -> (Vec<ExternalId>, Doing) {
    let mut noise = Noise(number_of);
    let count = 1 + noise.below(12);
    let ids: Vec<_> = (0..count).map(|_| number(noise.below(IDS))).collect();
    let json = format!(r#"{{"n":{}}}"#, noise.below(5)).into_bytes();
    let doing = match number_of % 6 {
        0 => Doing::Delete,
        3 => Doing::Payload(Update::Set { payload: Payload::parse(&json).unwrap(), key: None }),
        of => {
            Doing::Upsert((0..count).flat_map(|_| filled(noise.below(9))).collect(), (of < 3).then_some(json))
        }
    };
    (ids, doing)
}

fn make(points: &Collection, number_of: u64) -> Result<u64, Error> {
    match change(number_of) {
        (ids, Doing::Upsert(vectors, json)) => {
            let payloads = vec![json.as_deref(); ids.len()];
            points.upsert_points(&ids, &vectors, &payloads).map(|done| done.seq)
        }
        (ids, Doing::Delete) => points.delete(&ids).map(|done| done.seq),
        (ids, Doing::Payload(update)) => {
            points.change_payload(Chosen::Ids(&ids), update).map(|done| done.seq)
        }
    }
}

/// The model after changes, one after another.
#[derive(Default)]
struct History {
    model: Model,
    changes: u64,
}

impl History {
    fn advance(&mut self) {
        let (ids, doing) = change(self.changes);
        let seq = self.model.seq + 1;
        match doing {
            Doing::Upsert(vectors, json) => {
                _ = self.model.upsert_points(seq, &ids, &vectors, &vec![json; ids.len()]);
            }
            Doing::Delete => _ = self.model.delete(seq, &ids),
            Doing::Payload(update) => _ = self.model.change_payload(seq, &ids, &update),
        }
        self.changes += 1;
    }

    /// Goes on until a change has this number.
    fn advance_to(&mut self, seq: u64) {
        while self.model.seq < seq {
            self.advance();
        }
    }
}

fn collection(node: &Node, name: &str) -> Collection {
    let specs = || match name {
        "named" => Specs::named(["a", "b"].map(|name| (name.to_string(), SMALL))).unwrap(),
        _ => SMALL.into(),
    };
    node.collection(name).unwrap_or_else(|_| node.create_collection(name, specs()).unwrap())
}

/// The values of the two vectors of a point of `named`.
type TwoValues = [Option<u64>; 2];

/// The collection `named`: points with two names of vectors, after changes that follow from their numbers.
#[derive(Default)]
struct NamedHistory {
    points: BTreeMap<ExternalId, TwoValues>,
    changes: u64,
    seq: u64,
}

/// A change of `named`: its ids, and values of names that are given; none to delete.
type NamedChange = (Vec<ExternalId>, Option<[Option<Vec<Option<u64>>>; 2]>);

impl NamedHistory {
    /// The next change, and whether points keep their other vector.
    fn next(&self) -> (NamedChange, bool) {
        let mut noise = Noise(self.changes + 77);
        let mut ids: Vec<_> = (0..1 + noise.below(9)).map(|_| number(noise.below(40))).collect();
        ids.sort();
        ids.dedup();
        let mut column = |ids: &[ExternalId]| -> Vec<Option<u64>> {
            ids.iter().map(|_| (noise.below(3) > 0).then(|| noise.below(9))).collect()
        };
        let known: Vec<_> = ids.iter().filter(|id| self.points.contains_key(id)).cloned().collect();
        match self.changes % 5 {
            0 => ((ids, None), false),
            1 | 2 if !known.is_empty() => {
                let (name, values) = (self.changes as usize % 2, column(&known));
                let given = std::array::from_fn(|at| (at == name).then(|| values.clone()));
                ((known, Some(given)), true)
            }
            _ => {
                let given = [Some(column(&ids)), Some(column(&ids))];
                ((ids, Some(given)), false)
            }
        }
    }

    fn advance(&mut self) {
        let ((ids, given), is_update) = self.next();
        let mut has_changed = given.is_some();
        for (at, id) in ids.iter().enumerate() {
            let Some(given) = &given else {
                has_changed |= self.points.remove(id).is_some();
                continue;
            };
            let own = self.points.entry(id.clone()).or_default();
            for (name, value) in own.iter_mut().enumerate() {
                match &given[name] {
                    Some(values) => *value = values[at],
                    None if is_update => {}
                    None => *value = None,
                }
            }
        }
        self.seq += u64::from(has_changed);
        self.changes += 1;
    }

    fn advance_to(&mut self, seq: u64) {
        while self.seq < seq {
            self.advance();
        }
    }

    /// Makes the next change. Returns its number.
    fn make(&self, points: &Collection) -> Result<u64, Error> {
        let ((ids, given), is_update) = self.next();
        let Some(given) = given else { return points.delete(&ids).map(|done| done.seq) };
        let columns = ["a", "b"].into_iter().zip(&given).filter_map(|(name, values)| {
            let values = values.as_ref()?;
            let vectors: Vec<u8> = values.iter().flatten().flat_map(|value| filled(*value)).collect();
            Some((name, vectors, values.iter().map(Option::is_some).collect::<Vec<_>>()))
        });
        let columns: Vec<_> = columns.collect();
        let given = columns.iter().map(|(name, vectors, has)| GivenVectors { name, vectors, has: Some(has) });
        let given: Vec<_> = given.collect();
        match is_update {
            true => points.update_vectors(&ids, &given).map(|done| done.seq),
            false => points.upsert_named(&ids, &given, &[], Condition::Always).map(|done| done.seq),
        }
    }

    fn check(&self, points: &Collection) {
        let page = points.scroll(None, 100).unwrap();
        let vectors = |values: &TwoValues| values.map(|value| value.map(filled)).to_vec();
        let found: BTreeMap<_, _> = page.points.into_iter().map(|point| (point.id, point.vectors)).collect();
        let expected: BTreeMap<_, _> =
            self.points.iter().map(|(id, own)| (id.clone(), vectors(own))).collect();
        assert_eq!(found, expected, "after change {}", self.seq);
    }
}

fn write_named(named: &Collection, notes: &mut Notes) {
    let mut history = NamedHistory::default();
    history.advance_to(named.seq().unwrap());
    loop {
        let seq = history.make(named).unwrap();
        history.advance();
        assert_eq!(seq, history.seq);
        notes.write(&format!("named {seq}"));
    }
}

#[test]
fn child() {
    let Some(_) = job() else { return };
    let node = open_busy(FilePath::new(&setting("ROWS_FOLDER"))).unwrap();
    let notes = || Notes::new(FilePath::new(&setting("ROWS_NOTES")));
    let (mixed, shared) = (collection(&node, "mixed"), collection(&node, "shared"));
    let named = collection(&node, "named");
    std::thread::scope(|scope| {
        scope.spawn(|| write_named(&named, &mut notes()));
        scope.spawn(|| write_mixed(&mixed, &mut notes()));
        for writer in 0..WRITERS {
            let (shared, notes) = (&shared, &notes);
            scope.spawn(move || write_shared(shared, writer, &mut notes()));
        }
        scope.spawn(|| {
            loop {
                // Each writer has one value in all of its rows.
                let found = shared.search(&filled(0), 1000).unwrap();
                for writer in 0..WRITERS {
                    let of = |id: &ExternalId| own_ids(writer).contains(id);
                    let own: Vec<_> = found.hits[0].iter().filter(|hit| of(&hit.id)).collect();
                    assert!([0, OWN_IDS as usize].contains(&own.len()), "half a change");
                    assert!(own.iter().all(|hit| hit.distance == own[0].distance), "half a change");
                }
            }
        });
        scope.spawn(|| {
            loop {
                for field in [None, Some("n"), Some("m")] {
                    let mut schema = Schema::new();
                    field.map(|field| schema.add(Path::parse(field).unwrap(), IndexKind::Float).unwrap());
                    mixed.set_schema(&schema).unwrap();
                    std::thread::sleep(Duration::from_millis(7));
                }
            }
        });
        scope.spawn(|| {
            loop {
                let fleeting = collection(&node, "fleeting");
                let ids: Vec<_> = (0..FLEETING).map(number).collect();
                fleeting.upsert(&ids, &filled(1).repeat(ids.len())).unwrap();
                assert!(node.drop_collection("fleeting").unwrap().unfinished.is_none());
            }
        });
    });
}

fn write_mixed(mixed: &Collection, notes: &mut Notes) {
    let mut history = History::default();
    history.advance_to(mixed.seq().unwrap());
    loop {
        let seq = make(mixed, history.changes).unwrap();
        history.advance();
        assert_eq!(seq, history.model.seq);
        notes.write(&format!("mixed {seq}"));
        let found = mixed.search(&filled(3), 7).unwrap();
        let hits: Vec<_> = found.hits[0].iter().map(|hit| (hit.id.clone(), hit.distance)).collect();
        assert_eq!(hits, history.model.nearest(&SMALL, &filled(3), 7));
    }
}

fn own_ids(writer: u64) -> Vec<ExternalId> {
    (0..OWN_IDS).map(|row| number(writer * 1000 + row)).collect()
}

/// The value that all rows of a writer have, and 0 before the first.
fn value_of(shared: &Collection, writer: u64) -> u64 {
    let points = shared.get(&own_ids(writer)).unwrap();
    let values =
        points.iter().flatten().map(|point| f32::from_le_bytes(point.vector()[..4].try_into().unwrap()));
    let values: Vec<_> = values.map(|value| value as u64).collect();
    assert!(values.is_empty() || values.len() as u64 == OWN_IDS, "half a change: {values:?}");
    assert!(values.iter().all(|value| *value == values[0]), "half a change: {values:?}");
    values.first().copied().unwrap_or(0)
}

fn write_shared(shared: &Collection, writer: u64, notes: &mut Notes) {
    for value in value_of(shared, writer) + 1.. {
        shared.upsert(&own_ids(writer), &filled(value).repeat(OWN_IDS as usize)).unwrap();
        notes.write(&format!("shared{writer} {value}"));
    }
}

/// The last change of each kind that the child noted as acknowledged.
fn last_noted(noted: &FilePath, what: &str) -> u64 {
    let of_kind = notes(noted).into_iter().filter(|words| words[0] == what);
    of_kind.map(|words| words[1].parse().unwrap()).max().unwrap_or(0)
}

/// Returns the last change that is there, of each kind.
fn check(node: &Node, noted: &FilePath, history: &mut History) -> Vec<(String, u64)> {
    let mixed = collection(node, "mixed");
    let (seq, acknowledged) = (mixed.seq().unwrap(), last_noted(noted, "mixed"));
    assert!(
        (acknowledged..=acknowledged + 1).contains(&seq),
        "change {seq} is there, {acknowledged} was acknowledged"
    );
    history.advance_to(seq);
    assert_eq!(history.model.difference(&mixed), None, "after change {seq}");
    let filter = Filter::from_where("n in (1, 3)").unwrap().compile();
    let is_match = |json: &&Vec<u8>| **json == br#"{"n":1}"# || **json == br#"{"n":3}"#;
    let expected = history.model.payloads.values().filter(is_match).count() as u64;
    assert_eq!(mixed.count_matching(&Arc::new(filter)).unwrap().points, expected);
    let mut there = vec![("mixed".to_string(), seq)];
    let shared = collection(node, "shared");
    for writer in 0..WRITERS {
        let what = format!("shared{writer}");
        let (value, acknowledged) = (value_of(&shared, writer), last_noted(noted, &what));
        there.push((what, value));
        assert!(
            (acknowledged..=acknowledged + 1).contains(&value),
            "{value} is there, {acknowledged} was acknowledged"
        );
    }
    let named = collection(node, "named");
    let (seq, acknowledged) = (named.seq().unwrap(), last_noted(noted, "named"));
    assert!(
        (acknowledged..=acknowledged + 1).contains(&seq),
        "{seq} is there, {acknowledged} was acknowledged"
    );
    there.push(("named".to_string(), seq));
    let mut of_names = NamedHistory::default();
    of_names.advance_to(seq);
    of_names.check(&named);
    for name in ["mixed", "shared", "named"] {
        node.verify(name).unwrap();
    }
    if let Ok(fleeting) = node.collection("fleeting") {
        assert!([0, FLEETING].contains(&fleeting.count().unwrap()), "half a change");
        node.verify("fleeting").unwrap();
    }
    there
}

/// Makes one segment of each collection; then no other has a folder.
fn compact(node: &Node, folder: &FilePath) {
    for name in ["mixed", "shared", "named"] {
        collection(node, name).compact(&Quiet).unwrap();
    }
    let entries = |folder: &FilePath| {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    for of_collection in entries(&folder.join("s")) {
        let segments: Vec<_> = entries(&of_collection).filter(|entry| entry.is_dir()).collect();
        assert!(segments.len() < 2, "a segment is left: {segments:?}");
    }
}

/// Collections that have rows, beside the catalogue.
fn collections_with_rows(folder: &FilePath) -> usize {
    let rows = common::open(folder).unwrap();
    let (mut from, end) = (Key::first_of_collection(1), Key::end_of_collection(u64::MAX));
    let mut found = Vec::new();
    loop {
        let chunk = rows.scan(&from, &end, CHUNK_BYTES).unwrap();
        found.extend(chunk.rows.iter().map(|(key, _)| key.collection()));
        found.dedup();
        let Some(next) = chunk.next else { return found.len() };
        from = next;
    }
}

fn kill_again_and_again(kills: u64) {
    let place = tempfile::tempdir().unwrap();
    let (folder, noted) = (place.path().join("data"), place.path().join("notes"));
    let (mut noise, mut history, mut opened) = (Noise(kills), History::default(), Vec::new());
    let (mut changes, mut there, mut segments) = (0, Vec::new(), 0);
    for kill in 0..kills {
        // The next child goes on from what is there, which may be one more than was acknowledged.
        let _ = std::fs::remove_file(&noted);
        there.iter().for_each(|(what, last)| Notes::new(&noted).write(&format!("{what} {last}")));
        let mut running = job_command("write", &folder).env("ROWS_NOTES", &noted).spawn().unwrap();
        let (wanted, begin) = (there.len() + noise.below(60) as usize, Instant::now());
        while notes(&noted).len() < wanted {
            assert!(running.try_wait().unwrap().is_none(), "the child ended");
            assert!(begin.elapsed() < Duration::from_secs(120), "the child has come to a halt");
            std::thread::sleep(Duration::from_micros(300));
        }
        std::thread::sleep(Duration::from_micros(noise.below(3000)));
        running.kill().unwrap();
        running.wait().unwrap();
        let begin = Instant::now();
        let node = open(&folder).unwrap_or_else(|e| panic!("after kill {kill}: {e}"));
        opened.push(begin.elapsed());
        if kill % 100 == 99 {
            eprintln!("{} kills, opened in {:?}", kill + 1, begin.elapsed());
        }
        segments += ["mixed", "shared"]
            .map(|name| collection(&node, name).facts().unwrap().segments.len())
            .iter()
            .sum::<usize>();
        changes += notes(&noted).len() - there.len();
        there = check(&node, &noted, &mut history);
        if kill % 4 == 0 {
            compact(&node, &folder);
            check(&node, &noted, &mut history);
        }
        let listed = node.collections().unwrap().len();
        drop(node);
        if kill % 5 == 0 {
            assert!(collections_with_rows(&folder) <= listed, "rows of a dropped collection are left");
        }
    }
    opened.sort();
    eprintln!(
        "{kills} kills, {changes} changes acknowledged, {segments} segments; opened in {:?} to {:?}",
        opened[0],
        opened.last()
    );
    assert!(segments as u64 > kills, "no checkpoint was killed");
    assert!(history.model.seq > kills && changes as u64 > 5 * kills);
}

#[test]
fn changes_survive_kills() {
    kill_again_and_again(50);
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn changes_survive_a_thousand_kills() {
    kill_again_and_again(1000);
}
