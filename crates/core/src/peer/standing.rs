//! What servers of one build know of each other, and from it: when all of them can take queries, and when none needs the build any more.
//!
//! Each server tells the others whom it reaches. A build is **settled** here when every server that a query could come to from here reaches a home
//! of every block: then no query meets a gap. A build is **left** when no server that answers will ask anything in it again. Servers that change
//! from one build of an index to the next begin to ask in the new one when it is settled, and drop the old one when it is left.

use alloc::vec::Vec;

use crate::place::{SERVERS_MAX, bit};

use super::message::Message;
use super::{Action, Peer};

/// What another server has said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) live: u64,
    pub(super) has_left: bool,
}

impl Peer {
    /// Clients ask here no more: what runs is finished.
    pub fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Says to all others how this server stands. To be repeated while something waits for it: a frame may be lost.
    pub fn tell_standing(&mut self, out: &mut Vec<Action>) {
        let message = Message::Standing { live: self.live, has_left: self.has_left() };
        for to in self.others() {
            self.send(to, &message, out);
        }
    }

    /// Whether a query that comes here finds all of the index, wherever it goes: `homes` are the sets of servers that hold the same blocks.
    pub fn is_settled(&self, homes: &[u64]) -> bool {
        let is_whole = |live: u64| homes.iter().all(|homes| homes & live != 0);
        // Whoever they reach is known here as well, so these are all that a query can come to.
        let stands = |s: u8| {
            self.standings[usize::from(s)].is_some_and(|o| is_whole(o.live) && o.live & !self.live == 0)
        };
        is_whole(self.live) && self.others().all(stands)
    }

    /// Whether neither this server nor any other that answers has a query in this build, or will.
    pub fn is_left(&self) -> bool {
        let has_left = |s: u8| self.standings[usize::from(s)].is_some_and(|o| o.has_left);
        self.has_left() && self.others().all(has_left)
    }

    fn has_left(&self) -> bool {
        self.is_leaving && self.origins.is_empty()
    }

    fn others(&self) -> impl Iterator<Item = u8> + use<> {
        let others = self.live & !bit(self.server);
        (0..SERVERS_MAX as u8).filter(move |s| others >> s & 1 == 1)
    }
}

/// A server on its way from one build of its index to the next, both of which it holds. Times are microseconds on one clock.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    began_us: u64,
    switched_us: Option<u64>,
}

/// What a server that changes does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing.
    Wait,
    /// Give clients' queries to the new build.
    Switch,
    /// Forget the old build.
    Drop,
}

/// The old build is dropped so long after the switch even if some server still asks in it: that one could not change.
pub const KEPT_US_MAX: u64 = 600_000_000;
/// A new build that has not settled for so long gives way to a newer one: some server may never get it.
pub const STUCK_US: u64 = 10_000_000;

impl Change {
    /// A new build has been opened beside the old one.
    pub fn new(now_us: u64) -> Change {
        Change { began_us: now_us, switched_us: None }
    }

    /// What to do, given whether the new build is settled and the old one left.
    pub fn turn(&mut self, now_us: u64, is_settled: bool, is_left: bool) -> Turn {
        match self.switched_us {
            None if is_settled => {
                self.switched_us = Some(now_us);
                Turn::Switch
            }
            None => Turn::Wait,
            Some(at) if is_left || now_us.saturating_sub(at) >= KEPT_US_MAX => Turn::Drop,
            Some(_) => Turn::Wait,
        }
    }

    /// Whether the new build may be given up for a newer one.
    pub fn is_stuck(&self, now_us: u64) -> bool {
        self.switched_us.is_none() && now_us.saturating_sub(self.began_us) >= STUCK_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Limits, Served};
    use crate::query::wire::{Carry, Results};
    use crate::query::{Budget, Params};
    use alloc::vec;

    fn peer(server: u8) -> Peer {
        let carry = Carry::Ids;
        let served = Served {
            build: 7,
            vector_bytes: 4,
            nodes: 9,
            carry,
            results: Results::Along,
            rescores: true,
            apart: None,
        };
        Peer::new(server, 1, served, bit(server), Limits::default())
    }

    /// Carries all frames between peers until none is left.
    fn deliver(peers: &mut [Peer], mut frames: Vec<(u8, Action)>) {
        while let Some((from, action)) = frames.pop() {
            let Action::Send { to, frame } = action else { continue };
            let mut out = vec![];
            peers[usize::from(to)].received(0, from, &frame, &mut out).unwrap();
            frames.extend(out.into_iter().map(|a| (to, a)));
        }
    }

    fn connect(peers: &mut [Peer], a: u8, b: u8) {
        let mut frames = vec![];
        for (one, other) in [(a, b), (b, a)] {
            let mut out = vec![];
            peers[usize::from(one)].up(other, &mut out);
            frames.extend(out.into_iter().map(|action| (one, action)));
        }
        deliver(peers, frames);
    }

    #[test]
    fn a_build_is_settled_when_all_that_a_query_can_reach_reach_all() {
        let mut peers = [peer(0), peer(1), peer(2)];
        let homes = [0b001, 0b010, 0b110];
        assert!(!peers[0].is_settled(&homes));
        connect(&mut peers, 0, 1);
        assert!(peers[0].is_settled(&homes) && peers[1].is_settled(&homes) && !peers[2].is_settled(&homes));
        // From 1 a query may come to 2, which does not reach 0.
        connect(&mut peers, 1, 2);
        assert!(!peers[0].is_settled(&homes) && !peers[1].is_settled(&homes));
        connect(&mut peers, 0, 2);
        assert!(peers.iter().all(|p| p.is_settled(&homes)));
        let mut out = vec![];
        peers[0].down(0, 1, &mut out);
        assert!(!peers[0].is_settled(&homes));
        // Alone with all blocks there is nobody to wait for.
        assert!(peer(5).is_settled(&[]) && peer(5).is_settled(&[0b10_0000]));
    }

    #[test]
    fn a_build_is_left_when_the_last_query_of_the_last_server_has_ended() {
        let mut peers = [peer(0), peer(1)];
        connect(&mut peers, 0, 1);
        let mut out = vec![];
        peers[1].ask(0, 0, (Params::new(1, 1), Budget::default()), &[0; 4], 500, &mut out);
        peers.iter_mut().for_each(Peer::leave);
        let tell = |peers: &mut [Peer]| {
            for server in 0..2 {
                let mut out = vec![];
                peers[usize::from(server)].tell_standing(&mut out);
                deliver(peers, out.into_iter().map(|a| (server, a)).collect());
            }
        };
        tell(&mut peers);
        assert!(!peers[0].is_left() && !peers[1].is_left());
        peers[1].tick(1000, &mut out);
        assert!(peers[1].is_left() && !peers[0].is_left(), "0 has not heard of it");
        tell(&mut peers);
        assert!(peers[0].is_left());
    }

    #[test]
    fn a_change_waits_for_the_new_build_then_for_the_end_of_the_old_one() {
        let mut change = Change::new(5);
        assert_eq!(change.turn(10, false, true), Turn::Wait);
        assert!(!change.is_stuck(STUCK_US) && change.is_stuck(STUCK_US + 5));
        assert_eq!(change.turn(20, true, true), Turn::Switch);
        assert!(!change.is_stuck(u64::MAX));
        assert_eq!(change.turn(30, true, false), Turn::Wait);
        assert_eq!(change.turn(40, false, true), Turn::Drop);
        assert_eq!(change.turn(20 + KEPT_US_MAX, true, false), Turn::Drop);
    }
}
