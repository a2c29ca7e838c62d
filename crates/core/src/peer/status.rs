//! The status of servers of one build, which decides when a build may receive queries and when it may be dropped.
//!
//! Each server sends the others the set of servers that it reaches. A build is **ready** here when every server that a
//! query could reach from here reaches a replica of every block: then no query meets a gap. A build is **drained** when
//! no server that answers will submit queries in it again. A [`Rollout`](super::Rollout) waits for both.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::message::Message;
use super::{Action, Peer, servers_in};
use crate::place::{Relay, bit};

/// The status of a server among the servers of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStatus {
    /// A bit for every server that answers it.
    pub live: u64,
    /// Whether it has ended its own queries in this build and accepts no more.
    pub is_drained: bool,
}

impl Peer {
    /// Clients submit no more queries here. Queries under way are finished.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Sends this server's status to all others. Repeat it while something waits for it: a frame may be lost.
    pub fn send_status(&mut self, out: &mut Vec<Action>) {
        self.others().for_each(|to| self.send_status_to(to, out));
    }

    pub(super) fn send_status_to(&self, to: u8, out: &mut Vec<Action>) {
        let status = PeerStatus { live: self.live, is_drained: self.has_drained() };
        self.send(to, Message::Status(status), out);
    }

    /// Chooses the live server that reaches most of those that are not live here.
    pub(super) fn choose_relay(&mut self) {
        let reaches = |server: u8| self.statuses[usize::from(server)].map_or(0, |s| s.live & !self.live);
        let relays = servers_in(self.live & self.own_servers() & !bit(self.server));
        let relays = relays.map(|server| Relay { server, reaches: reaches(server) & !bit(self.server) });
        let relays = relays.filter(|relay| relay.reaches != 0);
        self.relay = relays.max_by_key(|relay| (relay.reaches.count_ones(), Reverse(relay.server)));
    }

    /// Whether a query that begins here finds all of the index wherever it goes. `replica_sets` are the sets of servers
    /// that hold the same blocks.
    pub fn is_ready(&self, replica_sets: &[u64]) -> bool {
        let is_whole = |live: u64| replica_sets.iter().all(|replicas| replicas & live != 0);
        // Every server that they reach is known here as well, so a query reaches no further.
        let stands = |s: u8| {
            self.statuses[usize::from(s)].is_some_and(|o| is_whole(o.live) && o.live & !self.live == 0)
        };
        is_whole(self.live) && servers_in(self.live & !bit(self.server)).all(stands)
    }

    /// Whether neither this server nor any other that answers has a query in this build, or will have one.
    pub fn is_drained(&self) -> bool {
        let is_drained = |s: u8| self.statuses[usize::from(s)].is_some_and(|o| o.is_drained);
        self.has_drained() && servers_in(self.live & !bit(self.server)).all(is_drained)
    }

    fn has_drained(&self) -> bool {
        self.is_draining && self.origins.is_empty()
    }

    fn others(&self) -> impl Iterator<Item = u8> + use<> {
        servers_in(self.linked & !bit(self.server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::{served, submit};
    use crate::peer::{BufferPool, Limits};
    use crate::query::wire::{Carry, Results};
    use alloc::collections::vec_deque::VecDeque;
    use alloc::vec;

    fn peer(server: u8) -> Peer {
        Peer::new(server, 1, served(Carry::Ids, Results::Along), bit(server), Limits::default())
    }

    /// Delivers all frames between peers until none is left.
    fn deliver(peers: &mut [Peer], frames: Vec<(u8, Action)>) {
        let (mut pool, mut frames) = (BufferPool::default(), VecDeque::from(frames));
        while let Some((from, action)) = frames.pop_front() {
            let Action::Send { to, message } = action else { continue };
            let mut out = vec![];
            let frame = peers[usize::from(from)].codec().frame(message, &mut pool);
            let peer = &mut peers[usize::from(to)];
            let received = peer.codec().decode(&frame, &mut pool).unwrap();
            peer.received(0, from, received, &mut out);
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
    fn a_build_is_ready_when_all_servers_that_a_query_can_reach_reach_all_blocks() {
        let mut peers = [peer(0), peer(1), peer(2)];
        let replicas = [0b001, 0b010, 0b110];
        assert!(!peers[0].is_ready(&replicas));
        connect(&mut peers, 0, 1);
        assert!(
            peers[0].is_ready(&replicas) && peers[1].is_ready(&replicas) && !peers[2].is_ready(&replicas)
        );
        // From 1 a query may reach 2, which does not reach 0.
        connect(&mut peers, 1, 2);
        assert!(!peers[0].is_ready(&replicas) && !peers[1].is_ready(&replicas));
        connect(&mut peers, 0, 2);
        assert!(peers.iter().all(|p| p.is_ready(&replicas)));
        let mut out = vec![];
        peers[0].down(0, 1, &mut out);
        assert!(!peers[0].is_ready(&replicas));
        // A single server with all blocks waits for no other.
        assert!(peer(5).is_ready(&[]) && peer(5).is_ready(&[0b10_0000]));
    }

    #[test]
    fn a_build_is_drained_when_the_last_query_of_the_last_server_has_ended() {
        let mut peers = [peer(0), peer(1)];
        connect(&mut peers, 0, 1);
        let mut out = vec![];
        submit(&mut peers[1], 0, 500, &mut out);
        peers.iter_mut().for_each(Peer::drain);
        let send = |peers: &mut [Peer]| {
            for server in 0..2 {
                let mut out = vec![];
                peers[usize::from(server)].send_status(&mut out);
                deliver(peers, out.into_iter().map(|a| (server, a)).collect());
            }
        };
        send(&mut peers);
        assert!(!peers[0].is_drained() && !peers[1].is_drained());
        peers[1].tick(1000, &mut out);
        assert!(peers[1].is_drained() && !peers[0].is_drained(), "0 has no newer status");
        send(&mut peers);
        assert!(peers[0].is_drained());
    }
}
