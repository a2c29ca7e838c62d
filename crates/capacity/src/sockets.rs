//! Cost of a message between two servers beyond its encoding: queues, threads, system calls and the kernel.
//!
//! Two real links of this process exchange frames over loopback, one at a time: a server has a connection to each other
//! one, so frames seldom wait for each other. All processor time of the process counts, half for each side. Where a
//! search thread waits for the frame, it has to be woken, too.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use stratann_core::peer::Run;
use stratann_core::peer::message::{Message, QueryId, Refused};
use stratann_storage::budget;
use stratann_storage::ledger::{Ledger, Part, Reservation};
use stratann_storage::link::{Agreed, Link, LinkOptions, LinkReceiver, Versions};

const BUILD: u64 = 0x50CC;
/// Frames that are sent in each direction.
const FRAMES: usize = 3000;
/// Longest wait for a connection, and for all frames.
const PATIENCE: Duration = Duration::from_secs(5);

/// The thread that sends the frames back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The thread of the link that receives them: the search threads are busy.
    Link,
    /// A thread that waits for them, as a search thread without work does.
    Waiting,
}

/// Sends back each frame while some are left.
struct Echo {
    link: OnceLock<Weak<Link>>,
    other: u8,
    left: Arc<AtomicUsize>,
    // The thread that waits, if there is one.
    waiting: Option<mpsc::Sender<Vec<u8>>>,
    // Receives when the other is reached, and when no frame is left.
    events: mpsc::SyncSender<()>,
    ledger: Arc<Ledger>,
}

impl LinkReceiver for Echo {
    fn frame(&self, _: u8, frame: &[u8]) -> Result<(), Refused> {
        match &self.waiting {
            None => self.send_back(frame),
            Some(waiting) => {
                // It is there as long as the link.
                let _ = waiting.send(frame.to_vec());
            }
        }
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.ledger.reserve(Part::Batons, bytes)
    }

    fn up(&self, _: u8, _: Agreed) {
        self.tell();
    }

    fn down(&self, _: u8) {}
}

impl Echo {
    fn send_back(&self, frame: &[u8]) {
        let is_left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        match self.link.get().and_then(Weak::upgrade).filter(|_| is_left) {
            Some(link) => {
                link.send(self.other, frame);
            }
            None => self.tell(),
        }
    }

    fn tell(&self) {
        // A receiver that is full or gone has heard enough.
        let _ = self.events.try_send(());
    }
}

/// Processor time of one side for a frame with `bytes` of content, nanoseconds; and the length of the frame. `None`
/// without a loopback device.
pub(crate) fn message_ns(bytes: usize, by: By) -> Option<(usize, f64)> {
    let taken: Vec<TcpListener> =
        (0..2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>().ok()?;
    let addresses: Vec<SocketAddr> =
        taken.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().ok()?;
    drop(taken);
    let (events, came) = mpsc::sync_channel(8);
    let left = Arc::new(AtomicUsize::new(2 * FRAMES));
    let links = [0, 1].map(|server| start(server, &addresses, (&left, &events), by));
    let [Some(near), Some(far)] = &links else { return None };
    for _ in &links {
        came.recv_timeout(PATIENCE).ok()?;
    }
    let frame = frame(bytes);
    let before = budget::cpu_us();
    near.send(1, &frame);
    came.recv_timeout(PATIENCE).ok()?;
    let cpu_us = budget::cpu_us().saturating_sub(before);
    [near, far].iter().for_each(|link| link.stop());
    Some((frame.len(), cpu_us as f64 * 1000.0 / (2 * 2 * FRAMES) as f64))
}

fn start(
    server: u8,
    addresses: &[SocketAddr],
    (left, events): (&Arc<AtomicUsize>, &mpsc::SyncSender<()>),
    by: By,
) -> Option<Arc<Link>> {
    let (sender, frames) = mpsc::channel::<Vec<u8>>();
    let echo = Arc::new(Echo {
        link: OnceLock::new(),
        other: 1 - server,
        left: Arc::clone(left),
        waiting: (by == By::Waiting).then_some(sender),
        events: events.clone(),
        ledger: Ledger::new(None),
    });
    let options = LinkOptions {
        server,
        build: BUILD,
        listen: *addresses.get(usize::from(server))?,
        peers: addresses.iter().map(SocketAddr::to_string).collect(),
        secret: b"both ends are in this process".to_vec(),
        tls: None,
        versions: Versions::default(),
        queue_bytes: 16 << 20,
        measured_every: None,
        log: Arc::new(|_| {}),
    };
    let receiver: Arc<dyn LinkReceiver> = echo.clone();
    let link = Arc::new(Link::open(options, receiver).ok()?);
    // It is set once.
    let _ = echo.link.set(Arc::downgrade(&link));
    link.dial();
    if by == By::Waiting {
        let echo = Arc::downgrade(&echo);
        // It ends with the link, which has the sender.
        std::thread::spawn(move || {
            for frame in frames {
                let Some(echo) = echo.upgrade() else { return };
                echo.send_back(&frame);
            }
        });
    }
    Some(link)
}

/// A hand-over with `bytes` of a state.
fn frame(bytes: usize) -> Vec<u8> {
    let run = Run { query: QueryId { origin: 0, incarnation: 0, number: 0 }, attempt: 0, job: None };
    let mut frame = Vec::new();
    let state = vec![0x5A; bytes];
    Message::Baton { run, visited: 1, left_us: 1, vector: &[][..], state: &state[..] }
        .encode(BUILD, 0, &mut frame);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_to_and_fro() {
        for by in [By::Link, By::Waiting] {
            let (short, short_ns) = message_ns(100, by).unwrap();
            let (long, long_ns) = message_ns(20_000, by).unwrap();
            assert!(short > 100 && long - short == 19_900 && short_ns > 0.0 && long_ns > 0.0);
        }
    }
}
