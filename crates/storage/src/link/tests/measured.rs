//! Links that are measured while frames go over them.

use stratann_testing::way::Way;

use super::super::greeting::dial_to_measure;
use super::*;

const EVERY: Duration = Duration::from_millis(20);

pub(super) fn measured(server: u8, listen: SocketAddr, peers: &[SocketAddr], tls: Option<Tls>) -> Node {
    let options = LinkOptions { measured_every: Some(EVERY), tls, ..options(server, listen, peers) };
    Node::of(options, |receiver| receiver)
}

pub(super) fn waits_for(node: &Node, server: usize, is_so: impl Fn(&LinkCosts) -> bool) -> LinkCosts {
    let start = Instant::now();
    loop {
        let costs = node.link.costs();
        match costs[server] {
            Some(costs) if is_so(&costs) => return costs,
            _ => assert!(start.elapsed() < PATIENCE, "{costs:?}"),
        }
        std::thread::sleep(EVERY);
    }
}

#[test]
fn a_link_that_gets_ten_times_as_slow_is_noticed_and_loses_no_frame() {
    let at = addresses(2);
    let way = Way::to(at[1]).unwrap();
    let a = measured(0, at[0], &[at[0], way.address()], None);
    let b = Node::start(1, at[1], &at, SECRET, BUILD);
    assert_eq!((a.next(), b.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
    let mut number = 0;
    let mut flows = || {
        for _ in 0..20 {
            assert!(a.link.send(1, &frame(number, 5000)));
            assert_eq!(b.next(), LinkEvent::Frame(0, frame(number, 5000)));
            number += 1;
        }
    };
    // 4 Mbit, then 0.4 Mbit a millisecond: the way passes on no more, whatever else the machine does.
    for (bytes_per_ms, gbps) in [(500_000, 4.0), (50_000, 0.4), (500_000, 4.0)] {
        way.limit(bytes_per_ms);
        flows();
        let found = waits_for(&a, 1, |costs| (gbps / 10.0..=gbps).contains(&costs.gbps));
        flows();
        assert!(found.latency_us > 0.0 && found.message_ns > 0.0, "{found:?}");
        assert!(found.slower_byte_ns() >= 8.0 / gbps, "{found:?}");
    }
    assert_eq!(a.link.costs()[0], None, "there is no link to itself");
    assert!(b.link.costs().iter().all(Option::is_none), "the other one does not measure");
    assert!(a.events.try_recv().is_err() && b.events.try_recv().is_err(), "both were up all the time");
    drop(b);
    assert_eq!(a.next(), LinkEvent::Down(1));
    let start = Instant::now();
    while a.link.costs()[1].is_some() {
        assert!(start.elapsed() < PATIENCE, "costs of a server that is gone");
        std::thread::sleep(EVERY);
    }
}

#[test]
fn a_server_of_an_older_version_is_not_measured() {
    let at = addresses(3);
    let ways = [1, 2].map(|server: usize| Way::to(at[server]).unwrap());
    let a = measured(0, at[0], &[at[0], ways[0].address(), ways[1].address()], None);
    let older = Versions { frames: (VERSION as u16, VERSION as u16), ..Versions::default() };
    let [b, _c] = [(1, older), (2, Versions::default())].map(|(server, versions)| {
        let options = LinkOptions { versions, ..options(server, at[usize::from(server)], &at) };
        Node::of(options, |receiver| receiver)
    });
    let mut up = [a.next(), a.next()];
    up.sort_by_key(|event| *event != LinkEvent::Up(1));
    assert_eq!(up, [LinkEvent::Up(1), LinkEvent::Up(2)]);
    // The other one has been measured many times: each time over a new connection.
    waits_for(&a, 2, |_| ways[1].connections() > 10);
    assert_eq!((ways[0].connections(), a.link.costs()[1]), (1, None));
    let received = || std::iter::from_fn(|| b.events.recv_timeout(PATIENCE).ok());
    assert!(a.link.send(1, &frame(1, 10)));
    assert!(received().any(|event| event == LinkEvent::Frame(0, frame(1, 10))));
}

fn dial_for_measurement(at: SocketAddr, secret: &[u8]) -> Result<TcpStream, GreetingError> {
    let me =
        greeting::Identity { server: 1, servers: 2, build: BUILD, secret, versions: Versions::default() };
    let mut stream = TcpStream::connect(at)?;
    dial_to_measure(&me, 0, &mut stream)?;
    Ok(stream)
}

#[test]
fn a_measurement_needs_the_secret_and_sane_requests() {
    let (a, _b) = pair();
    let at = a.link.address();
    assert!(matches!(dial_for_measurement(at, b"no secret"), Err(GreetingError::Secret)));
    let ask = |stream: &mut TcpStream, length: u32, bytes: usize| {
        stream.write_all(&length.to_le_bytes())?;
        stream.write_all(&vec![7; bytes])?;
        stream.read_exact(&mut [0; 64])
    };
    let mut stream = dial_for_measurement(at, SECRET).unwrap();
    for length in [0, 64, 65536] {
        ask(&mut stream, length, length as usize).unwrap();
    }
    for length in [65537, u32::MAX] {
        let mut other = dial_for_measurement(at, SECRET).unwrap();
        assert!(ask(&mut other, length, 0).is_err(), "{length}");
    }
    // One is answered, and one more; a third is closed, until there is room.
    let mut second = dial_for_measurement(at, SECRET).unwrap();
    ask(&mut second, 64, 64).unwrap();
    assert!(ask(&mut dial_for_measurement(at, SECRET).unwrap(), 64, 64).is_err());
    drop(second);
    let start = Instant::now();
    while ask(&mut dial_for_measurement(at, SECRET).unwrap(), 64, 64).is_err() {
        assert!(start.elapsed() < PATIENCE, "there is never room again");
    }
    // The link of frames has noticed nothing, and stops with a measurement under way.
    assert!(a.events.try_recv().is_err());
    a.link.stop();
    assert!(ask(&mut stream, 64, 64).is_err());
}
