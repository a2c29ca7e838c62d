//! Additional replicas of blocks: each goes to the server to which most edges of its block lead or from which they
//! come. Replicas for fault tolerance then also save hand-overs.

use rayon::prelude::*;
use stratann_storage::Result;

use super::SERVERS_MAX;
use super::divide::Shares;
use super::refine::{Incoming, tally};
use super::source::Source;

use crate::parallel;

/// Servers that are remembered per block.
const WISHES: usize = 4;

/// Servers with most edges of each block besides its first server, most first: edges × 64 + server, 0 for none.
pub(super) struct Wishes(Vec<[u32; WISHES]>);

impl Wishes {
    /// Bytes of the table, and of an order of the blocks.
    pub(super) fn bytes(blocks: u64) -> u64 {
        blocks * (4 * WISHES as u64 + 4)
    }

    /// Computes the table in one pass.
    pub(super) fn find(source: &Source<'_>, owner: &[u8], incoming: Option<&Incoming>) -> Result<Wishes> {
        let mut wishes = vec![[0u32; WISHES]; owner.len()];
        source.stream("homes of copies", |first, targets, _| {
            let blocks = wishes[first..first + targets.len()].iter_mut().zip(targets).enumerate();
            parallel::for_each(blocks, |(i, (wish, targets))| {
                let mut tally = tally(first + i, targets, owner, incoming);
                tally[usize::from(owner[first + i])] = 0;
                *wish = heaviest(&tally);
            });
            Ok(())
        })?;
        Ok(Wishes(wishes))
    }

    /// Candidate servers of a block that do not hold it yet: (edges, server).
    fn open(&self, block: u32, holders: u64) -> impl Iterator<Item = (u32, usize)> + '_ {
        let all = self.0[block as usize].iter().filter(|&&w| w > 0).map(|w| (w >> 6, (w & 63) as usize));
        all.filter(move |&(_, server)| holders >> server & 1 == 0)
    }

    /// Returns the blocks, those that gain most by a replica first.
    fn order(&self, holders: &[u64]) -> Vec<u32> {
        let gain = |b: u32| self.open(b, holders[b as usize]).next().map_or(0, |w| w.0);
        let mut order: Vec<u32> = (0..holders.len() as u32).collect();
        order.par_sort_unstable_by_key(|&b| (std::cmp::Reverse(gain(b)), b));
        order
    }
}

fn heaviest(tally: &[u32; SERVERS_MAX]) -> [u32; WISHES] {
    let mut best = [0u32; WISHES];
    for (server, &edges) in tally.iter().enumerate().filter(|(_, edges)| **edges > 0) {
        // Ties go to the smaller number.
        let wish = edges.min(u32::MAX >> 6) << 6 | server as u32;
        let at = best.iter().position(|&b| b >> 6 < wish >> 6);
        if let Some(at) = at {
            best[at..].rotate_right(1);
            best[at] = wish;
        }
    }
    best
}

/// The chosen servers of all blocks, and the load of the servers.
pub(super) struct Holders {
    pub(super) of: Vec<u64>,
    sizes: Vec<u64>,
    shares: Shares,
}

impl Holders {
    /// Starts with every block on its first server only.
    pub(super) fn new(owner: &[u8], shares: &Shares) -> Holders {
        let mut sizes = vec![0u64; shares.servers()];
        owner.iter().for_each(|&s| sizes[usize::from(s)] += 1);
        Holders { of: owner.iter().map(|&s| 1u64 << s).collect(), sizes, shares: shares.clone() }
    }

    fn add(&mut self, block: u32, server: usize) {
        self.of[block as usize] |= 1 << server;
        self.sizes[server] += 1;
    }

    /// Blocks of a server over its room, in 2^32nds.
    fn fullness(&self, server: usize, rooms: &[u64]) -> u128 {
        (u128::from(self.sizes[server]) << 32) / u128::from(rooms[server].max(1))
    }

    /// Adds replicas until every block has `replicas`, one for all blocks per round.
    pub(super) fn replicate(&mut self, wishes: &Wishes, owner: &[u8], replicas: usize) {
        for round in 2..=replicas {
            let rooms = self.shares.rooms((self.of.len() * round) as u64);
            let mut exchange = 0;
            for block in wishes.order(&self.of) {
                let holders = self.of[block as usize];
                let wished = wishes.open(block, holders).map(|w| w.1).find(|&s| self.sizes[s] < rooms[s]);
                let free = (0..self.sizes.len()).filter(|&s| holders >> s & 1 == 0);
                let emptiest = free.min_by_key(|&s| (self.fullness(s, &rooms), s));
                match wished.or(emptiest.filter(|&s| self.sizes[s] < rooms[s])) {
                    Some(server) => self.add(block, server),
                    None => self.exchange(block, owner, &rooms, &mut exchange),
                }
            }
        }
    }

    /// Places a block that all servers with free capacity hold already: a replica of another block moves to one of
    /// them. Every replica is tried at most once per round; when none can move, the emptiest server exceeds its
    /// capacity.
    fn exchange(&mut self, block: u32, owner: &[u8], rooms: &[u64], from: &mut usize) {
        let holders = self.of[block as usize];
        while *from < self.of.len() {
            let other = *from;
            let copies = self.of[other] & !(1 << owner[other]) & !holders;
            let with_room =
                (0..self.sizes.len()).find(|&s| self.sizes[s] < rooms[s] && self.of[other] >> s & 1 == 0);
            if let (true, Some(to)) = (copies != 0, with_room) {
                let given = copies.trailing_zeros() as usize;
                self.of[other] &= !(1 << given);
                self.sizes[given] -= 1;
                self.add(other as u32, to);
                self.add(block, given);
                return;
            }
            *from += 1;
        }
        let free = (0..self.sizes.len()).filter(|&s| holders >> s & 1 == 0);
        if let Some(server) = free.min_by_key(|&s| (self.fullness(s, rooms), s)) {
            self.add(block, server);
        }
    }

    /// Adds a replica to `share` of the blocks: those that gain most, as long as the gaining server has capacity.
    pub(super) fn overlap(&mut self, wishes: &Wishes, share: f64) {
        let mut left = (self.of.len() as f64 * share) as u64;
        let rooms = self.shares.rooms(self.of.len() as u64 + left);
        for block in wishes.order(&self.of) {
            let holders = self.of[block as usize];
            let wished = wishes.open(block, holders).map(|w| w.1).find(|&s| self.sizes[s] < rooms[s]);
            if let Some(server) = wished.filter(|_| left > 0) {
                self.add(block, server);
                left -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::divide::capacity;
    use super::*;
    use stratann_core::build::hash;

    #[test]
    fn the_heaviest_servers_come_first() {
        let mut tally = [0u32; SERVERS_MAX];
        (tally[3], tally[63], tally[9], tally[10], tally[11]) = (5, 9, 5, 1, 2);
        let wish = |edges: u32, server: u32| edges << 6 | server;
        assert_eq!(heaviest(&tally), [wish(9, 63), wish(5, 3), wish(5, 9), wish(2, 11)]);
    }

    fn wishes(blocks: usize, servers: usize, owner: &[u8]) -> Wishes {
        let of = |b: usize| {
            let mut tally = [0u32; SERVERS_MAX];
            (0..servers).for_each(|s| tally[s] = (hash(3, s as u64, b as u64) % 40) as u32 / (s as u32 + 1));
            tally[usize::from(owner[b])] = 0;
            heaviest(&tally)
        };
        Wishes((0..blocks).map(of).collect())
    }

    #[test]
    fn every_block_gets_its_homes_and_no_server_too_many() {
        // All preferences favour the first servers, and so do the first replicas.
        for (blocks, servers) in [(300, 3), (500, 7), (1000, 10), (640, 64)] {
            let owner: Vec<u8> = (0..blocks).map(|b| (b % servers) as u8).collect();
            for replicas in 2..=servers.min(5) {
                let mut holders = Holders::new(&owner, &Shares::new(&[], servers));
                holders.replicate(&wishes(blocks, servers, &owner), &owner, replicas);
                let complete = holders
                    .of
                    .iter()
                    .zip(&owner)
                    .all(|(h, o)| h.count_ones() as usize == replicas && h >> o & 1 == 1);
                assert!(complete, "{blocks} on {servers}, {replicas} times");
                let room = capacity((blocks * replicas) as u64, servers);
                assert!(holders.sizes.iter().all(|&s| s <= room), "{:?} of {room}", holders.sizes);
            }
        }
    }

    #[test]
    fn a_server_with_half_of_the_memory_gets_half_of_the_copies() {
        let (blocks, servers, capacities) = (900, 5, [2.0, 2.0, 2.0, 2.0, 1.0]);
        let shares = Shares::new(&capacities, servers);
        let owner: Vec<u8> = (0..blocks).map(|b| [0, 0, 1, 1, 2, 2, 3, 3, 4][b % 9]).collect();
        for replicas in 2..=3 {
            let mut holders = Holders::new(&owner, &shares);
            holders.replicate(&wishes(blocks, servers, &owner), &owner, replicas);
            assert!(holders.of.iter().all(|h| h.count_ones() as usize == replicas));
            let rooms = shares.rooms((blocks * replicas) as u64);
            let fits = holders.sizes.iter().zip(&rooms).all(|(size, room)| size <= room);
            assert!(fits, "{:?} of {rooms:?}", holders.sizes);
        }
    }

    #[test]
    fn an_exchange_makes_room() {
        // Blocks 0 to 3 are on 0, 4 to 7 on 1, 8 to 11 on 2; preferences fill 0 and 1 first, and only 2 has capacity
        // for replicas from 2.
        let owner: Vec<u8> = (0..12).map(|b| (b / 4) as u8).collect();
        let gain = |b: u32| (100 - b) << 6;
        let wish = |b: u32| [gain(b) | if b < 4 { 1 } else { 0 }, 0, 0, 0];
        let mut holders = Holders::new(&owner, &Shares::new(&[], 3));
        holders.replicate(&Wishes((0..12).map(wish).collect()), &owner, 2);
        assert!(holders.of.iter().all(|h| h.count_ones() == 2));
        assert!(holders.sizes.iter().all(|&s| s <= capacity(24, 3)), "{:?}", holders.sizes);
    }

    #[test]
    fn an_overlap_copies_what_gains_most() {
        let owner: Vec<u8> = (0..100).map(|b| (b % 4) as u8).collect();
        let wish = |b: u32| [((b + 1) << 6) | ((u32::from(owner[b as usize]) + 1) % 4), 0, 0, 0];
        let mut holders = Holders::new(&owner, &Shares::new(&[], 4));
        holders.overlap(&Wishes((0..100).map(wish).collect()), 0.2);
        let copied: Vec<usize> = (0..100).filter(|&b| holders.of[b].count_ones() == 2).collect();
        assert_eq!(copied, (80..100).collect::<Vec<_>>());
    }
}
