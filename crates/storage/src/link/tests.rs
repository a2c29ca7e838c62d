use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use stratann_core::peer::Run;
use stratann_core::peer::message::{FRAME_MAX, HEADER, Message, QueryId, VERSION, decode, frame_len};
use stratann_testing::addresses;

use super::greeting::{ANSWERED_BYTES, Agreed, GreetingError, NONCE_BYTES, PEERS, Versions};
use super::*;
use crate::ledger::{Ledger, Part};

mod driver;
mod measured;

use self::driver::TestDriver;

const BUILD: u64 = 0xB0;
const SECRET: &[u8] = b"between us";
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, PartialEq)]
enum LinkEvent {
    Frame(u8, Vec<u8>),
    Up(u8),
    Down(u8),
}

struct TestReceiver {
    build: u64,
    events: Mutex<Sender<LinkEvent>>,
    // Takes the connections over, where there is one.
    driver: Option<TestDriver>,
    // Bytes that may be reserved for a frame.
    room: u64,
}

impl TestReceiver {
    fn new(build: u64, events: Sender<LinkEvent>) -> TestReceiver {
        TestReceiver { build, events: Mutex::new(events), driver: None, room: u64::MAX }
    }
}

impl LinkReceiver for TestReceiver {
    fn frame(&self, server: u8, frame: &[u8]) -> Result<(), Refused> {
        decode(frame, self.build)?;
        let _ = lock(&self.events).send(LinkEvent::Frame(server, frame.to_vec()));
        Ok(())
    }

    fn take_over(&self, connection: Inbound) -> Result<(), Box<Inbound>> {
        match &self.driver {
            Some(driver) => driver.give(connection),
            None => Err(Box::new(connection)),
        }
    }

    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        if bytes > self.room {
            return None;
        }
        Ledger::new(None).reserve(Part::Batons, bytes)
    }

    fn up(&self, server: u8, _: Agreed) {
        let _ = lock(&self.events).send(LinkEvent::Up(server));
    }

    fn down(&self, server: u8) {
        let _ = lock(&self.events).send(LinkEvent::Down(server));
    }
}

struct Node {
    link: Link,
    events: Receiver<LinkEvent>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Node {
    fn start(server: u8, listen: SocketAddr, peers: &[SocketAddr], secret: &[u8], build: u64) -> Node {
        Node::with_tls(server, listen, peers, (secret, build), None)
    }

    fn with_tls(
        server: u8,
        listen: SocketAddr,
        peers: &[SocketAddr],
        build: (&[u8], u64),
        tls: Option<Tls>,
    ) -> Node {
        Node::with(server, listen, (peers, tls), build, |receiver| receiver)
    }

    /// A node whose receiver is changed first.
    fn with(
        server: u8,
        listen: SocketAddr,
        (peers, tls): (&[SocketAddr], Option<Tls>),
        (secret, build): (&[u8], u64),
        change: impl FnOnce(TestReceiver) -> TestReceiver,
    ) -> Node {
        let options = LinkOptions { secret: secret.to_vec(), tls, build, ..options(server, listen, peers) };
        Node::of(options, change)
    }

    fn of(options: LinkOptions, change: impl FnOnce(TestReceiver) -> TestReceiver) -> Node {
        let node = Node::opened(options, change);
        node.link.dial();
        node
    }

    /// A node that does not dial yet.
    fn opened(options: LinkOptions, change: impl FnOnce(TestReceiver) -> TestReceiver) -> Node {
        let (sender, events) = channel();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = said.clone();
        let options =
            LinkOptions { log: Arc::new(move |line| lock(&lines).push(line.to_string())), ..options };
        let link = Link::open(options, Arc::new(change(TestReceiver::new(BUILD, sender)))).unwrap();
        Node { link, events, said }
    }

    fn next(&self) -> LinkEvent {
        let next = self.events.recv_timeout(PATIENCE);
        next.unwrap_or_else(|_| panic!("nothing happens: {:?}", lock(&self.said)))
    }

    fn waits_for_line(&self, word: &str) {
        let start = Instant::now();
        while !lock(&self.said).iter().any(|line| line.contains(word)) {
            assert!(start.elapsed() < PATIENCE, "{word:?} is not logged: {:?}", lock(&self.said));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn options(server: u8, listen: SocketAddr, peers: &[SocketAddr]) -> LinkOptions {
    LinkOptions {
        server,
        build: BUILD,
        listen,
        peers: peers.iter().map(SocketAddr::to_string).collect(),
        secret: SECRET.to_vec(),
        tls: None,
        versions: Versions::default(),
        queue_bytes: 1 << 20,
        measured_every: None,
        log: Arc::new(|_| {}),
    }
}

fn pair() -> (Node, Node) {
    let at = addresses(2);
    let nodes = (Node::start(0, at[0], &at, SECRET, BUILD), Node::start(1, at[1], &at, SECRET, BUILD));
    assert_eq!((nodes.0.next(), nodes.1.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
    nodes
}

/// A frame with `length` bytes of state.
fn frame(number: u64, length: usize) -> Vec<u8> {
    let run = Run { query: QueryId { origin: 0, incarnation: 1, number }, attempt: 0, job: None };
    let state = vec![number as u8; length];
    let mut out = Vec::new();
    Message::Answer { run, visited: 0, state }.encode(BUILD, 0, &mut out);
    out
}

/// Its owner could not send anything yet.
#[test]
fn no_server_is_up_before_the_link_dials() {
    let at = addresses(2);
    let a = Node::opened(options(0, at[0], &at), |receiver| receiver);
    let b = Node::start(1, at[1], &at, SECRET, BUILD);
    let start = Instant::now();
    while !b.link.send(0, &frame(1, 10)) {
        assert!(start.elapsed() < PATIENCE, "it is not reached: {:?}", lock(&b.said));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(a.next(), LinkEvent::Frame(1, frame(1, 10)));
    assert!(a.events.try_recv().is_err() && b.events.try_recv().is_err(), "a server came up");
    a.link.dial();
    a.link.dial();
    assert_eq!((a.next(), b.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
    assert!(a.events.recv_timeout(Duration::from_millis(50)).is_err(), "it came up again");
}

#[test]
fn frames_come_whole_and_in_order_in_fewer_writes_than_frames() {
    let (a, b) = pair();
    frames_come_whole_and_in_order(&a, &b);
}

fn frames_come_whole_and_in_order(a: &Node, b: &Node) {
    let length = |n: u64| if n % 500 == 3 { 300_000 } else { n as usize % 1000 };
    for n in 0..2000 {
        while !a.link.queue(1, &frame(n, length(n))) {
            a.link.write_now();
            std::thread::sleep(Duration::from_millis(1));
        }
        if n % 20 == 19 {
            a.link.write_now();
        }
    }
    for n in 0..2000 {
        assert_eq!(b.next(), LinkEvent::Frame(0, frame(n, length(n))));
    }
    let traffic = a.link.traffic();
    assert_eq!(traffic.frames, 2000);
    assert!(traffic.writes < 1000, "{traffic:?}");
    // The longest frame finds room although it is longer than the queue.
    let long = frame(1, FRAME_MAX - 200);
    assert!(a.link.send(1, &long) && b.next() == LinkEvent::Frame(0, long));
    assert!(!a.link.send(7, &frame(0, 1)), "there is no server 7");
}

#[test]
fn frames_that_may_be_late_keep_their_order_and_arrive() {
    let (a, b) = pair();
    for n in (0..100).step_by(2) {
        assert!(a.link.queue_late(1, &frame(n, 10)));
        assert!(a.link.send(1, &frame(n + 1, 10)));
    }
    assert!(a.link.queue_late(1, &frame(100, 10)));
    a.link.write_late();
    for n in 0..=100 {
        assert_eq!(b.next(), LinkEvent::Frame(0, frame(n, 10)));
    }
}

/// Threads that queue and write at the same time: no frame stays behind, and none is torn.
#[test]
fn frames_of_many_threads_all_arrive() {
    let (a, b) = pair();
    frames_of_many_threads_arrive(&a, &b);
}

fn frames_of_many_threads_arrive(a: &Node, b: &Node) {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let link = &a.link;
            scope.spawn(move || {
                for n in 0..EACH {
                    let number = thread * EACH + n;
                    let own = frame(number, if n % 100 == 7 { 200_000 } else { 50 });
                    while !link.send(1, &own) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    let mut next = [0; THREADS as usize];
    for _ in 0..THREADS * EACH {
        let LinkEvent::Frame(0, got) = b.next() else { panic!("a frame") };
        let (Message::Answer { run, .. }, _) = decode(&got, BUILD).unwrap() else { panic!("an answer") };
        let number = run.query.number;
        let of_thread = &mut next[(number / EACH) as usize];
        assert_eq!(number % EACH, *of_thread, "frames of a thread keep their order");
        *of_thread += 1;
    }
}

#[test]
fn a_server_that_goes_is_missed_and_one_that_comes_back_is_greeted() {
    let at = addresses(2);
    let a = Node::start(0, at[0], &at, SECRET, BUILD);
    for _ in 0..3 {
        let b = Node::start(1, at[1], &at, SECRET, BUILD);
        assert_eq!((a.next(), b.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
        // The connection to the old one may be found dead only now: a frame is lost with it, and the new one is up
        // twice.
        let start = Instant::now();
        loop {
            a.link.send(1, &frame(9, 10));
            match b.events.recv_timeout(Duration::from_millis(300)) {
                Ok(event) => break assert_eq!(event, LinkEvent::Frame(0, frame(9, 10))),
                Err(_) => assert!(start.elapsed() < PATIENCE, "the frame does not arrive"),
            }
        }
        drop(b);
        let mut last = a.next();
        while let Ok(event) = a.events.recv_timeout(Duration::from_millis(300)) {
            last = event;
        }
        assert_eq!(last, LinkEvent::Down(1));
        assert!(!a.link.send(1, &frame(9, 10)), "no server receives it");
    }
}

#[test]
fn another_secret_build_or_number_is_refused_and_logged() {
    for (secret, build, word) in [(b"stolen".as_slice(), BUILD, "secret"), (SECRET, BUILD + 1, "build")] {
        let at = addresses(2);
        let a = Node::start(0, at[0], &at, SECRET, BUILD);
        let b = Node::start(1, at[1], &at, secret, build);
        a.waits_for_line(word);
        b.waits_for_line(word);
        assert!(a.events.try_recv().is_err() && b.events.try_recv().is_err(), "a server came up");
    }
    // The list of peers is wrong: it has the address of server 1 for server 2.
    let at = addresses(2);
    let a = Node::start(0, at[0], &[at[0], at[1], at[1]], SECRET, BUILD);
    let _b = Node::start(1, at[1], &[at[0], at[1], at[1]], SECRET, BUILD);
    assert_eq!(a.next(), LinkEvent::Up(1));
    a.waits_for_line("list of peers");
}

/// A connection to `node` that has greeted as server 1 would.
fn greeted(node: &Node) -> TcpStream {
    let mut stream = TcpStream::connect(node.link.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let me = greeting::Identity {
        server: 1,
        servers: 2,
        build: BUILD,
        secret: SECRET,
        versions: Versions::default(),
    };
    greeting::dial(&me, 0, &mut stream).unwrap();
    stream
}

/// Greets the dialing server over an accepted connection.
fn answer(me: greeting::Identity<'_>, stream: &mut TcpStream) -> Result<(), GreetingError> {
    let opening = greeting::opening(&PEERS, me.versions)?;
    stream.write_all(&opening)?;
    let mut received = [0; ANSWERED_BYTES];
    stream.read_exact(&mut received)?;
    let own = (BUILD, me.versions);
    let (reply, verdict) = greeting::judge(&PEERS, SECRET, (&opening, &received), own, |_| Some((me, ())));
    stream.write_all(&reply)?;
    verdict.map(drop)
}

fn is_closed(mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let read = loop {
        match stream.read(&mut [0; 64]) {
            // The end of a ring interrupts its thread.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    // The end, or a reset where bytes were left unread.
    assert!(matches!(read, Ok(0) | Err(_)));
}

#[test]
fn bytes_that_make_no_sense_close_their_connection_and_nothing_else() {
    let (a, b) = pair();
    let good = frame(1, 50);
    let mut flipped = good.clone();
    flipped[40] ^= 1;
    let mut oversized = good.clone();
    oversized[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut old = good.clone();
    old[..4].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let noise = vec![0xA5; 5000];
    let mut other_build = Vec::new();
    let query = QueryId { origin: 1, incarnation: 1, number: 1 };
    Message::<Vec<u8>>::Release { query }.encode(BUILD + 1, 0, &mut other_build);
    for bytes in [&flipped, &oversized, &old, &noise, &other_build] {
        let mut stream = greeted(&a);
        // Here and below, the server may close before it has read everything.
        let _ = stream.write_all(bytes);
        is_closed(stream);
    }
    a.waits_for_line("refused: its checksum");
    a.waits_for_line("refused: its length");
    a.waits_for_line(&format!("refused: it is of version {}", VERSION + 1));
    a.waits_for_line("refused: it is of another build");
    assert_eq!(a.link.traffic().refused, 5, "each of them is counted");
    // An invalid greeting, and one that ends early.
    let request = [&b"GET / HTTP/1.1\r\n\r\n"[..], &[b'.'; 80]].concat();
    for bytes in [&request[..], b"STRA"] {
        let mut stream = TcpStream::connect(a.link.address()).unwrap();
        let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() <= 8 + 4 + 8 + NONCE_BYTES, "a stranger learns nothing more");
    }
    a.waits_for_line("no stratann server");
    // The real server dials again after its connection was replaced.
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE);
        if b.link.send(0, &good)
            && matches!(a.events.recv_timeout(Duration::from_millis(300)), Ok(LinkEvent::Frame(1, _)))
        {
            break;
        }
    }
}

#[test]
fn a_recorded_greeting_is_worth_nothing() {
    let at = addresses(1);
    let a = Node::start(0, at[0], &[at[0], at[0]], SECRET, BUILD);
    let recorded = {
        let mut tape = Tape { stream: TcpStream::connect(at[0]).unwrap(), said: Vec::new() };
        let me = greeting::Identity {
            server: 1,
            servers: 2,
            build: BUILD,
            secret: SECRET,
            versions: Versions::default(),
        };
        greeting::dial(&me, 0, &mut tape).unwrap();
        tape.said
    };
    let mut stream = TcpStream::connect(at[0]).unwrap();
    stream.write_all(&recorded).unwrap();
    let mut heard = [0; 8 + 4 + 8 + NONCE_BYTES + 1];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard.last(), Some(&1), "the verdict is: another secret");
    a.waits_for_line("another secret");
}

struct Tape {
    stream: TcpStream,
    said: Vec<u8>,
}

impl Read for Tape {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.read(bytes)
    }
}

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.said.extend_from_slice(bytes);
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn a_server_that_does_not_read_fills_its_own_queue_alone() {
    let at = addresses(3);
    let a = Node::start(0, at[0], &at, SECRET, BUILD);
    let b = Node::start(1, at[1], &at, SECRET, BUILD);
    // Server 2 greets and then never reads.
    let deaf = TcpListener::bind(at[2]).unwrap();
    let deaf = std::thread::spawn(move || {
        let me = greeting::Identity {
            server: 2,
            servers: 3,
            build: BUILD,
            secret: SECRET,
            versions: Versions::default(),
        };
        let mut kept = Vec::new();
        while kept.len() < 2 {
            let (mut stream, _) = deaf.accept().unwrap();
            if answer(me.clone(), &mut stream).is_ok() {
                kept.push(stream);
            }
        }
        kept
    });
    assert_eq!(a.next(), LinkEvent::Up(1));
    let kept = deaf.join().unwrap();
    let big = frame(5, 100_000);
    let start = Instant::now();
    while a.link.send(2, &big) || a.link.traffic().dropped == 0 {
        assert!(start.elapsed() < PATIENCE, "a queue that nobody empties is full one day");
    }
    for n in 0..100 {
        assert!(a.link.send(1, &frame(n, 10)));
        loop {
            match b.next() {
                LinkEvent::Frame(0, got) => break assert_eq!(got, frame(n, 10)),
                other => assert_eq!(other, LinkEvent::Up(0)),
            }
        }
    }
    drop(kept);
}

/// More strangers than there are places for servers: a server is still greeted.
#[test]
fn silent_strangers_keep_no_server_out() {
    let at = addresses(2);
    let a = Node::start(0, at[0], &at, SECRET, BUILD);
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(at[0]).unwrap()).collect();
    let b = Node::start(1, at[1], &at, SECRET, BUILD);
    assert_eq!((a.next(), b.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
    drop(silent);
}

#[test]
fn a_silent_server_counts_as_dead_and_stopping_does_not_wait_for_it() {
    let at = addresses(2);
    let a = Node::start(0, at[0], &at, SECRET, BUILD);
    let mute = TcpListener::bind(at[1]).unwrap();
    let me = greeting::Identity {
        server: 1,
        servers: 2,
        build: BUILD,
        secret: SECRET,
        versions: Versions::default(),
    };
    let dialed = greeted(&a);
    let (mut heard, _) = mute.accept().unwrap();
    answer(me, &mut heard).unwrap();
    assert_eq!(a.next(), LinkEvent::Up(1));
    assert_eq!(a.next(), LinkEvent::Down(1));
    a.waits_for_line("nothing came for");
    drop(dialed);
    let header = [0u8; HEADER];
    assert!(frame_len(&header).is_err(), "a frame of zeros is none");
    let start = Instant::now();
    a.link.stop();
    assert!(start.elapsed() < PATIENCE);
}

/// Files of an authority and of two servers that it signed, one for loopback and one for another host; and a second
/// authority's.
#[cfg(feature = "tls")]
fn certificates(folder: &std::path::Path) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    for authority in ["ours", "theirs"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        std::fs::write(folder.join(format!("{authority}.pem")), root.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for (name, host) in [("here", "127.0.0.1"), ("there", "elsewhere.example")] {
            let key = KeyPair::generate().unwrap();
            let signed =
                CertificateParams::new(vec![host.to_string()]).unwrap().signed_by(&key, &issuer).unwrap();
            std::fs::write(folder.join(format!("{authority}-{name}.pem")), signed.pem()).unwrap();
            std::fs::write(folder.join(format!("{authority}-{name}.key")), key.serialize_pem()).unwrap();
        }
    }
}

#[cfg(feature = "tls")]
#[test]
fn under_tls_both_sides_need_a_certificate_for_their_host() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let named = |count| stratann_testing::addresses_at(std::net::Ipv4Addr::LOCALHOST, count);
    let file = |name: &str| folder.path().join(name);
    let tls = |own: &str, authority: &str| {
        Tls::read(
            &file(&format!("{own}.pem")),
            &file(&format!("{own}.key")),
            &file(&format!("{authority}.pem")),
        )
        .unwrap()
    };
    let start = |server: usize, at: &[SocketAddr], tls: Option<Tls>| {
        Node::with_tls(server as u8, at[server], at, (SECRET, BUILD), tls)
    };
    let at = named(2);
    let (a, b) =
        (start(0, &at, Some(tls("ours-here", "ours"))), start(1, &at, Some(tls("ours-here", "ours"))));
    assert_eq!((a.next(), b.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
    for n in 0..100 {
        assert!(a.link.send(1, &frame(n, 5000)));
        assert_eq!(b.next(), LinkEvent::Frame(0, frame(n, 5000)));
    }
    let again = named(2);
    let measuring = |server: usize| {
        measured::measured(server as u8, again[server], &again, Some(tls("ours-here", "ours")))
    };
    let (c, d) = (measuring(0), measuring(1));
    measured::waits_for(&c, 1, |costs| costs.message_ns > 0.0 && costs.gbps > 0.0);
    measured::waits_for(&d, 0, |costs| costs.message_ns > 0.0 && costs.gbps > 0.0);
    // A certificate of another authority, one for another host, and none.
    for other in [Some(tls("theirs-here", "theirs")), Some(tls("ours-there", "ours")), None] {
        let at = named(2);
        let (a, b) = (start(0, &at, Some(tls("ours-here", "ours"))), start(1, &at, other));
        a.waits_for_line("server 1 at");
        assert!(a.events.try_recv().is_err() && b.events.try_recv().is_err(), "a server came up");
    }
    let own = |name: &str| Tls::read(&file(name), &file("ours-here.key"), &file("ours.pem"));
    assert!(own("missing.pem").unwrap_err().message.contains("missing.pem"));
    assert!(own("ours-here.key").unwrap_err().message.contains("no certificate"));
    assert!(own("ours-there.pem").is_err(), "the key belongs to another certificate");
}

#[test]
fn links_of_two_builds_share_an_address_and_keep_apart() {
    let (a, b) = pair();
    const NEXT: u64 = BUILD + 1;
    let beside = |node: &Node, server: u8, peers: &[SocketAddr]| {
        let (sender, events) = channel();
        let options = LinkOptions { build: NEXT, ..options(server, peers[usize::from(server)], peers) };
        let link = node.link.beside(options, Arc::new(TestReceiver::new(BUILD + 1, sender))).unwrap();
        link.dial();
        (link, events)
    };
    let at = [a.link.address(), b.link.address()];
    let (new_a, heard_a) = beside(&a, 0, &at);
    // The other server does not serve that build yet: it refuses, and is asked again.
    b.waits_for_line("another build");
    let (new_b, heard_b) = beside(&b, 1, &at);
    assert_eq!(heard_a.recv_timeout(PATIENCE), Ok(LinkEvent::Up(1)));
    assert_eq!(heard_b.recv_timeout(PATIENCE), Ok(LinkEvent::Up(0)));
    let of_next = |number: u64| {
        let mut out = Vec::new();
        let query = QueryId { origin: 0, incarnation: 1, number };
        Message::<Vec<u8>>::Release { query }.encode(NEXT, 0, &mut out);
        out
    };
    assert!(a.link.send(1, &frame(1, 10)) && new_a.send(1, &of_next(2)));
    assert_eq!(b.next(), LinkEvent::Frame(0, frame(1, 10)));
    assert_eq!(heard_b.recv_timeout(PATIENCE), Ok(LinkEvent::Frame(0, of_next(2))));
    // The old build goes; the address stays as long as any link needs it.
    drop(b.link);
    assert_eq!(a.next(), LinkEvent::Down(1));
    drop(a.link);
    assert!(new_b.send(0, &of_next(3)));
    assert_eq!(heard_a.recv_timeout(PATIENCE), Ok(LinkEvent::Frame(1, of_next(3))));
    drop((new_a, new_b));
    assert!(at.iter().all(|address| TcpListener::bind(address).is_ok()), "both addresses are free again");
}

#[test]
fn the_newest_common_versions_are_agreed() {
    let versions = |frames, states| Versions { frames, states };
    let own = versions((5, 6), (9, 10));
    for (theirs, expected) in [
        (versions((5, 6), (9, 10)), Some((6, 10))),
        (versions((5, 5), (8, 9)), Some((5, 9))),
        (versions((6, 7), (10, 12)), Some((6, 10))),
        (versions((3, 4), (9, 10)), None),
        (versions((5, 6), (11, 12)), None),
        // What makes no sense agrees with nothing.
        (versions((7, 0), (9, 10)), None),
    ] {
        for (one, other) in [(own, theirs), (theirs, own)] {
            let agreed = one.agree(&other).map(|agreed| (agreed.frames as u16, agreed.states as u16));
            assert_eq!(agreed, expected, "{one} and {other}");
        }
    }
}

#[test]
fn a_server_without_a_common_version_is_refused_with_the_reason() {
    let at = addresses(1);
    let a = Node::start(0, at[0], &[at[0], at[0]], SECRET, BUILD);
    let newer = Versions { states: (90, 91), ..Versions::default() };
    let me = greeting::Identity { server: 1, servers: 2, build: BUILD, secret: SECRET, versions: newer };
    let mut stream = TcpStream::connect(at[0]).unwrap();
    let refused = greeting::dial(&me, 0, &mut stream).unwrap_err();
    assert!(
        matches!(&refused, greeting::GreetingError::Versions(v) if *v == Versions::default()),
        "{refused}"
    );
    is_closed(stream);
    a.waits_for_line("states 90 to 91");
    a.waits_for_line("upgrade from one version to the next");
}
