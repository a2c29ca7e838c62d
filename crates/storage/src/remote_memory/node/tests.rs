//! Peers that have the key, and take memory or time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::super::client::TcpMemory;
use super::super::{Credentials, Range, RemoteMemory};
use super::frames::{ALLOWANCE_BYTES, FREE_BYTES};
use super::*;
use crate::link::GREETING;
use crate::link::secure::Wire;
use crate::link::timed::Timed;

const SECRET: &[u8] = b"a key of memory nodes, 32 bytes!";
/// Bytes of a request that writes as much as one may.
const LONGEST: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn node(region_bytes: u64) -> Node {
    let options = NodeOptions {
        node: NodeId(0),
        region_bytes,
        listen: "127.0.0.1:0".parse().unwrap(),
        secret: SECRET.to_vec(),
        tls: None,
        place: Place::Memory,
        connections_max: 64,
        log: Arc::new(|_| {}),
    };
    Node::start(options).unwrap()
}

/// A connection that has greeted.
fn peer(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.address()).unwrap();
    let own = stream.try_clone().unwrap();
    let mut wire = Wire::dial(None, "", Timed::new(stream, GREETING).unwrap()).unwrap();
    let me = Identity { server: 1, servers: 2, build: 0, secret: SECRET, versions: versions() };
    greeting::dial_as(&REMOTE_MEMORY, &me, 0, &mut wire).unwrap();
    own
}

fn client(node: &Node) -> TcpMemory {
    let credentials = Credentials::new(SECRET.to_vec(), None);
    TcpMemory::connect(&node.address().to_string(), &credentials).unwrap()
}

/// A request to write so many bytes.
fn write_of(bytes: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let from = vec![7; bytes];
    protocol::encode(1, &[super::super::Operation::Write { offset: 0, from: &from }], &mut frame);
    frame
}

/// Sends as much as the node and the kernel take.
fn send_some(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            // It was closed for being slow.
            Err(_) => break,
        }
    }
    sent
}

fn peak(node: &Node) -> usize {
    node.state.buffers_peak.load(Ordering::Relaxed)
}

#[test]
fn half_requests_share_one_allowance() {
    const PEERS: usize = 40;
    let node = node(LONGEST as u64);
    let long = write_of(LONGEST);
    let peers: Vec<TcpStream> = (0..PEERS).map(|_| peer(&node)).collect();
    std::thread::scope(|scope| {
        for stream in &peers {
            scope.spawn(|| send_some(stream, &long[..long.len() - 1]));
        }
        // Short requests of others go on meanwhile.
        let mut other = client(&node);
        for value in 0..20u8 {
            other.write(&[(8, &[value; 1000])]).unwrap();
            let mut found = [0; 1000];
            other.read(&[Range { offset: 8, bytes: 1000 }], &mut found).unwrap();
            assert_eq!(found, [value; 1000]);
        }
    });
    assert!(peak(&node) > LONGEST, "long requests were read");
    assert!(peak(&node) <= ALLOWANCE_BYTES + (PEERS + 1) * FREE_BYTES, "{} bytes", peak(&node));
    // What they had is free again.
    drop(peers);
    client(&node).write(&[(0, &vec![9; LONGEST])]).unwrap();
    node.stop().unwrap();
}

#[test]
fn half_a_request_ends_and_an_idle_connection_does_not() {
    let node = node(1 << 20);
    let mut idle = client(&node);
    let halves = [1, protocol::REQUEST_HEADER, 100, FREE_BYTES + 1000].map(|kept| {
        let slow = peer(&node);
        send_some(&slow, &write_of(200 << 10)[..kept]);
        slow.set_read_timeout(Some(PATIENCE)).unwrap();
        slow
    });
    for mut slow in halves {
        // A reset is an end as well; a time-out is none.
        let end = slow.read(&mut [0]);
        assert!(matches!(&end, Ok(0)) || end.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    }
    assert!(idle.is_open(), "it asks for nothing");
    idle.fetch_add(0, 1).unwrap();
    node.stop().unwrap();
}

/// All long requests of many peers are executed, whatever their number.
#[test]
fn long_requests_wait_and_are_executed() {
    let node = node(LONGEST as u64);
    std::thread::scope(|scope| {
        let write = || {
            let mut own = client(&node);
            for _ in 0..2 {
                own.write(&[(0, &vec![3; LONGEST])]).unwrap();
            }
        };
        for _ in 0..8 {
            scope.spawn(write);
        }
    });
    assert!(peak(&node) <= ALLOWANCE_BYTES + 9 * FREE_BYTES, "{} bytes", peak(&node));
    node.stop().unwrap();
}
