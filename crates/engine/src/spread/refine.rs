//! Moves single blocks to the server to which most of their edges lead (greedy refinement, as in the last step of a
//! multilevel partitioner), while the blocks are read in order.
//!
//! The outgoing edges of a block are known when it is read; its incoming edges are counted in a table, block by server,
//! which every move updates. So each move considers all edges of its block, and none can increase the cut. Counting is
//! parallel, moves are in the order of the blocks.

use std::sync::atomic::{AtomicU16, Ordering};

use stratann_storage::{Progress, Result};

use super::source::{Source, Targets};
use crate::parallel;
use crate::spread::SERVERS_MAX;

/// Most passes over the blocks.
const PASSES: usize = 5;
/// A pass that moves fewer than one block in this many is the last.
const WORTH_A_PASS: u64 = 500;

/// Number of edges into every block from each server, at most u16.
pub(super) struct Incoming {
    servers: usize,
    counts: Vec<AtomicU16>,
}

impl Incoming {
    /// Bytes of the table.
    pub(super) fn bytes(blocks: u64, servers: usize) -> u64 {
        2 * blocks * servers as u64
    }

    /// Counts the edges in one pass.
    pub(super) fn count(source: &Source<'_>, owner: &[u8], servers: usize) -> Result<Incoming> {
        let mut counts = Vec::new();
        counts.resize_with(owner.len() * servers, AtomicU16::default);
        let incoming = Incoming { servers, counts };
        source.stream("edges into blocks", |first, targets, _| {
            parallel::for_each(targets.iter().enumerate(), |(i, targets)| {
                let from = usize::from(owner[first + i]);
                targets.iter().for_each(|&t| incoming.add(t, from));
            });
            Ok(())
        })?;
        Ok(incoming)
    }

    fn add(&self, block: u32, server: usize) {
        let count = &self.counts[block as usize * self.servers + server];
        let raised =
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |c| (c < u16::MAX).then(|| c + 1));
        debug_assert!(raised.is_ok() || count.load(Ordering::Relaxed) == u16::MAX);
    }

    fn move_edge(&mut self, block: u32, from: usize, to: usize) {
        let row = &mut self.counts[block as usize * self.servers..][..self.servers];
        let left = row[from].get_mut();
        *left = left.saturating_sub(1);
        let raised = row[to].get_mut();
        *raised = raised.saturating_add(1);
    }

    fn add_to(&self, block: usize, tally: &mut Tally) {
        let row = &self.counts[block * self.servers..][..self.servers];
        tally.iter_mut().zip(row).for_each(|(t, c)| *t += u32::from(c.load(Ordering::Relaxed)));
    }
}

/// Edges of one block by server.
pub(super) type Tally = [u32; SERVERS_MAX];

/// Counts the edges between a block and each server, by first servers; incoming edges where they are counted.
pub(super) fn tally(block: usize, targets: &[u32], owner: &[u8], incoming: Option<&Incoming>) -> Tally {
    let mut tally = [0u32; SERVERS_MAX];
    targets.iter().for_each(|&t| tally[usize::from(owner[t as usize])] += 1);
    if let Some(incoming) = incoming {
        incoming.add_to(block, &mut tally);
    }
    tally
}

/// The division that is refined.
pub(super) struct Division {
    /// First server of every block.
    pub(super) owner: Vec<u8>,
    /// Blocks of every server.
    pub(super) sizes: Vec<u64>,
    /// Most blocks of each server.
    pub(super) rooms: Vec<u64>,
}

impl Division {
    pub(super) fn new(owner: Vec<u8>, rooms: Vec<u64>) -> Division {
        let mut sizes = vec![0u64; rooms.len()];
        owner.iter().for_each(|&s| sizes[usize::from(s)] += 1);
        Division { owner, sizes, rooms }
    }

    /// Returns the target of a block: the server with most of its edges that has capacity, when these are more than on
    /// the present server, or when the present server exceeds its capacity.
    fn better(&self, own: usize, tally: &Tally) -> Option<usize> {
        let others = (0..self.sizes.len()).filter(|&s| s != own && self.sizes[s] < self.rooms[s]);
        let best = others.max_by_key(|&s| (tally[s], std::cmp::Reverse((self.sizes[s], s))))?;
        (tally[best] > tally[own] || self.sizes[own] > self.rooms[own]).then_some(best)
    }

    /// Refines one chunk of blocks. Returns the number of moves.
    fn visit(&mut self, first: usize, targets: &Targets, mut incoming: Option<&mut Incoming>) -> u64 {
        let mut moves = 0;
        for (i, targets) in targets.iter().enumerate() {
            let block = first + i;
            let own = usize::from(self.owner[block]);
            let tally = tally(block, targets, &self.owner, incoming.as_deref());
            let Some(to) = self.better(own, &tally) else { continue };
            self.owner[block] = to as u8;
            self.sizes[own] -= 1;
            self.sizes[to] += 1;
            moves += 1;
            if let Some(incoming) = &mut incoming {
                targets.iter().for_each(|&t| incoming.move_edge(t, own, to));
            }
        }
        moves
    }
}

/// Refines until few blocks move. Without `incoming` only outgoing edges count.
pub(super) fn run(
    source: &Source<'_>,
    division: &mut Division,
    mut incoming: Option<&mut Incoming>,
    progress: &dyn Progress,
) -> Result<()> {
    for pass in 1..=PASSES {
        let mut moves = 0;
        source.stream("refining", |first, targets, _| {
            moves += division.visit(first, targets, incoming.as_deref_mut());
            Ok(())
        })?;
        progress.note(&format!("refining, pass {pass}: {moves} blocks moved"));
        if moves * WORTH_A_PASS < division.owner.len() as u64 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::build::hash;

    /// 200 blocks in two communities, their edges, and a division with every fifth block on the wrong side.
    fn mixed() -> (Targets, Vec<u8>) {
        let side = |b: usize| b / 100;
        let edge = |b: usize, e: u64| {
            let strays = hash(1, b as u64, e).is_multiple_of(10);
            let to = if strays { 1 - side(b) } else { side(b) };
            (100 * to + (hash(2, b as u64, e) % 100) as usize) as u32
        };
        let targets = (0..200).map(|b| (0..20).map(|e| edge(b, e)).collect()).collect();
        let owner = (0..200).map(|b| (if b % 5 == 0 { 1 - side(b) } else { side(b) }) as u8).collect();
        (targets, owner)
    }

    fn counted(targets: &Targets, owner: &[u8]) -> Incoming {
        let mut counts = Vec::new();
        counts.resize_with(2 * owner.len(), AtomicU16::default);
        let incoming = Incoming { servers: 2, counts };
        for (b, targets) in targets.iter().enumerate() {
            targets.iter().for_each(|&t| incoming.add(t, usize::from(owner[b])));
        }
        incoming
    }

    fn cut(targets: &Targets, owner: &[u8]) -> usize {
        let is_cut = |b: usize, t: u32| owner[b] != owner[t as usize];
        targets.iter().enumerate().map(|(b, ts)| ts.iter().filter(|&&t| is_cut(b, t)).count()).sum()
    }

    #[test]
    fn blocks_go_home_and_the_table_stays_right() {
        let (targets, owner) = mixed();
        let mut incoming = counted(&targets, &owner);
        let mut division = Division::new(owner, vec![105; 2]);
        let mut before = cut(&targets, &division.owner);
        for _ in 0..4 {
            division.visit(0, &targets, Some(&mut incoming));
            let now = cut(&targets, &division.owner);
            assert!(now <= before && division.sizes.iter().all(|&s| s <= 105));
            before = now;
        }
        assert_eq!(division.owner, [[0u8; 100], [1u8; 100]].concat());
        let plain = counted(&targets, &division.owner);
        let values = |i: &Incoming| i.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(values(&incoming), values(&plain));
    }

    #[test]
    fn an_overfull_server_sheds_blocks() {
        let (targets, _) = mixed();
        for with_table in [false, true] {
            let owner = vec![0u8; 200];
            let mut incoming = with_table.then(|| counted(&targets, &owner));
            let mut division = Division::new(owner, vec![105; 2]);
            division.visit(0, &targets, incoming.as_mut());
            assert!(division.sizes.iter().all(|&s| s <= 105), "{:?}", division.sizes);
        }
    }
}
