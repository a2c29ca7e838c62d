//! Memory nodes and their back ends: the contract, and what goes wrong.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stratann_storage::remote_memory::{
    Credentials, MemoryError, Node, NodeId, NodeOptions, Place, Range, RemoteCounters, RemoteMemory,
    RemoteTier, conformance, connect, connect_one,
};
use stratann_storage::tier::{self, Buffer, Completion, FileId, Tier};

const SECRET: &[u8] = b"a key of memory nodes, 32 bytes!";
const REGION_BYTES: u64 = (4 << 20) + 5;

fn options(place: Place) -> NodeOptions {
    NodeOptions {
        node: NodeId(0),
        region_bytes: REGION_BYTES,
        listen: "127.0.0.1:0".parse().unwrap(),
        secret: SECRET.to_vec(),
        tls: None,
        place,
        connections_max: 64,
        log: Arc::new(|_| {}),
    }
}

fn credentials() -> Credentials {
    Credentials::new(SECRET.to_vec(), None)
}

fn dial(address: &str) -> Box<dyn RemoteMemory> {
    connect_one(address, &credentials()).unwrap()
}

fn segment_name(test: &str) -> String {
    format!("stratann-{test}-{}", std::process::id())
}

fn read(memory: &mut dyn RemoteMemory, offset: u64, bytes: usize) -> Result<Vec<u8>, MemoryError> {
    let mut into = vec![0; bytes];
    memory.read(&[Range { offset, bytes: bytes as u32 }], &mut into)?;
    Ok(into)
}

#[test]
fn tcp_conforms() {
    let node = Node::start(options(Place::Memory)).unwrap();
    let address = node.address().to_string();
    conformance::check(&|| dial(&address));
    node.stop().unwrap();
}

#[test]
fn shm_conforms_and_shares_its_region_with_tcp() {
    let name = segment_name("conforms");
    let node = Node::start(options(Place::Shared(name.clone()))).unwrap();
    let (shm, tcp) = (format!("shm:{name}"), node.address().to_string());
    conformance::check(&|| dial(&shm));
    conformance::check(&|| dial(&tcp));
    let turn = AtomicUsize::new(0);
    // Half of the connections by each back end.
    conformance::check(&|| {
        dial(if turn.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) { &shm } else { &tcp })
    });
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(format!("/dev/shm/{name}")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    node.stop().unwrap();
    assert!(!std::path::Path::new(&format!("/dev/shm/{name}")).exists());
}

fn remote_tier(addresses: &[String], depth: usize, doorbell: usize) -> (RemoteTier, Arc<RemoteCounters>) {
    let counters = Arc::new(RemoteCounters::default());
    let memories = connect(addresses, &credentials()).unwrap();
    (RemoteTier::new(memories, depth, doorbell, &counters).unwrap(), counters)
}

#[test]
fn a_remote_tier_conforms() {
    let sample = tier::conformance::sample(20);
    let name = segment_name("tier");
    for place in [Place::Memory, Place::Shared(name.clone())] {
        let is_shared = matches!(place, Place::Shared(_));
        let region_bytes = sample.len() as u64;
        let node = Node::start(NodeOptions { region_bytes, ..options(place) }).unwrap();
        let address = if is_shared { format!("shm:{name}") } else { node.address().to_string() };
        dial(&address).write(&[(0, &sample)]).unwrap();
        for (depth, doorbell) in [(1, 1), (5, 2), (64, 16)] {
            let (mut tier, _) = remote_tier(std::slice::from_ref(&address), depth, doorbell);
            tier::conformance::check(&mut tier, 20, depth);
            tier::conformance::check_waker(&mut tier);
        }
    }
}

fn wait_for(tier: &mut RemoteTier, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < count {
        tier.poll(true, &mut done).unwrap();
    }
    done.sort_by_key(|completion| completion.tag);
    done
}

fn buffer(bytes: usize) -> Buffer {
    let mut buffer = Buffer::new(bytes);
    buffer.show_exactly(bytes);
    buffer
}

/// Requests that are submitted between two starts are cut into doorbells, of each node for itself, and counted exactly.
#[test]
fn doorbells_are_cut_and_counted() {
    let start = |node| Node::start(NodeOptions { node: NodeId(node), ..options(Place::Memory) }).unwrap();
    let nodes = [start(0), start(1)];
    let mut addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
    // The order of the addresses does not matter.
    addresses.reverse();
    for (number, memory) in connect(&addresses, &credentials()).unwrap().iter_mut().enumerate() {
        assert_eq!(usize::from(memory.facts().node.0), number);
        memory.write(&[(0, &[number as u8 + 1; 8192])]).unwrap();
    }
    let (mut tier, counters) = remote_tier(&addresses, 64, 8);
    assert_eq!(tier.alignment(), 8);
    for tag in 0..20u64 {
        tier.submit(tag, FileId(tag % 2), 24 * tag, buffer(24));
    }
    assert_eq!(counters.round_trips(), 0);
    let done = wait_for(&mut tier, 20);
    assert_eq!((counters.round_trips(), counters.ranges(), counters.bytes()), (4, 20, 480));
    for completion in done {
        assert_eq!(completion.result.unwrap(), 24);
        assert_eq!(completion.buffer.bytes(), [(completion.tag % 2) as u8 + 1; 24]);
    }
    tier.submit(7, FileId(2), 0, buffer(8));
    assert!(wait_for(&mut tier, 1)[0].result.is_err(), "there is no node 2");
    let twice = [addresses[0].clone(), addresses[0].clone()];
    assert!(matches!(connect(&twice, &credentials()), Err(MemoryError::SameNode { node: 1, .. })));
}

#[test]
fn another_key_is_refused_and_named() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = lines.clone();
    let log: stratann_storage::link::Log = Arc::new(move |line| heard.lock().unwrap().push(line.to_string()));
    let node = Node::start(NodeOptions { log, ..options(Place::Memory) }).unwrap();
    let address = node.address().to_string();
    let wrong = Credentials::new(vec![1; 32], None);
    let error = connect_one(&address, &wrong).err().unwrap();
    assert_eq!(error, MemoryError::Key { address: address.clone() });
    assert!(error.to_string().contains("--key-file"));
    dial(&address).fetch_add(0, 1).unwrap();
    node.stop().unwrap();
    assert!(lines.lock().unwrap().iter().any(|line| line.contains("another key")), "the node says it too");
}

#[test]
fn what_is_no_memory_node_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        for greeting in [&b"HTTP/1.1 400 Bad Request\r\n\r\n and so on and so on"[..], b"STRATMEM\x09\0\0\0"]
        {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting).unwrap();
            stream.write_all(&[0; 64]).unwrap();
            let _ = stream.read(&mut [0; 1000]);
        }
    });
    for _ in 0..2 {
        let error = connect_one(&address, &credentials()).err().unwrap();
        assert!(matches!(&error, MemoryError::Version { .. }), "{error}");
    }
    server.join().unwrap();
    let nobody = connect_one(&address, &credentials()).err().unwrap();
    assert!(matches!(nobody, MemoryError::Disconnected { may_have_run: false, .. }), "{nobody}");
}

/// A node that comes back has another region: an error that says what to do.
#[test]
fn a_restarted_node_is_told_by_its_epoch() {
    let node = Node::start(options(Place::Memory)).unwrap();
    let address = node.address();
    let mut memory = dial(&address.to_string());
    memory.write(&[(0, b"here")]).unwrap();
    let expected = node.facts().epoch;
    node.stop().unwrap();
    let gone = read(memory.as_mut(), 0, 4).unwrap_err();
    assert!(matches!(gone, MemoryError::Disconnected { .. }), "{gone}");
    let again = Node::start(NodeOptions { listen: address, ..options(Place::Memory) }).unwrap();
    assert_ne!(again.facts().epoch, expected);
    let found = again.facts().epoch;
    let lost = MemoryError::EpochChanged { address: address.to_string(), expected, found };
    assert_eq!(eventually(memory.as_mut()), Err(lost.clone()));
    assert_eq!(memory.fetch_add(0, 1), Err(lost), "it stays an error");
}

/// Reads until the pauses between attempts are over.
fn eventually(memory: &mut dyn RemoteMemory) -> Result<Vec<u8>, MemoryError> {
    let start = Instant::now();
    loop {
        match read(memory, 0, 4) {
            Err(MemoryError::Disconnected { .. }) if start.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// A shm client whose node ended, and came back with another segment of that name.
#[test]
fn an_ended_segment_is_told() {
    let name = segment_name("ended");
    let node = Node::start(options(Place::Shared(name.clone()))).unwrap();
    let address = format!("shm:{name}");
    let mut memory = dial(&address);
    let expected = node.facts().epoch;
    let error = Node::start(options(Place::Shared(name.clone()))).err().unwrap();
    assert!(error.message.contains("in use"), "{}", error.message);
    node.stop().unwrap();
    assert!(matches!(memory.fetch_add(0, 1), Err(MemoryError::Disconnected { .. })));
    let again = Node::start(options(Place::Shared(name.clone()))).unwrap();
    let found = again.facts().epoch;
    let lost = MemoryError::EpochChanged { address: address.clone(), expected, found };
    assert_eq!(memory.fetch_add(0, 1), Err(lost));
    assert_eq!(dial(&address).fetch_add(0, 1), Ok(0));
    drop(again);
    let error = connect_one("shm:no-such-segment", &credentials()).err().unwrap();
    assert!(matches!(error, MemoryError::Disconnected { .. }), "{error}");
}

/// A segment that lies under a name, as one file of text says.
fn note(name: &str) -> (std::path::PathBuf, Vec<String>) {
    let path = std::path::Path::new("/dev/shm").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text.split_whitespace().map(str::to_string).collect())
}

/// Nobody can cut off the memory under those that have it mapped, and a file that is cut off names nothing.
#[test]
fn a_segment_cannot_be_cut_off() {
    let name = segment_name("cut");
    let node = Node::start(options(Place::Shared(name.clone()))).unwrap();
    let mut memory = dial(&format!("shm:{name}"));
    memory.write(&[(REGION_BYTES - 4, b"here")]).unwrap();
    let (path, fields) = note(&name);
    let region = format!("/proc/{}/fd/{}", fields[2], fields[3]);
    let region = std::fs::OpenOptions::new().write(true).open(region).unwrap();
    for length in [0, 4096, 1 << 40] {
        let refused = region.set_len(length).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{length}");
    }
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(read(memory.as_mut(), REGION_BYTES - 4, 4).unwrap(), b"here");
    let mut tcp = dial(&node.address().to_string());
    assert_eq!(read(tcp.as_mut(), REGION_BYTES - 4, 4).unwrap(), b"here");
    let error = connect_one(&format!("shm:{name}"), &credentials()).err().unwrap();
    assert!(matches!(&error, MemoryError::Version { why, .. } if why.contains("no segment")), "{error}");
    node.stop().unwrap();
}

/// Segments that others could have made or could change are not trusted, whoever names them.
#[test]
fn a_segment_of_somebody_else_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let name = segment_name("foreign");
    let _node = Node::start(options(Place::Shared(name.clone()))).unwrap();
    let address = format!("shm:{name}");
    let refused = |expected: &str| {
        let error = connect_one(&address, &credentials()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let other = connect_one(&address, &Credentials::new(vec![1; 32], None)).err().unwrap();
    assert_eq!(other, MemoryError::Key { address: address.clone() });
    let (path, fields) = note(&name);
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    for writable in [0o620, 0o602] {
        mode(writable);
        refused("other users can write it");
    }
    mode(0o600);
    let text = std::fs::read_to_string(&path).unwrap();
    // Memory that is not sealed: a file of this process.
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(8 << 20).unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&plain);
    for (what, expected) in [
        (format!("STRATSHM 2 {} {descriptor} {}", fields[2], fields[4]), "no memory of a memory node"),
        (format!("STRATSHM 2 {} {} {:016x}", fields[2], fields[3], 7), "do not belong together"),
        (format!("STRATSHM 2 999999999 {} {}", fields[3], fields[4]), "has ended"),
        (format!("STRATSHM 1 {} {} {}", fields[2], fields[3], fields[4]), "another version"),
        ("STRATSHM\x01\0\0\0\0\0\0\0".to_string() + &"\0".repeat(9000), "another version"),
        ("some text".to_string(), "no segment of a memory node"),
    ] {
        std::fs::write(&path, what).unwrap();
        refused(expected);
    }
    std::fs::write(&path, text).unwrap();
    dial(&address);
    // Only the superuser can give a file away.
    if std::os::unix::fs::chown(&path, Some(1), None).is_ok() {
        refused("belongs to user 1");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    let link = format!("{name}-link");
    std::os::unix::fs::symlink(&path, format!("/dev/shm/{link}")).unwrap();
    let linked = connect_one(&format!("shm:{link}"), &credentials());
    std::fs::remove_file(format!("/dev/shm/{link}")).unwrap();
    assert!(matches!(linked, Err(MemoryError::Unavailable { .. })));
}

/// The segment of a dead node is replaced, and a file that is no segment stays. Nothing of either is in the region.
#[test]
fn a_node_never_takes_over_what_is_under_its_name() {
    let name = segment_name("stale");
    let path = format!("/dev/shm/{name}");
    for stale in ["STRATSHM 2 999999999 3 00000000000000ff\n", "STRATSHM\x01\0\0\0\0\0\0\0\x7f\x7f\x7f"] {
        std::fs::write(&path, stale.to_string() + &"\x7f".repeat(REGION_BYTES as usize)).unwrap();
        let node = Node::start(options(Place::Shared(name.clone()))).unwrap();
        let mut memory = dial(&format!("shm:{name}"));
        assert!(read(memory.as_mut(), 0, 1 << 20).unwrap().iter().all(|&byte| byte == 0));
        assert_eq!(memory.facts(), node.facts());
        node.stop().unwrap();
        assert!(!std::path::Path::new(&path).exists());
    }
    for foreign in ["", "some text of somebody else"] {
        std::fs::write(&path, foreign).unwrap();
        let error = Node::start(options(Place::Shared(name.clone()))).err().unwrap();
        assert!(error.message.contains("no segment"), "{}", error.message);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(Node::start(options(Place::Shared(name))).is_err());
    std::fs::remove_file(&path).unwrap();
}

/// Passes bytes on in both directions. Closes a connection once `limit` bytes came from the node.
fn proxy(to: SocketAddr, limits: Vec<usize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for limit in limits {
            let (mut client, _) = listener.accept().unwrap();
            let mut node = TcpStream::connect(to).unwrap();
            let (mut from, mut into) = (client.try_clone().unwrap(), node.try_clone().unwrap());
            let up = std::thread::spawn(move || drop(std::io::copy(&mut from, &mut into)));
            let _ = std::io::copy(&mut (&mut node).take(limit as u64), &mut client);
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = node.shutdown(std::net::Shutdown::Both);
            up.join().unwrap();
        }
    });
    address
}

/// A read whose connection is cut is repeated; a change is not, and the error says that it may have been made.
#[test]
fn a_connection_cut_within_a_read_is_dialed_again() {
    let node = Node::start(options(Place::Memory)).unwrap();
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    dial(&node.address().to_string()).write(&[(0, &bytes)]).unwrap();
    // The greeting and the facts, and some of the read.
    for cut in [200, 250, 1000, 500_000, 1_000_200] {
        let proxy = proxy(node.address(), vec![cut, usize::MAX]).to_string();
        let mut memory = dial(&proxy);
        assert!(read(memory.as_mut(), 0, bytes.len()).unwrap() == bytes, "cut after {cut}");
    }
    let proxy = proxy(node.address(), vec![200, 200, usize::MAX]).to_string();
    let mut memory = dial(&proxy);
    let error = memory.execute(&mut [
        stratann_storage::remote_memory::Operation::FetchAdd { offset: 2_000_000, add: 1, old: 0 },
        stratann_storage::remote_memory::Operation::Read { offset: 0, into: &mut [0; 100] },
    ]);
    assert!(matches!(error, Err(MemoryError::Disconnected { may_have_run: true, .. })), "{error:?}");
    let sum = dial(&node.address().to_string()).fetch_add(2_000_000, 0).unwrap();
    assert!(sum <= 1);
    // Cut twice: the tier reports the read as failed, and goes on.
    let error = read(memory.as_mut(), 0, bytes.len());
    assert!(matches!(error, Ok(_) | Err(MemoryError::Disconnected { .. })), "{error:?}");
    assert!(read(memory.as_mut(), 0, 10).unwrap() == bytes[..10]);
}

/// Reads of a node that ended complete with an error, those of another go on.
#[test]
fn reads_of_a_node_that_ended_complete_with_an_error() {
    let start = |node| Node::start(NodeOptions { node: NodeId(node), ..options(Place::Memory) }).unwrap();
    let (first, second) = (start(0), start(1));
    let addresses = [first.address().to_string(), second.address().to_string()];
    let (mut tier, counters) = remote_tier(&addresses, 64, 4);
    drop(second);
    for round in 0..20 {
        (0..8).for_each(|tag| tier.submit(tag, FileId(tag % 2), 0, buffer(64)));
        let done = wait_for(&mut tier, 8);
        assert!(done.iter().all(|c| c.result.is_err() == (c.tag % 2 == 1)), "round {round}: {done:?}");
        assert_eq!(tier.room(), 64);
    }
    let error = counters.last_error().unwrap();
    assert!(error.to_string().contains(&addresses[1]), "{error}");
}

/// Connections that never greet, or send garbage, do not delay others.
#[test]
fn strangers_do_not_stall_the_node() {
    let node = Node::start(options(Place::Memory)).unwrap();
    let address = node.address();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut loud = TcpStream::connect(address).unwrap();
    loud.write_all(&[b'x'; 5000]).unwrap();
    let start = Instant::now();
    let mut memory = dial(&address.to_string());
    for i in 0..100 {
        assert_eq!(memory.fetch_add(0, 1).unwrap(), i);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // They are closed when the time for a greeting is over.
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let end = stream.read_to_end(&mut Vec::new());
        assert!(!end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock), "still open");
    }
    assert_eq!(memory.fetch_add(0, 1).unwrap(), 100);
}

/// Strangers without a key hold all places at all times: who has the key is served, and who is connected goes on.
#[test]
fn a_flood_of_strangers_keeps_nobody_out() {
    let node = Node::start(options(Place::Memory)).unwrap();
    let address = node.address();
    let mut connected = dial(&address.to_string());
    let (made, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) && made.load(Ordering::Relaxed) < 50_000 {
                held.push_back(TcpStream::connect(address).unwrap());
                // Fewer than a process may have open, more than the node takes with the key.
                held.drain(..held.len().saturating_sub(300));
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        while made.load(Ordering::Relaxed) < 300 {
            std::thread::yield_now();
        }
        let served = (0..40).filter(|_| {
            let served = connect_one(&address.to_string(), &credentials());
            served.is_ok_and(|mut memory| memory.fetch_add(0, 1).is_ok())
        });
        assert_eq!(served.count(), 40);
        let counted = (0..100).filter(|_| connected.fetch_add(8, 1).is_ok()).count();
        assert_eq!(counted, 100);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        read(connected.as_mut(), 0, 16).unwrap(),
        [40u64.to_le_bytes(), 100u64.to_le_bytes()].concat()
    );
}

/// A client that does not take its reply holds no more than a bounded part of it in the node, and delays nobody.
#[test]
fn a_client_that_does_not_read_delays_nobody() {
    let node = Node::start(options(Place::Memory)).unwrap();
    let proxied = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (to, address) = (node.address(), listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let node = TcpStream::connect(to).unwrap();
            let (mut from, mut into) = (client.try_clone().unwrap(), node.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            // Greeting and facts pass, then nothing.
            let _ = std::io::copy(&mut (&node).take(200), &mut &client);
            std::thread::sleep(Duration::from_secs(3));
        });
        address.to_string()
    };
    let mut stuck = dial(&proxied);
    let stuck = std::thread::spawn(move || {
        let ranges = vec![Range { offset: 0, bytes: 4 << 20 }; 50];
        stuck.read(&ranges, &mut vec![0; 200 << 20])
    });
    let mut memory = dial(&node.address().to_string());
    let start = Instant::now();
    for i in 0..200 {
        assert_eq!(memory.fetch_add(0, 1).unwrap(), i);
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    drop(node);
    stuck.join().unwrap().unwrap_err();
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let node = Node::start(NodeOptions { connections_max: 2, ..options(Place::Memory) }).unwrap();
    let address = node.address().to_string();
    let (mut one, mut two) = (dial(&address), dial(&address));
    assert!(connect_one(&address, &credentials()).is_err());
    assert_eq!((one.fetch_add(0, 1), two.fetch_add(0, 1)), (Ok(0), Ok(1)));
    drop(one);
    let start = Instant::now();
    while connect_one(&address, &credentials()).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// Certificate and key of one authority, for the host of these tests.
#[cfg(feature = "tls")]
fn tls(folder: &std::path::Path, authority: &str) -> stratann_storage::link::Tls {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let host = vec!["127.0.0.1".to_string()];
    let own = CertificateParams::new(host).unwrap().signed_by(&key, &issuer).unwrap();
    let file = |ending: &str| folder.join(format!("{authority}.{ending}"));
    std::fs::write(file("pem"), own.pem()).unwrap();
    std::fs::write(file("key"), key.serialize_pem()).unwrap();
    std::fs::write(file("root"), root.pem()).unwrap();
    stratann_storage::link::Tls::read(&file("pem"), &file("key"), &file("root")).unwrap()
}

#[cfg(feature = "tls")]
#[test]
fn tcp_conforms_under_tls_which_both_sides_need() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (tls(folder.path(), "ours"), tls(folder.path(), "theirs"));
    let node = Node::start(NodeOptions { tls: Some(ours.clone()), ..options(Place::Memory) }).unwrap();
    let address = node.address().to_string();
    let with = |tls| connect_one(&address, &Credentials::new(SECRET.to_vec(), tls));
    conformance::check(&|| with(Some(ours.clone())).unwrap());
    assert!(with(None).is_err() && with(Some(theirs)).is_err());
    assert_eq!(with(Some(ours)).unwrap().backend(), "tcp");
}
