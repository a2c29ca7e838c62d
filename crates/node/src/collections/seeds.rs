//! Sequencer and publishing under failing, lying disks, step by step from a seed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use stratann_kernel::{DType, Metric};
use stratann_storage::{ErrorKind, Progress, Quiet};

use super::*;
use crate::rows::{self, ExternalId, Rows, fake};
use crate::segments::Left;

const SPEC: Spec = Spec { dim: 2, metric: Metric::L2, dtype: DType::U8, kind: None };
const STEPS: u64 = 25;
/// Seeds of the long run.
const SEEDS: std::ops::Range<u64> = 1000..9000;

/// Numbers that look random.
struct Noise(u64);

impl Noise {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Interrupts after some questions.
struct Impatient(AtomicI64);

impl Progress for Impatient {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

#[derive(Debug, Default)]
struct Tally {
    changes: u64,
    unknown: u64,
    segments: u64,
    failed: u64,
    crashes: u64,
    refused: u64,
}

/// Vectors of the names of a point.
type Vectors = Vec<Option<Vec<u8>>>;

/// Number of the change that wrote a point, its vectors and its payload.
type Known = (u64, Vectors, Option<Vec<u8>>);

/// One vector without a name, or two with names.
fn specs(has_names: bool) -> Specs {
    let names = ["a", "b"].map(|name| (name.to_string(), SPEC));
    if has_names { Specs::named(names).expect("two names") } else { SPEC.into() }
}

/// A collection, its model, and the disk below.
struct World {
    folder: tempfile::TempDir,
    node: Option<Node>,
    model: BTreeMap<ExternalId, Known>,
    seq: u64,
    noise: Noise,
    tally: Tally,
}

fn open(folder: &Path) -> Result<Node> {
    let segments = SegmentOptions { in_background: false, threads: 1, ..SegmentOptions::default() };
    let rows = rows::Options { memory_bytes: rows::MEMORY_BYTES_MIN, reserve_bytes: 0, log_bytes_kept: 0 };
    let options = Options { rows, deltas_bytes: 1 << 20, segments, ram_budget: None };
    let rows = Rows::open_on(folder, &options.rows, &fake::FAKE, &Quiet)?;
    Node::on((rows, Left::new()), folder, &options, &Quiet)
}

impl World {
    fn new(seed: u64, lies: bool, has_names: bool) -> World {
        let in_memory = Path::new("/dev/shm");
        let place = if in_memory.is_dir() { in_memory.into() } else { std::env::temp_dir() };
        let folder = tempfile::tempdir_in(place).expect("a folder");
        let node = open(folder.path()).expect("an empty folder opens");
        node.create_collection("points", specs(has_names)).expect("made");
        let world = World {
            folder,
            node: Some(node),
            model: BTreeMap::new(),
            seq: 0,
            noise: Noise(seed),
            tally: Tally::default(),
        };
        world.disk(|disk| disk.lies = lies);
        world
    }

    fn disk<T>(&self, ask: impl FnOnce(&mut fake::Disk) -> T) -> T {
        let disk = fake::disk_of(&self.folder.path().join("db"));
        let mut disk = disk.lock().unwrap_or_else(|e| e.into_inner());
        ask(&mut disk)
    }

    fn points(&self) -> Collection {
        self.node.as_ref().expect("open").collection("points").expect("it is there")
    }

    fn change(&mut self) {
        let count = 1 + self.noise.below(6);
        let mut ids: Vec<_> = (0..count).map(|_| ExternalId::Number(self.noise.below(25))).collect();
        ids.sort();
        ids.dedup();
        let what = self.noise.below(6);
        let points = self.points();
        let has_names = points.specs().has_names();
        let is_update = has_names && what == 5;
        if is_update {
            // Only vectors of points that are there can change.
            ids.retain(|id| self.model.contains_key(id));
            if ids.is_empty() {
                return;
            }
        }
        let column = |noise: &mut Noise| -> Vec<Option<Vec<u8>>> {
            let is_there = |noise: &mut Noise| !has_names || noise.below(4) > 0;
            ids.iter().map(|_| is_there(noise).then(|| vec![noise.below(9) as u8, 1])).collect()
        };
        let columns: Vec<_> = (0..points.specs().count()).map(|_| column(&mut self.noise)).collect();
        // An update leaves the first name as it is.
        let names = points.specs().iter().map(|own| own.name.clone()).collect::<Vec<_>>();
        let rows: Vec<(Vec<u8>, Vec<bool>)> = columns
            .iter()
            .map(|own| {
                (own.iter().flatten().flatten().copied().collect(), own.iter().map(Option::is_some).collect())
            })
            .collect();
        let given: Vec<_> = names
            .iter()
            .zip(&rows)
            .skip(usize::from(is_update))
            .map(|(name, (vectors, has))| GivenVectors { name, vectors, has: Some(has) })
            .collect();
        let json =
            (self.noise.below(3) > 0).then(|| format!(r#"{{"n":{}}}"#, self.noise.below(4)).into_bytes());
        let payloads = vec![json.as_deref(); ids.len()];
        let done = match what {
            0 => points.delete(&ids).map(|done| done.seq),
            1 | 2 => {
                let json = json.as_deref().unwrap_or(b"{}");
                points.overwrite_payload(Chosen::Ids(&ids), json).map(|done| done.seq)
            }
            _ if is_update => points.update_vectors(&ids, &given).map(|done| done.seq),
            _ => points.upsert_named(&ids, &given, &payloads, Condition::Always).map(|done| done.seq),
        };
        self.tally.changes += 1;
        let seq = match done {
            Ok(seq) => Some(seq),
            Err(Error { kind: Kind::Unknown { seq }, .. }) => {
                self.tally.unknown += 1;
                points.is_there(seq).expect("the disk is well again").then_some(seq)
            }
            Err(e) => panic!("{e}"),
        };
        if let Some(seq) = seq {
            self.note(seq, (what, is_update), (&ids, &columns), json);
        }
    }

    /// Makes a change of the model.
    fn note(
        &mut self,
        seq: u64,
        (what, is_update): (u64, bool),
        (ids, columns): (&[ExternalId], &[Vectors]),
        json: Option<Vec<u8>>,
    ) {
        self.seq = self.seq.max(seq);
        for (at, id) in ids.iter().enumerate() {
            let vectors: Vectors = columns.iter().map(|own| own[at].clone()).collect();
            match what {
                0 => _ = self.model.remove(id),
                1 | 2 => {
                    let Some(own) = self.model.get_mut(id) else { continue };
                    own.2 = json.clone();
                }
                _ if is_update => {
                    let Some(own) = self.model.get_mut(id) else { continue };
                    (own.0, own.1[1]) = (seq, vectors[1].clone());
                }
                _ => _ = self.model.insert(id.clone(), (seq, vectors, json.clone())),
            }
        }
    }

    fn make_segments(&mut self, what: u64) {
        let (points, patience) = (self.points(), self.noise.below(12) as i64);
        let made = match what {
            0 => points.checkpoint(&Quiet),
            1 => points.compact(&Quiet),
            _ => points.compact(&Impatient(patience.into())),
        };
        self.tally.segments += u64::from(made.is_ok());
        self.tally.failed += u64::from(made.is_err());
        if let Err(e) = made {
            let is_known =
                matches!(e.kind, Kind::Unknown { .. } | Kind::Other(ErrorKind::Interrupted | ErrorKind::Io));
            assert!(is_known, "{e}");
        }
    }

    /// Has other fields indexed. Where that fails, nobody knows whether they are.
    fn set_schema(&mut self) {
        let mut schema = stratann_payload::Schema::new();
        if self.noise.below(2) == 0 {
            let path = stratann_payload::Path::parse("n").expect("a path");
            schema.add(path, stratann_payload::IndexKind::Float).expect("few fields");
        }
        let points = self.points();
        match points.set_schema(&schema) {
            Ok(()) => assert_eq!(points.schema().expect("read"), schema),
            Err(e) => assert!(matches!(e.kind, Kind::Unknown { .. } | Kind::Other(ErrorKind::Io)), "{e}"),
        }
    }

    /// Ends the process without a word; what the disk lied about is lost. Returns whether it opens again.
    fn crash(&mut self) -> bool {
        self.tally.crashes += 1;
        self.node = None;
        let groups = self.noise.below(4) as usize;
        let (is_lost, is_told) = self.disk(|disk| {
            disk.fails_in = None;
            disk.lose(groups)
        });
        match open(self.folder.path()) {
            Ok(node) => {
                assert!(!is_told, "acknowledged groups are lost, and nobody says so");
                self.node = Some(node);
                true
            }
            Err(e) => {
                assert!(is_lost && e.kind == Kind::Other(ErrorKind::Corrupt), "{e}");
                self.tally.refused += 1;
                false
            }
        }
    }

    fn check(&self) {
        let points = self.points();
        let page = points.scroll(None, 100).expect("read");
        let found = page.points.into_iter().map(|point| (point.id, (point.vectors, point.payload)));
        let model = self.model.iter().map(|(id, own)| (id.clone(), (own.1.clone(), own.2.clone())));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), model.collect());
        let filter = stratann_payload::Filter::from_where("n in (1, 2)").expect("a filter").compile();
        let is_match = |own: &&Known| {
            own.2.as_deref().is_some_and(|json| json == br#"{"n":1}"# || json == br#"{"n":2}"#)
        };
        let counted = points.count_matching(&std::sync::Arc::new(filter)).expect("read");
        assert_eq!(counted.points, self.model.values().filter(is_match).count() as u64);
        assert_eq!(points.count().expect("read"), self.model.len() as u64);
        for (name, own) in points.specs().iter().enumerate() {
            let vector_name = points.specs().has_names().then(|| own.name.clone());
            let options = SearchOptions { k: 100, vector_name, ..SearchOptions::default() };
            let found = points.search_with(&[4, 1], &options).expect("searched");
            let has = |known: &Known| known.1[name].is_some();
            assert_eq!(found.hits[0].len(), self.model.values().filter(|known| has(known)).count());
            assert!(found.hits[0].iter().all(|hit| self.model.get(&hit.id).is_some_and(has)));
        }
    }

    fn step(&mut self) -> bool {
        match self.noise.below(13) {
            0..=5 => self.change(),
            what @ 6..=8 => self.make_segments(what - 6),
            9 => {
                let (writes, lands) = (self.noise.below(5), self.noise.below(2) == 0);
                self.disk(|disk| (disk.fails_in, disk.lands) = (Some(writes), lands));
            }
            11 => self.set_schema(),
            10 => _ = self.node.as_ref().map(Node::close_idle),
            _ => {
                if !self.crash() {
                    return false;
                }
            }
        }
        self.check();
        true
    }
}

fn run(seeds: std::ops::Range<u64>, lies: bool) -> Tally {
    let mut all = Tally::default();
    for seed in seeds {
        // Every third one has two names.
        let mut world = World::new(seed, lies, seed % 3 == 0);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let goes_on = (0..STEPS).all(|_| world.step());
            if goes_on {
                world.disk(|disk| disk.fails_in = None);
                let verified = world.node.as_ref().expect("open").verify("points").expect("whole");
                assert_eq!(verified.points, world.model.len() as u64);
            }
        }));
        assert!(outcome.is_ok(), "seed {seed}, lies {lies}");
        let own = world.tally;
        all.changes += own.changes;
        all.unknown += own.unknown;
        all.segments += own.segments;
        all.failed += own.failed;
        all.crashes += own.crashes;
        all.refused += own.refused;
    }
    eprintln!("lies {lies}: {all:?}");
    all
}

#[test]
fn a_collection_is_its_model_whatever_the_disk_does() {
    let honest = run(0..60, false);
    assert!(honest.unknown > 0 && honest.segments > 0 && honest.failed > 0 && honest.refused == 0);
    let lying = run(0..30, true);
    assert!(lying.refused > 0 && lying.crashes > lying.refused);
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn a_collection_is_its_model_in_ten_thousand_seeds() {
    run(SEEDS, false);
    run(SEEDS.start..SEEDS.start + 2000, true);
}
