//! A load while others work: writers of the load before change nothing in the new one, and readers follow.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use stratann_params::build::RemoteOptions;

use common::{Set, clustered, quick};
use stratann_core::format::region::{SUPERBLOCK_BYTES, Superblock};
use stratann_core::remote_protocol::{
    Answer, Delete, Deleted, Fault, Groups, Headers, Insert, Inserted, Line, NewGroup, NewVector, Places,
    Rebuild, RebuildLimits, Rebuilt, Step,
};
use stratann_engine::build::{IndexKind, KindOptions, build};
use stratann_engine::index::{Index, OpenOptions, UpdateOptions};
use stratann_engine::memory_nodes::{Loaded, load};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::serve::{MemoryNodes, Question, ServeOptions, Server, Versions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;
use stratann_storage::remote_memory::{Credentials, Node, NodeId, NodeOptions, Nodes, Place};
use tempfile::TempDir;

const REGION_BYTES: u64 = 2 << 20;
const DIM: usize = 16;

fn built(dim: usize, seed: u64) -> (TempDir, Set) {
    let set = Set::new(DType::F32, dim, &clustered(600, dim, 6, seed));
    let own = RemoteOptions { partitions: Some(6), m: 8, ef_construction: 40, ..RemoteOptions::default() };
    let dir = tempfile::tempdir().unwrap();
    let options = stratann_engine::build::BuildOptions {
        kind: KindOptions::RemoteHnsw(own),
        ..quick(IndexKind::RemoteHnsw, Metric::L2)
    };
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    (dir, set)
}

fn node(number: u8, place: Place) -> Node {
    Node::start(NodeOptions {
        node: NodeId(number),
        region_bytes: REGION_BYTES,
        listen: "127.0.0.1:0".parse().unwrap(),
        secret: vec![7; 32],
        tls: None,
        place,
        connections_max: 64,
        log: Arc::new(|_| {}),
    })
    .unwrap()
}

fn credentials() -> Credentials {
    Credentials::new(vec![7; 32], None)
}

/// Two nodes, and how to reach them.
fn start(is_shared: bool) -> (Vec<Node>, Vec<String>) {
    let name = |number: u8| format!("stratann-load-{number}-{}", std::process::id());
    let place = |number| if is_shared { Place::Shared(name(number)) } else { Place::Memory };
    let nodes: Vec<Node> = (0..2).map(|number| node(number, place(number))).collect();
    let tcp = nodes.iter().map(|node| node.address().to_string());
    let addresses = match is_shared {
        true => (0..2).map(|number| format!("shm:{}", name(number))).collect(),
        false => tcp.collect(),
    };
    (nodes, addresses)
}

fn loaded(folder: &Path, addresses: &[String]) -> Loaded {
    load(folder, addresses, &credentials(), &Quiet).unwrap()
}

fn opened(addresses: &[String]) -> Index {
    Index::open_memory(addresses, &credentials(), OpenOptions::default()).unwrap()
}

fn options() -> SearchOptions {
    SearchOptions { effort: Effort::Nprobe(6, None, None), threads: 1, ..SearchOptions::default() }
}

fn content(addresses: &[String]) -> Vec<Vec<u8>> {
    let mut nodes = Nodes::new(addresses, &credentials()).unwrap();
    (0..2).map(|number| nodes.read(number, 0, REGION_BYTES).unwrap()).collect()
}

/// One change of a writer, a request at a time.
trait Change {
    fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<(), Fault>>;
}

impl Change for Insert {
    fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<(), Fault>> {
        match Insert::step(self, places, answers) {
            Step::Done(Ok(Inserted::Done { .. })) => Step::Done(Ok(())),
            Step::Done(Ok(other)) => panic!("{other:?}"),
            Step::Done(Err(fault)) => Step::Done(Err(fault)),
            Step::Ask(ops) => Step::Ask(ops),
            Step::Pause => Step::Pause,
        }
    }
}

impl Change for Delete {
    fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<(), Fault>> {
        match Delete::step(self, places, answers) {
            Step::Done(Ok(Deleted::Done { .. })) => Step::Done(Ok(())),
            Step::Done(Ok(other)) => panic!("{other:?}"),
            Step::Done(Err(fault)) => Step::Done(Err(fault)),
            Step::Ask(ops) => Step::Ask(ops),
            Step::Pause => Step::Pause,
        }
    }
}

/// A rebuild that gives the new version the bytes of the old one.
struct Copied(Rebuild, [u32; 2]);

impl Change for Copied {
    fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<(), Fault>> {
        match self.0.step(places, answers) {
            Step::Done(Ok(Rebuilt::Build(contents))) => {
                self.0.built(NewGroup { clusters: contents.clusters, members: self.1, capacity: 8 });
                self.step(places, Vec::new())
            }
            Step::Done(Ok(Rebuilt::Published { .. })) => Step::Done(Ok(())),
            Step::Done(Ok(other)) => panic!("{other:?}"),
            Step::Done(Err(fault)) => Step::Done(Err(fault)),
            Step::Ask(ops) => Step::Ask(ops),
            Step::Pause => Step::Pause,
        }
    }
}

/// State of a writer once it has read the headers.
struct Writer {
    nodes: Nodes,
    places: Places,
    seen: Groups,
}

impl Writer {
    fn new(addresses: &[String]) -> Writer {
        let mut nodes = Nodes::new(addresses, &credentials()).unwrap();
        let superblock =
            |number| Superblock::newest(&nodes.read(number, 0, 2 * SUPERBLOCK_BYTES).unwrap()).unwrap();
        let places = Places { nodes: [0, 1].map(superblock).to_vec(), vector_bytes: 4 * DIM };
        let (mut headers, mut line) = (Headers::new(Groups::default()), Line::new(9));
        let seen = nodes.run(|answers| headers.step(&places, &mut line, answers)).unwrap().groups;
        Writer { nodes, places, seen }
    }

    fn change(&self, which: usize) -> Box<dyn Change> {
        // A group of each node has its turn.
        let on =
            |node| self.seen.groups.iter().position(|own| own.descriptor.at.node() == node).unwrap() as u32;
        let vector = NewVector {
            id: 5,
            cluster: 2 * on(1),
            group: on(1),
            side: 0,
            inverse_norm: 1.0,
            vector: vec![0; 4 * DIM],
            is_new: which == 0,
        };
        match which {
            0 | 1 => Box::new(Insert::new(vector, &self.seen)),
            2 => Box::new(Delete::new(5, &self.seen)),
            _ => {
                let own = self.seen.groups[on(1) as usize].descriptor;
                let limits = RebuildLimits {
                    rebuilder: 9,
                    patience: 3,
                    group_bytes: own.bytes_with_marks(self.places.nodes[0].record_bytes),
                };
                Box::new(Copied(
                    Rebuild::new(limits, on(1), &self.seen),
                    own.clusters.map(|place| place.members),
                ))
            }
        }
    }
}

/// Runs so many requests of a change. Returns its end, if that came, or the answers to give it next.
fn requests(
    writer: &mut Writer,
    change: &mut dyn Change,
    most: usize,
    first: Vec<Answer>,
) -> Result<Result<(), Fault>, Vec<Answer>> {
    let (mut answers, mut left) = (first, most);
    loop {
        match change.step(&writer.places, std::mem::take(&mut answers)) {
            Step::Done(end) => return Ok(end),
            Step::Pause => {}
            Step::Ask(ops) => {
                answers = writer.nodes.ask(ops);
                left -= 1;
                if left == 0 {
                    return Err(answers);
                }
            }
        }
    }
}

/// Stops a writer after each of its requests, loads again, and lets it go on.
#[test]
fn a_writer_that_was_stopped_changes_nothing_of_the_next_load() {
    let (dir, _) = built(DIM, 1);
    for is_shared in [false, true] {
        let (_nodes, addresses) = start(is_shared);
        let mut stops = 0;
        for which in 0..4 {
            for at in 1.. {
                let first = loaded(dir.path(), &addresses);
                let mut writer = Writer::new(&addresses);
                let mut change = writer.change(which);
                let Err(answers) = requests(&mut writer, change.as_mut(), at, Vec::new()) else { break };
                let second = loaded(dir.path(), &addresses);
                assert_ne!(first.load, second.load);
                let before = content(&addresses);
                let end = requests(&mut writer, change.as_mut(), usize::MAX, answers);
                // Whose last request was answered before the load has made its change in the load before.
                match end.unwrap() {
                    Ok(()) => {}
                    Err(fault) => {
                        assert!(matches!(fault, Fault::Lost(_)), "{fault:?}");
                        let why = writer.nodes.last_error().unwrap().to_string();
                        assert!(why.contains(&format!("load {:016x} now", second.load)), "{why}");
                        assert!(why.contains(&format!("load {:016x} was open", first.load)), "{why}");
                        stops += 1;
                    }
                }
                assert!(before == content(&addresses), "change {which} after request {at}, shm {is_shared}");
            }
        }
        assert!(stops > 8, "{stops}");
    }
}

/// Writers work while loads follow each other: what is acknowledged last is in the last load, or the writer was refused.
#[test]
fn a_load_refuses_the_writers_of_the_one_before() {
    let (dir, set) = built(DIM, 1);
    let (_nodes, addresses) = start(false);
    loaded(dir.path(), &addresses);
    let writer = opened(&addresses);
    writer.upsert(&[9000], set.row(0), &UpdateOptions::default(), &Quiet).unwrap();
    let next = loaded(dir.path(), &addresses);
    for _ in 0..2 {
        let refused = writer.upsert(&[9001], set.row(1), &UpdateOptions::default(), &Quiet).unwrap_err();
        assert!(refused.acknowledged.is_empty());
        assert!(refused.to_string().contains(&format!("{:016x}", next.load)), "{refused}");
    }
    assert!(writer.replaced().is_some());
    let again = writer.reopened().unwrap();
    again.upsert(&[9002], set.row(2), &UpdateOptions::default(), &Quiet).unwrap();
    let report = again.verify_memory(&Quiet).unwrap();
    assert!(report.report.violations.is_empty(), "{report:?}");
    let found = again.search(set.row(2), &SearchOptions { k: 600, ..options() }, &Quiet).unwrap();
    assert!(found.ids.contains(&9002) && !found.ids.contains(&9000) && !found.ids.contains(&9001));
}

#[test]
fn an_open_index_finds_out_and_a_load_of_other_vectors_is_named() {
    let (first, (second, set), (other, _)) = (built(DIM, 1).0, built(DIM, 2), built(8, 3));
    let (_nodes, addresses) = start(false);
    loaded(first.path(), &addresses);
    let index = opened(&addresses);
    index.search(set.row(0), &options(), &Quiet).unwrap();
    let load = loaded(second.path(), &addresses).load;
    let refused = index.search(set.row(0), &options(), &Quiet).unwrap_err();
    assert!(refused.message.contains(&format!("{load:016x}")), "{refused}");
    let next = index.reopened().unwrap();
    index.check_successor(&next).unwrap();
    let found = next.search(set.row(0), &options(), &Quiet).unwrap();
    assert_eq!((found.ids[0], found.distances[0]), (0, 0.0));
    loaded(other.path(), &addresses);
    let unfit = next.check_successor(&next.reopened().unwrap()).unwrap_err();
    assert!(unfit.message.contains("8 × f32") && unfit.message.contains("16 × f32"), "{unfit}");
}

/// Asks a server one query.
fn ask(server: &Server, vector: &[u8]) -> Result<Vec<u64>, String> {
    let (sender, answer) = channel();
    let question = Question {
        vector,
        params: server.params(&options()).unwrap(),
        filter: None,
        timeout: Duration::from_secs(20),
        partial: false,
        client: 0,
        request: 0,
        is_batch: false,
    };
    server.ask(question, Box::new(move |answer| drop(sender.send(answer))));
    let answer = answer.recv().unwrap();
    answer.map(|answer| answer.ids).map_err(|why| format!("{why:?}"))
}

#[test]
fn a_server_follows_a_load_and_tells_the_truth_meanwhile() {
    let (first, (second, set), (other, _)) = (built(DIM, 1).0, built(DIM, 2), built(8, 3));
    let (_nodes, addresses) = start(false);
    loaded(first.path(), &addresses);
    let memory = Some(MemoryNodes { addresses: addresses.clone(), credentials: credentials() });
    let options = ServeOptions { memory, threads: 1, ..ServeOptions::default() };
    let versions = Versions::of(Server::start(options).unwrap(), 0, Arc::new(|_| {}));
    ask(&versions.current(), set.row(0)).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let load = loaded(second.path(), &addresses).load;
    // Before it follows it answers nothing, and says why.
    let refused = ask(&versions.current(), set.row(0)).unwrap_err();
    assert!(refused.contains(&format!("{load:016x}")), "{refused}");
    assert!(!versions.status().is_complete);
    versions.follow_load();
    assert_eq!(ask(&versions.current(), set.row(0)).unwrap()[0], 0);
    assert!(versions.status().is_complete && versions.status().memory_lost.is_none());
    // A server that is not asked notices too. Vectors of another shape are no answer to its clients.
    loaded(other.path(), &addresses);
    wait("the server notices", &|| !versions.status().is_complete);
    versions.follow_load();
    let refused = ask(&versions.current(), set.row(0)).unwrap_err();
    assert!(refused.contains("8 × f32") && refused.contains("16 × f32"), "{refused}");
    assert!(!versions.status().is_complete);
    loaded(second.path(), &addresses);
    versions.follow_load();
    assert_eq!(ask(&versions.current(), set.row(0)).unwrap()[0], 0);
}
