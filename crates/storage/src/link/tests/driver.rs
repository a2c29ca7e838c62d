//! Connections that a thread receives through its tier.

use super::*;
use crate::tier::{self, IoChoice, Waker};
use std::sync::atomic::AtomicBool;

/// A thread that receives connections through its tier, as a driver thread does. Dropping it ends the thread.
pub(super) struct TestDriver {
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    // `None` once the thread takes no more.
    new: Mutex<Option<Vec<Inbound>>>,
    ends: AtomicBool,
    // While it is held, the thread does something else.
    busy: Mutex<()>,
}

impl TestDriver {
    fn start(io: IoChoice) -> TestDriver {
        let shared = Arc::new(Shared {
            new: Mutex::new(Some(Vec::new())),
            ends: AtomicBool::new(false),
            busy: Mutex::default(),
        });
        let (sender, waker) = channel();
        let own = shared.clone();
        let thread = std::thread::spawn(move || {
            let mut tier = tier::open(8, 4096, io).unwrap();
            sender.send(tier.waker().unwrap()).unwrap();
            let (mut inbounds, mut done) = (Inbounds::default(), Vec::new());
            while !own.ends.load(Ordering::SeqCst) {
                drop(lock(&own.busy));
                let new = lock(&own.new).as_mut().map(std::mem::take).unwrap_or_default();
                for connection in new {
                    if let Err(refused) = inbounds.add(&mut *tier, connection) {
                        *lock(&own.new) = None;
                        refused.read_on_thread();
                    }
                }
                tier.poll(true, &mut done).unwrap();
                done.drain(..).for_each(|completion| inbounds.take(&mut *tier, completion));
            }
            *lock(&own.new) = None;
        });
        TestDriver { shared, waker: waker.recv().unwrap(), thread: Some(thread) }
    }

    pub(super) fn give(&self, connection: Inbound) -> Result<(), Box<Inbound>> {
        match &mut *lock(&self.shared.new) {
            Some(new) => new.push(connection),
            None => return Err(Box::new(connection)),
        }
        self.waker.wake();
        Ok(())
    }

    fn end(shared: &Shared, waker: &Waker) {
        shared.ends.store(true, Ordering::SeqCst);
        waker.wake();
    }
}

impl Drop for TestDriver {
    fn drop(&mut self) {
        TestDriver::end(&self.shared, &self.waker);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// The receiving side of a test: a node with a driver, and what ends or holds up its thread.
struct Driven {
    node: Node,
    shared: Arc<Shared>,
    waker: Waker,
}

impl Driven {
    fn start(server: u8, at: &[SocketAddr], io: IoChoice, room: u64) -> Driven {
        let driver = TestDriver::start(io);
        let (shared, waker) = (driver.shared.clone(), driver.waker.clone());
        let change = |receiver| TestReceiver { driver: Some(driver), room, ..receiver };
        let node = Node::with(server, at[usize::from(server)], (at, None), (SECRET, BUILD), change);
        Driven { node, shared, waker }
    }

    /// One to which [`greeted`] connects.
    fn alone() -> Driven {
        let at = addresses(1);
        Driven::start(0, &[at[0], at[0]], choice(), u64::MAX)
    }
}

fn choice() -> IoChoice {
    if let Some(why) = tier::uring_refusal() {
        stratann_testing::leave_out(stratann_testing::Need::IoUring, &why);
    }
    IoChoice::Auto
}

fn driven_pair(io: IoChoice) -> (Driven, Driven) {
    let at = addresses(2);
    let nodes = (Driven::start(0, &at, io, u64::MAX), Driven::start(1, &at, io, u64::MAX));
    assert_eq!((nodes.0.node.next(), nodes.1.node.next()), (LinkEvent::Up(1), LinkEvent::Up(0)));
    nodes
}

#[test]
fn frames_come_whole_and_in_order() {
    for io in [choice(), IoChoice::Pread] {
        let (a, b) = driven_pair(io);
        super::frames_come_whole_and_in_order(&a.node, &b.node);
        let takes_on = lock(&b.shared.new).is_some();
        assert_eq!(takes_on, io != IoChoice::Pread && tier::uring_refusal().is_none(), "{io:?}");
    }
}

#[test]
fn frames_of_many_threads_arrive() {
    let (a, b) = driven_pair(choice());
    super::frames_of_many_threads_arrive(&a.node, &b.node);
}

/// Every way to cut a stream in two, and into bytes.
#[test]
fn frames_in_parts_are_put_together() {
    let b = Driven::alone();
    let mut stream = greeted(&b.node);
    stream.set_nodelay(true).unwrap();
    let bytes = [frame(1, 3), dial::keepalive().to_vec(), frame(2, 0)].concat();
    for cut in (0..bytes.len()).step_by(7) {
        stream.write_all(&bytes[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        stream.write_all(&bytes[cut..]).unwrap();
    }
    for byte in &bytes {
        stream.write_all(&[*byte]).unwrap();
    }
    for _ in 0..bytes.len().div_ceil(7) + 1 {
        let next = || loop {
            match b.node.next() {
                LinkEvent::Frame(1, frame) => return frame,
                other => assert!(matches!(other, LinkEvent::Up(_) | LinkEvent::Down(_)), "{other:?}"),
            }
        };
        assert_eq!((next(), next()), (frame(1, 3), frame(2, 0)));
    }
}

/// A server that stops within a frame, or says nothing, is closed; one that is slow is not, and neither is one whose
/// bytes wait for a driver that is busy.
#[test]
fn silence_is_noticed_and_slowness_is_none() {
    let b = Driven::alone();
    let whole = frame(1, 40_000);
    let mut stopped = greeted(&b.node);
    stopped.write_all(&whole[..30]).unwrap();
    is_closed(stopped);
    b.node.waits_for_line("nothing came for 2 s");
    let mut slow = greeted(&b.node);
    for part in whole.chunks(whole.len() / 4) {
        slow.write_all(part).unwrap();
        std::thread::sleep(SILENCE / 3);
    }
    assert_eq!(b.node.next(), LinkEvent::Frame(1, whole.clone()));
    // The thread waits for its tier: it takes this frame in, and is busy then.
    let busy = lock(&b.shared.busy);
    slow.write_all(&frame(2, 10)).unwrap();
    assert_eq!(b.node.next(), LinkEvent::Frame(1, frame(2, 10)));
    slow.write_all(&frame(3, 10)).unwrap();
    std::thread::sleep(SILENCE * 3 / 2);
    drop(busy);
    assert_eq!(b.node.next(), LinkEvent::Frame(1, frame(3, 10)));
    slow.write_all(&frame(4, 10)).unwrap();
    assert_eq!(b.node.next(), LinkEvent::Frame(1, frame(4, 10)));
}

#[test]
fn bytes_that_make_no_sense_close_their_connection_alone() {
    let b = Driven::alone();
    let mut oversized = frame(1, 50);
    oversized[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    for (count, bytes) in (1..).zip([oversized, vec![0xA5; 5000]]) {
        let mut stream = greeted(&b.node);
        let _ = stream.write_all(&bytes);
        is_closed(stream);
        assert_eq!(b.node.link.traffic().refused, count);
    }
    let mut stream = greeted(&b.node);
    stream.write_all(&frame(1, 50)[..40]).unwrap();
    drop(stream);
    b.node.waits_for_line("it ended within a frame");
    let mut stream = greeted(&b.node);
    stream.write_all(&frame(7, 50)).unwrap();
    while b.node.next() != LinkEvent::Frame(1, frame(7, 50)) {}
}

#[test]
fn a_long_frame_without_memory_is_skipped() {
    let at = addresses(1);
    let b = Driven::start(0, &[at[0], at[0]], choice(), 100_000);
    let mut stream = greeted(&b.node);
    for n in 0..3 {
        stream.write_all(&frame(n, 300_000)).unwrap();
        stream.write_all(&frame(n, 60_000)).unwrap();
        assert_eq!(b.node.next(), LinkEvent::Frame(1, frame(n, 60_000)));
    }
}

/// Whoever ends first: the link, or the thread that receives.
#[test]
fn a_link_ends_although_its_connections_are_elsewhere() {
    for link_first in [true, false] {
        let (a, b) = driven_pair(choice());
        // Both are up before the driver has the connection.
        assert!(a.node.link.send(1, &frame(1, 10)));
        assert_eq!(b.node.next(), LinkEvent::Frame(0, frame(1, 10)));
        if !link_first {
            TestDriver::end(&b.shared, &b.waker);
            assert_eq!(a.node.next(), LinkEvent::Down(1));
        }
        b.node.link.stop();
        if link_first {
            assert_eq!(a.node.next(), LinkEvent::Down(1));
        }
    }
}
