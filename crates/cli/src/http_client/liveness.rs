//! Which servers answer: a server that is frozen accepts requests and never answers them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Pause between two questions for the health of servers.
const PAUSE: Duration = Duration::from_millis(500);
/// Questions without an answer, in a row, after which a server is silent.
const MISSES: usize = 2;

/// State of a server, as far as it is known.
#[derive(Default)]
struct Server {
    is_silent: AtomicBool,
    /// Requests that wait for it.
    open: AtomicUsize,
    /// Questions in a row that it did not answer.
    misses: AtomicUsize,
}

/// See the module.
pub(super) struct Liveness {
    servers: Vec<Server>,
}

/// A request that waits for a server, as long as it lives.
pub(super) struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Liveness {
    /// All of these servers answer, as far as is known.
    pub(super) fn new(servers: usize) -> Liveness {
        Liveness { servers: (0..servers).map(|_| Server::default()).collect() }
    }

    /// Whether a server is known not to answer.
    pub(super) fn is_silent(&self, server: usize) -> bool {
        self.servers[server].is_silent.load(Ordering::Relaxed)
    }

    /// Notes whether a server answers.
    pub(super) fn set_silent(&self, server: usize, is_silent: bool) {
        self.servers[server].is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Counts a request.
    pub(super) fn open(&self, server: usize) -> Open<'_> {
        let open = &self.servers[server].open;
        open.fetch_add(1, Ordering::Relaxed);
        Open(open)
    }

    /// The servers in the order in which a request is tried: round robin from `turn`, silent ones last.
    pub(super) fn order(&self, turn: usize) -> Vec<usize> {
        let count = self.servers.len();
        let mut all: Vec<usize> = (0..count).map(|i| (turn + i) % count).collect();
        all.sort_by_key(|&server| self.is_silent(server));
        all
    }

    /// Asks each server that requests wait for, and each silent one, again and again until `stop` has a message or no
    /// sender.
    pub(super) fn watch(&self, stop: &Receiver<()>, is_healthy: impl Fn(usize) -> bool) {
        while stop.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
            for (number, server) in self.servers.iter().enumerate() {
                if server.open.load(Ordering::Relaxed) == 0 && !self.is_silent(number) {
                    continue;
                }
                let misses = match is_healthy(number) {
                    true => 0,
                    false => server.misses.load(Ordering::Relaxed) + 1,
                };
                server.misses.store(misses, Ordering::Relaxed);
                match misses {
                    0 => self.set_silent(number, false),
                    MISSES.. => self.set_silent(number, true),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_server_is_silent_after_two_misses_and_comes_back() {
        let liveness = Liveness::new(3);
        let (stop, stopped) = channel();
        let waiting = (liveness.open(0), liveness.open(1));
        let asked = AtomicUsize::new(0);
        liveness.watch(&stopped, |server| {
            assert_ne!(server, 2, "nothing waits for it");
            let turn = asked.fetch_add(1, Ordering::Relaxed);
            // Server 0 misses two questions, server 1 one.
            match turn {
                4 => {
                    assert_eq!([0, 1, 2].map(|s| liveness.is_silent(s)), [true, false, false]);
                    assert_eq!((liveness.order(0), liveness.order(2)), (vec![1, 2, 0], vec![2, 1, 0]));
                    let _ = stop.send(());
                    true
                }
                turn => turn == 1 || turn > 4,
            }
        });
        assert!(!liveness.is_silent(0));
        drop(waiting);
        assert!(liveness.servers.iter().all(|s| s.open.load(Ordering::Relaxed) == 0));
    }
}
