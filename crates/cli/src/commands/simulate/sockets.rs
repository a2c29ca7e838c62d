//! What a message between two servers costs beyond its encoding: queues, threads, system calls and the kernel's network.
//!
//! Two real links of this process exchange frames over loopback, some of them under way, as between busy servers. All
//! processor time of the process counts, half for each side.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use stratann_core::peer::Run;
use stratann_core::peer::message::{Message, QueryId, Refused};
use stratann_engine::budget;
use stratann_engine::ledger::{Ledger, Part, Reservation};
use stratann_engine::link::{Link, LinkOptions, LinkReceiver};

const BUILD: u64 = 0x50CC;
/// Frames under way, and frames that are sent in each direction.
const UNDER_WAY: usize = 16;
const FRAMES: usize = 6000;
/// Longest wait for a connection, and for all frames.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends back each frame while some are left.
struct Echo {
    link: OnceLock<Weak<Link>>,
    other: u8,
    left: Arc<AtomicUsize>,
    // Receives when the other is reached, and when no frame is left.
    events: mpsc::SyncSender<()>,
    ledger: Arc<Ledger>,
}

impl LinkReceiver for Echo {
    fn frame(&self, _: u8, frame: &[u8]) -> Result<(), Refused> {
        let is_left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        match self.link.get().and_then(Weak::upgrade).filter(|_| is_left) {
            Some(link) => {
                link.send(self.other, frame);
            }
            None => self.tell(),
        }
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.ledger.reserve(Part::Batons, bytes)
    }

    fn up(&self, _: u8) {
        self.tell();
    }

    fn down(&self, _: u8) {}
}

impl Echo {
    fn tell(&self) {
        // A receiver that is full or gone has heard enough.
        let _ = self.events.try_send(());
    }
}

/// Processor time of one side for a frame with `bytes` of content, nanoseconds; and the length of the frame. `None`
/// without a loopback device.
pub(super) fn message_ns(bytes: usize) -> Option<(usize, f64)> {
    let taken: Vec<TcpListener> =
        (0..2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>().ok()?;
    let addresses: Vec<SocketAddr> =
        taken.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().ok()?;
    drop(taken);
    let (events, came) = mpsc::sync_channel(UNDER_WAY);
    let left = Arc::new(AtomicUsize::new(2 * FRAMES));
    let start = |server: u8| -> Option<Arc<Link>> {
        let echo = Arc::new(Echo {
            link: OnceLock::new(),
            other: 1 - server,
            left: Arc::clone(&left),
            events: events.clone(),
            ledger: Ledger::new(None),
        });
        let options = LinkOptions {
            server,
            build: BUILD,
            listen: addresses[usize::from(server)],
            peers: addresses.iter().map(SocketAddr::to_string).collect(),
            secret: b"both ends are in this process".to_vec(),
            tls: None,
            queue_bytes: 16 << 20,
            log: Arc::new(|_| {}),
        };
        let receiver: Arc<dyn LinkReceiver> = echo.clone();
        let link = Arc::new(Link::start(options, receiver).ok()?);
        // It is set once.
        let _ = echo.link.set(Arc::downgrade(&link));
        Some(link)
    };
    let links = [start(0)?, start(1)?];
    for _ in &links {
        came.recv_timeout(PATIENCE).ok()?;
    }
    let frame = frame(bytes);
    let before = budget::process().cpu_us;
    for _ in 0..UNDER_WAY {
        links[0].send(1, &frame);
    }
    came.recv_timeout(PATIENCE).ok()?;
    let cpu_us = budget::process().cpu_us.saturating_sub(before);
    links.iter().for_each(|link| link.stop());
    Some((frame.len(), cpu_us as f64 * 1000.0 / (2 * 2 * FRAMES) as f64))
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
        let (short, short_ns) = message_ns(100).unwrap();
        let (long, long_ns) = message_ns(20_000).unwrap();
        assert!(short > 100 && long - short == 19_900 && short_ns >= 0.0 && long_ns > 0.0);
    }
}
