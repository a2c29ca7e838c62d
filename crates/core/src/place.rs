//! The placement of blocks on servers, and the choice of a query's next server.

use alloc::vec::Vec;

/// Largest number of servers of a cluster: the replicas of a block are the bits of a word.
pub const SERVERS_MAX: usize = 64;

/// The bit of a server; none for a number beyond [`SERVERS_MAX`].
pub(crate) fn bit(server: u8) -> u64 {
    1u64.checked_shl(u32::from(server)).unwrap_or(0)
}

/// The parts of a cluster: consecutive servers that have an index of their own. A query is asked of every part, and is
/// handed over within a part only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    // A bit for the first server of each part.
    firsts: u64,
    servers: u8,
}

impl Parts {
    /// One index on all servers.
    pub const ONE: Parts = Parts { firsts: 1, servers: SERVERS_MAX as u8 };

    /// Parts with these numbers of servers. `None` when there is no part, one without a server, or more than
    /// [`SERVERS_MAX`] servers in all.
    pub fn new(sizes: impl IntoIterator<Item = usize>) -> Option<Parts> {
        let (mut firsts, mut servers) = (0, 0);
        for size in sizes {
            if size == 0 || servers + size > SERVERS_MAX {
                return None;
            }
            firsts |= bit(servers as u8);
            servers += size;
        }
        (servers > 0).then_some(Parts { firsts, servers: servers as u8 })
    }

    /// Number of parts.
    pub fn count(&self) -> u8 {
        self.firsts.count_ones() as u8
    }

    /// The part that a server belongs to.
    pub fn of(&self, server: u8) -> u8 {
        let up_to = u64::MAX >> (SERVERS_MAX as u8 - 1).saturating_sub(server);
        ((self.firsts & up_to).count_ones() as u8).saturating_sub(1)
    }

    /// The first server of a part.
    pub fn first(&self, part: u8) -> u8 {
        let mut firsts = self.firsts;
        (0..part).for_each(|_| firsts &= firsts.wrapping_sub(1));
        firsts.trailing_zeros() as u8
    }

    /// A bit for every server of a part.
    pub fn servers(&self, part: u8) -> u64 {
        let all = u64::MAX >> (SERVERS_MAX as u8).saturating_sub(self.servers);
        let from = |part| u64::MAX.checked_shl(self.first(part).into()).unwrap_or(0);
        all & from(part) & !from(part.saturating_add(1))
    }

    /// State of the other servers in the numbers of a server's own part: the part's first server is 0.
    pub fn within(&self, server: u8, others: &Others) -> Others {
        let part = self.of(server);
        let first = self.first(part);
        let own = |servers: u64| (servers & self.servers(part)).checked_shr(first.into()).unwrap_or(0);
        let mut loads = [0; SERVERS_MAX];
        let count = SERVERS_MAX - usize::from(first).min(SERVERS_MAX);
        loads[..count].copy_from_slice(&others.loads[SERVERS_MAX - count..]);
        let relay = others.relay.filter(|relay| self.of(relay.server) == part);
        let relay =
            relay.map(|Relay { server, reaches }| Relay { server: server - first, reaches: own(reaches) });
        Others { live: own(others.live), relay, loads, version: others.version }
    }
}

/// The replicas of every block. Every server holds all of it: 8 bytes a block, one and a half a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    servers: usize,
    replicas: Vec<u64>,
}

impl Placement {
    /// `replicas[b]` has a bit for every server that holds block b. Checks a placement from outside: `None` when a
    /// block has no replica, or one beyond `servers`, and when `servers` is not 1 to [`SERVERS_MAX`].
    pub fn new(servers: usize, replicas: Vec<u64>) -> Option<Placement> {
        if !(1..=SERVERS_MAX).contains(&servers) {
            return None;
        }
        let all = u64::MAX >> (SERVERS_MAX - servers);
        replicas.iter().all(|&r| r != 0 && r & !all == 0).then_some(Placement { servers, replicas })
    }

    /// Number of servers.
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// A bit for every server that holds a block; none for a block that does not exist.
    pub fn replicas(&self, block: u32) -> u64 {
        self.replicas.get(block as usize).copied().unwrap_or(0)
    }

    /// The replicas of all blocks.
    pub fn all(&self) -> &[u64] {
        &self.replicas
    }

    /// Blocks that a server holds, ascending: its file has them in this order.
    pub fn blocks_of(&self, server: usize) -> impl Iterator<Item = u32> + '_ {
        let holds = move |r: u64| server < SERVERS_MAX && r >> server & 1 == 1;
        self.replicas.iter().enumerate().filter(move |(_, r)| holds(**r)).map(|(b, _)| b as u32)
    }
}

/// Place where a unit can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// On this server.
    Here,
    /// On another server that answers.
    Remote,
    /// On no server that answers and has not failed to read it.
    Nowhere,
}

/// State of the other servers, as far as one server knows it.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    /// A bit for every server that answers.
    pub live: u64,
    /// The way to servers that answer others, but not this one.
    pub relay: Option<Relay>,
    /// Queries waiting on each server, as far as known.
    pub loads: [u8; SERVERS_MAX],
    /// The newest version of states that all of them read; the largest number where nothing is known of it.
    pub version: u32,
}

/// A server that answers, and that reaches servers which do not answer here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Number of the server.
    pub server: u8,
    /// A bit for every server that it reaches and this one does not.
    pub reaches: u64,
}

impl Others {
    /// State of servers of which these answer; nothing else is known.
    pub fn live(live: u64) -> Others {
        Others { live, relay: None, loads: [0; SERVERS_MAX], version: u32::MAX }
    }
}

/// The shard of the server that steps a query, and its knowledge of the other servers.
#[derive(Clone, Copy, Debug)]
pub struct LocalShard<'a> {
    /// Replicas of all blocks.
    pub placement: &'a Placement,
    /// This server, which counts as live in any case.
    pub server: u8,
    /// State of the other servers, as far as this one knows it.
    pub others: Others,
}

impl LocalShard<'_> {
    /// Whether this server holds a block.
    pub fn holds(&self, block: u32) -> bool {
        self.placement.replicas(block) & bit(self.server) != 0
    }

    /// The live servers that hold a block.
    pub fn live_replicas(&self, block: u32) -> u64 {
        self.placement.replicas(block) & (self.others.live | bit(self.server))
    }

    /// The server to send a query to that needs a block which no live server holds: it reaches a replica.
    fn relay_to(&self, block: u32, tried: u64) -> Option<u8> {
        let replicas = self.placement.replicas(block) & !tried;
        let relay = self.others.relay.filter(|relay| replicas & relay.reaches != 0)?;
        (bit(relay.server) & tried == 0).then_some(relay.server)
    }

    /// Whether what is sent to this server may have to go on from there.
    pub(crate) fn is_relay(&self, server: u8) -> bool {
        self.others.relay.is_some_and(|relay| relay.server == server)
    }

    /// Place where a block can be read that the servers `tried` could not read.
    pub(crate) fn reach(&self, block: u32, tried: u64) -> Reach {
        match self.live_replicas(block) & !tried {
            0 if self.relay_to(block, tried).is_some() => Reach::Remote,
            0 => Reach::Nowhere,
            replicas if replicas & bit(self.server) != 0 => Reach::Here,
            _ => Reach::Remote,
        }
    }

    /// The next server of a query whose best unread blocks are `wanted`, best first: of the live replicas of the first
    /// block, less those `tried`, the server that holds most of the others. Ties go to the server with the lowest load,
    /// then to one drawn by the number of the first block, so that replicas share the load. Where no replica is live
    /// here it is one that reaches a replica.
    pub(crate) fn next(&self, wanted: &[u32], tried: u64) -> Option<u8> {
        let first = *wanted.first()?;
        let replicas = self.live_replicas(first) & !tried;
        if replicas == 0 {
            return self.relay_to(first, tried);
        }
        let held =
            |server: u32| wanted.iter().filter(|&&b| self.placement.replicas(b) >> server & 1 == 1).count();
        let turn = crate::hash::hash(0, 21, u64::from(first)) as u32;
        let candidates = (0..SERVERS_MAX as u32).filter(|s| replicas >> s & 1 == 1);
        let idle = |server: u32| u8::MAX - self.others.loads[server as usize % SERVERS_MAX];
        candidates
            .max_by_key(|&s| (held(s), idle(s), s.wrapping_add(turn) % SERVERS_MAX as u32))
            .map(|s| s as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn parts_are_ranges_of_servers() {
        let parts = Parts::new([2, 1, 3]).unwrap();
        assert_eq!(parts.count(), 3);
        assert_eq!([0, 1, 2, 3, 5].map(|server| parts.of(server)), [0, 0, 1, 2, 2]);
        assert_eq!([0, 1, 2].map(|part| (parts.first(part), parts.servers(part))), [(0, 3), (2, 4), (3, 56)]);
        let relay = |server, reaches| Some(Relay { server, reaches });
        let mut others = Others { relay: relay(5, 0b1001), ..Others::live(0b11_0101) };
        (others.loads[2], others.loads[4]) = (7, 9);
        let own = parts.within(4, &others);
        assert_eq!((own.live, own.loads[1], own.loads[0], own.relay), (0b110, 9, 0, relay(2, 0b1)));
        assert_eq!(parts.within(1, &others).relay, None, "of another part");
        assert_eq!((Parts::ONE.count(), Parts::ONE.of(63), Parts::ONE.servers(0)), (1, 0, u64::MAX));
        let same = Parts::ONE.within(5, &others);
        assert_eq!((same.live, same.relay, same.loads), (others.live, others.relay, others.loads));
        let each = Parts::new([1; 64]).unwrap();
        assert_eq!((each.of(63), each.first(63), each.servers(63)), (63, 63, 1 << 63));
        assert_eq!(each.within(63, &Others::live(u64::MAX)).live, 1);
        for wrong in [&[][..], &[1, 0], &[65], &[64, 1]] {
            assert_eq!(Parts::new(wrong.iter().copied()), None);
        }
    }

    #[test]
    fn invalid_placements_are_refused() {
        assert!(Placement::new(0, vec![]).is_none() && Placement::new(65, vec![1]).is_none());
        assert!(Placement::new(2, vec![1, 0]).is_none() && Placement::new(2, vec![1, 4]).is_none());
        assert!(Placement::new(64, vec![u64::MAX]).is_some());
    }

    #[test]
    fn a_query_goes_to_the_server_with_most_wanted_blocks() {
        let placement = Placement::new(4, vec![0b0110, 0b0100, 0b0010, 0b0100, 0b0001]).unwrap();
        let with = |others| LocalShard { placement: &placement, server: 0, others };
        let shard = with(Others::live(u64::MAX));
        assert_eq!(shard.next(&[0, 1, 2, 3], 0), Some(2));
        assert_eq!(shard.next(&[0, 2], 0), Some(1));
        assert_eq!((shard.next(&[0, 2], 0b10), shard.next(&[2], 0b10)), (Some(2), None));
        assert_eq!(shard.next(&[2, 1, 3], 0), Some(1));
        assert_eq!(with(Others::live(0b0011)).next(&[0, 1, 3], 0), Some(1));
        assert_eq!(with(Others::live(0b1001)).next(&[0, 1, 3], 0), None);
        assert_eq!(shard.next(&[9], 0), None);
        // Ties go to the idle server; the number of held blocks counts more.
        let [mut one, mut two] = [[0; SERVERS_MAX]; 2];
        (one[1], two[2]) = (9, 9);
        assert_eq!(
            (
                with(Others { loads: one, ..shard.others }).next(&[0], 0),
                with(Others { loads: two, ..shard.others }).next(&[0], 0)
            ),
            (Some(2), Some(1))
        );
        assert_eq!(with(Others { loads: two, ..shard.others }).next(&[0, 1, 2, 3], 0), Some(2));
        assert_eq!(placement.blocks_of(2).collect::<Vec<_>>(), [0, 1, 3]);
        assert!(shard.holds(4) && !shard.holds(0) && !LocalShard { server: 200, ..shard }.holds(0));
    }

    #[test]
    fn a_query_goes_by_a_relay_where_no_replica_is_reached() {
        let placement = Placement::new(4, vec![0b0110, 0b0100, 0b1000]).unwrap();
        let others = Others { relay: Some(Relay { server: 1, reaches: 0b0100 }), ..Others::live(0b0010) };
        let shard = LocalShard { placement: &placement, server: 0, others };
        assert_eq!((shard.reach(1, 0), shard.next(&[1], 0)), (Reach::Remote, Some(1)));
        // The relay has failed, the only replica has, or nobody reaches it.
        for (block, tried) in [(1, 0b0010), (1, 0b0100), (2, 0)] {
            assert_eq!((shard.reach(block, tried), shard.next(&[block], tried)), (Reach::Nowhere, None));
        }
        // A replica that is reached goes first.
        assert_eq!(shard.next(&[0, 1], 0), Some(1));
        assert_eq!(shard.next(&[0], 0b0010), None, "the relay could not read it");
    }
}
