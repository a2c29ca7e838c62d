//! Which servers hold which blocks, and where a query goes next.

use alloc::vec::Vec;

/// Most servers of one cluster: the homes of a block are the bits of a word.
pub const SERVERS_MAX: usize = 64;

/// The bit that stands for a server; none for one that cannot be.
pub(crate) fn bit(server: u8) -> u64 {
    1u64.checked_shl(u32::from(server)).unwrap_or(0)
}

/// The homes of every block. All servers hold it whole: 8 bytes a block, one and a half a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    servers: usize,
    homes: Vec<u64>,
}

impl Placement {
    /// `homes[b]` has a bit for every server that holds block b. `None` when a block has no home, or one beyond `servers`, or when there are
    /// no servers or more than [`SERVERS_MAX`]; a placement from outside is checked here.
    pub fn new(servers: usize, homes: Vec<u64>) -> Option<Placement> {
        if !(1..=SERVERS_MAX).contains(&servers) {
            return None;
        }
        let all = u64::MAX >> (SERVERS_MAX - servers);
        homes.iter().all(|&h| h != 0 && h & !all == 0).then_some(Placement { servers, homes })
    }

    /// Number of servers.
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// A bit for every server that holds a block; none for a block that does not exist.
    pub fn homes(&self, block: u32) -> u64 {
        self.homes.get(block as usize).copied().unwrap_or(0)
    }

    /// The homes of all blocks.
    pub fn all(&self) -> &[u64] {
        &self.homes
    }

    /// Blocks that a server holds, ascending: its file has them in this order.
    pub fn blocks_of(&self, server: usize) -> impl Iterator<Item = u32> + '_ {
        let held = move |h: u64| server < SERVERS_MAX && h >> server & 1 == 1;
        self.homes.iter().enumerate().filter(move |(_, h)| held(**h)).map(|(b, _)| b as u32)
    }
}

/// The place in a cluster where a query is stepped.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    /// Who holds what.
    pub placement: &'a Placement,
    /// This server.
    pub server: u8,
    /// A bit for every server that answers; this one counts as live in any case.
    pub live: u64,
    /// How much waits on each server, as far as is known here.
    pub loads: [u8; SERVERS_MAX],
}

impl Here<'_> {
    /// Whether this server holds a block.
    pub fn holds(&self, block: u32) -> bool {
        self.placement.homes(block) & bit(self.server) != 0
    }

    /// The live servers that hold a block.
    pub fn live_homes(&self, block: u32) -> u64 {
        self.placement.homes(block) & (self.live | bit(self.server))
    }

    /// The server for a query whose best unread blocks are `wanted`, best first: of the homes of the first, less those `tried`, the one
    /// that holds most of the others; among equals, the one where least waits; then one that the first block's number draws, so that copies share
    /// the load.
    pub(crate) fn next(&self, wanted: &[u32], tried: u64) -> Option<u8> {
        let first = *wanted.first()?;
        let homes = self.live_homes(first) & !tried;
        let held =
            |server: u32| wanted.iter().filter(|&&b| self.placement.homes(b) >> server & 1 == 1).count();
        let turn = crate::hash::hash(0, 21, u64::from(first)) as u32;
        let candidates = (0..SERVERS_MAX as u32).filter(|s| homes >> s & 1 == 1);
        let idle = |server: u32| u8::MAX - self.loads[server as usize % SERVERS_MAX];
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
    fn senseless_placements_are_refused() {
        assert!(Placement::new(0, vec![]).is_none() && Placement::new(65, vec![1]).is_none());
        assert!(Placement::new(2, vec![1, 0]).is_none() && Placement::new(2, vec![1, 4]).is_none());
        assert!(Placement::new(64, vec![u64::MAX]).is_some());
    }

    #[test]
    fn a_query_goes_where_most_of_what_it_wants_lies() {
        let placement = Placement::new(4, vec![0b0110, 0b0100, 0b0010, 0b0100, 0b0001]).unwrap();
        let here = Here { placement: &placement, server: 0, live: u64::MAX, loads: [0; SERVERS_MAX] };
        assert_eq!(here.next(&[0, 1, 2, 3], 0), Some(2));
        assert_eq!(here.next(&[0, 2], 0), Some(1));
        assert_eq!((here.next(&[0, 2], 0b10), here.next(&[2], 0b10)), (Some(2), None));
        assert_eq!(here.next(&[2, 1, 3], 0), Some(1));
        assert_eq!(Here { live: 0b0011, ..here }.next(&[0, 1, 3], 0), Some(1));
        assert_eq!(Here { live: 0b1001, ..here }.next(&[0, 1, 3], 0), None);
        assert_eq!(here.next(&[9], 0), None);
        // Among equals the idle one; what it holds counts more.
        let [mut one, mut two] = [[0; SERVERS_MAX]; 2];
        (one[1], two[2]) = (9, 9);
        assert_eq!(
            (Here { loads: one, ..here }.next(&[0], 0), Here { loads: two, ..here }.next(&[0], 0)),
            (Some(2), Some(1))
        );
        assert_eq!(Here { loads: two, ..here }.next(&[0, 1, 2, 3], 0), Some(2));
        assert_eq!(placement.blocks_of(2).collect::<Vec<_>>(), [0, 1, 3]);
        assert!(here.holds(4) && !here.holds(0) && !Here { server: 200, ..here }.holds(0));
    }
}
