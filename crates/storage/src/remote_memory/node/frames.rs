//! Memory of requests: short ones have it for free, long ones share one allowance, whatever the number of connections.

use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of a request that each connection may have without asking.
pub(super) const FREE_BYTES: usize = 64 << 10;
/// Bytes of all longer requests. The longest has a quarter of it.
pub(super) const ALLOWANCE_BYTES: usize = 64 << 20;
/// Longest time from the first byte of a request to its last.
pub(super) const FRAME_TIME: Duration = Duration::from_millis(if cfg!(test) { 2_000 } else { 10_000 });
/// Longest time for which a long request is held while its reply is sent.
pub(super) const REPLY_TIME: Duration = Duration::from_secs(60);

/// The allowance, and connections that wait for some of it, the first first. What they send is not read meanwhile.
pub(super) struct Frames {
    left: usize,
    waiting: VecDeque<u64>,
}

impl Frames {
    pub(super) fn new() -> Frames {
        Frames { left: ALLOWANCE_BYTES, waiting: VecDeque::new() }
    }

    /// Whether a connection may take so many bytes now.
    pub(super) fn has_room(&self, connection: u64, bytes: usize) -> bool {
        bytes <= self.left && self.waiting.front().is_none_or(|first| *first == connection)
    }

    /// Takes bytes for a connection. Returns false where it has to wait.
    pub(super) fn take(&mut self, connection: u64, bytes: usize) -> bool {
        let has_room = self.has_room(connection, bytes);
        if has_room {
            self.left -= bytes;
            self.waiting.retain(|other| *other != connection);
        } else if !self.waiting.contains(&connection) {
            self.waiting.push_back(connection);
        }
        has_room
    }

    /// Gives bytes back.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.left += bytes;
    }

    /// Forgets a connection that was closed.
    pub(super) fn forget(&mut self, connection: u64) {
        self.waiting.retain(|other| *other != connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_longest_is_next() {
        let mut frames = Frames::new();
        let most = ALLOWANCE_BYTES / 2 + 1;
        assert!(frames.take(1, most) && !frames.take(2, most) && !frames.take(3, 1));
        assert!(!frames.has_room(4, 1), "others wait");
        frames.give_back(most);
        assert!(!frames.take(3, 1) && frames.take(2, most) && frames.take(3, 1) && frames.take(4, 1));
        assert!(!frames.take(5, most) && !frames.take(6, 1));
        frames.forget(5);
        assert!(frames.take(6, 1));
        frames.give_back(most + 3);
        assert_eq!((frames.left, frames.waiting.len()), (ALLOWANCE_BYTES, 0));
    }
}
