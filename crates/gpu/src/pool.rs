//! The blocks of a device: free, with a job, or with a look-up table that is built before its job comes.

use std::collections::VecDeque;

/// A query whose look-up table is to be built, and the block that is kept for it.
#[derive(Debug)]
pub(crate) struct TableRequest {
    pub(crate) block: u32,
    pub(crate) query: Vec<f32>,
}

impl TableRequest {
    pub(crate) fn new(block: u32, query: &[f32]) -> TableRequest {
        TableRequest { block, query: query.to_vec() }
    }
}

/// State of the table of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The request of the table waits for a batch.
    Requested,
    /// The batch of the table is under way.
    Building,
    /// The batch is under way, and a job waits for it.
    Awaited,
    /// The batch is under way, and the owner of the table has dropped it.
    Dropped,
    /// The table is there.
    Built,
}

/// State of its table that a job finds.
#[derive(Debug, PartialEq)]
pub(crate) enum Claim {
    /// The table, in the block.
    Built,
    /// A batch under way that builds it.
    Building,
    /// Only the query: the job builds the table itself.
    Requested(Vec<f32>),
}

/// The blocks of a device.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<u32>,
    // By block; `None` where the block is free or its job may be sent.
    tables: Vec<Option<Stage>>,
    // Blocks with a table whose job has not come. They are at most `unclaimed_max`.
    unclaimed: usize,
    unclaimed_max: usize,
    requests: VecDeque<TableRequest>,
}

impl Pool {
    /// A pool of `count` free blocks, half of which may wait for jobs.
    pub(crate) fn new(count: u32) -> Pool {
        Pool {
            free: (0..count).rev().collect(),
            tables: vec![None; count as usize],
            unclaimed: 0,
            unclaimed_max: count as usize / 2,
            requests: VecDeque::new(),
        }
    }

    /// Number of free blocks.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free block for a job.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Frees the block of a job that has ended.
    pub(crate) fn give(&mut self, block: u32) {
        self.free.push(block);
    }

    /// Keeps a block for a table and requests the table. `None` when tables have half of all blocks, or when the
    /// `jobs` that wait for a block need all that are free.
    pub(crate) fn request(&mut self, query: &[f32], jobs: usize) -> Option<u32> {
        if self.unclaimed >= self.unclaimed_max || self.free.len() <= jobs {
            return None;
        }
        let block = self.free.pop()?;
        self.set(block, Some(Stage::Requested));
        self.unclaimed += 1;
        self.requests.push_back(TableRequest::new(block, query));
        Some(block)
    }

    /// Takes the requests of the next batch, `count` at most.
    pub(crate) fn take_requests(&mut self, count: usize) -> Vec<TableRequest> {
        let taken: Vec<TableRequest> = self.requests.drain(..count.min(self.requests.len())).collect();
        for request in &taken {
            self.set(request.block, Some(Stage::Building));
        }
        taken
    }

    /// Notes that the batch of a table has ended well.
    pub(crate) fn built(&mut self, block: u32) {
        match self.stage(block) {
            Some(Stage::Building) => self.set(block, Some(Stage::Built)),
            Some(Stage::Awaited) => self.set(block, None),
            Some(Stage::Dropped) => self.free_unclaimed(block),
            Some(Stage::Requested | Stage::Built) | None => {}
        }
    }

    /// Gives the block of a table to its job.
    pub(crate) fn claim(&mut self, block: u32) -> Claim {
        self.unclaimed = self.unclaimed.saturating_sub(1);
        if self.stage(block) == Some(Stage::Building) {
            self.set(block, Some(Stage::Awaited));
            return Claim::Building;
        }
        self.set(block, None);
        self.cancel(block).map_or(Claim::Built, |request| Claim::Requested(request.query))
    }

    /// Whether the job with this block must wait for its table.
    pub(crate) fn is_building(&self, block: u32) -> bool {
        self.stage(block).is_some()
    }

    /// Frees the block of a table that is dropped without a job, at once or when its batch has ended.
    pub(crate) fn release(&mut self, block: u32) {
        if self.stage(block) == Some(Stage::Building) {
            return self.set(block, Some(Stage::Dropped));
        }
        self.cancel(block);
        self.free_unclaimed(block);
    }

    fn free_unclaimed(&mut self, block: u32) {
        self.set(block, None);
        self.unclaimed = self.unclaimed.saturating_sub(1);
        self.free.push(block);
    }

    fn cancel(&mut self, block: u32) -> Option<TableRequest> {
        let at = self.requests.iter().position(|request| request.block == block)?;
        self.requests.remove(at)
    }

    fn stage(&self, block: u32) -> Option<Stage> {
        self.tables.get(block as usize).copied().flatten()
    }

    fn set(&mut self, block: u32, stage: Option<Stage>) {
        if let Some(table) = self.tables.get_mut(block as usize) {
            *table = stage;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUERY: [f32; 2] = [1.0, 2.0];

    #[test]
    fn tables_have_half_of_the_blocks_at_most_and_leave_those_that_jobs_wait_for() {
        let mut pool = Pool::new(6);
        assert_eq!(pool.request(&QUERY, 6), None);
        assert!(pool.request(&QUERY, 5).is_some());
        assert_eq!(pool.request(&QUERY, 5), None);
        assert!(pool.request(&QUERY, 0).is_some() && pool.request(&QUERY, 0).is_some());
        assert_eq!((pool.request(&QUERY, 0), pool.free()), (None, 3));
        assert_eq!(Pool::new(1).request(&QUERY, 0), None);
    }

    #[test]
    fn a_job_finds_its_table_in_every_stage() {
        let mut pool = Pool::new(8);
        let blocks: Vec<u32> = (0..3).map(|_| pool.request(&QUERY, 0).expect("a block")).collect();
        let taken: Vec<u32> = pool.take_requests(2).iter().map(|request| request.block).collect();
        assert_eq!(taken, blocks[..2]);
        assert_eq!(pool.claim(blocks[2]), Claim::Requested(QUERY.to_vec()));
        assert!(pool.take_requests(8).is_empty());
        assert_eq!(pool.claim(blocks[1]), Claim::Building);
        assert!(pool.is_building(blocks[1]) && !pool.is_building(blocks[2]));
        taken.iter().for_each(|&block| pool.built(block));
        assert!(!pool.is_building(blocks[1]));
        assert_eq!(pool.claim(blocks[0]), Claim::Built);
        // Their jobs have the blocks.
        assert_eq!((pool.free(), pool.unclaimed), (5, 0));
    }

    #[test]
    fn a_table_that_is_dropped_gives_its_block_back_in_every_stage() {
        let mut pool = Pool::new(8);
        let blocks: Vec<u32> = (0..4).map(|_| pool.request(&QUERY, 0).expect("a block")).collect();
        pool.take_requests(2);
        pool.built(blocks[0]);
        blocks.iter().for_each(|&block| pool.release(block));
        assert_eq!((pool.free(), pool.requests.len()), (7, 0));
        // The block of a table under way is free when its batch has ended, and counts as a table's until then.
        assert_eq!(pool.unclaimed, 1);
        pool.built(blocks[1]);
        assert_eq!((pool.free(), pool.unclaimed), (8, 0));
    }

    proptest! {
        // Every block is free, with a table, or with a job, whatever happens in whatever order.
        #[test]
        fn no_block_is_lost_or_given_twice(
            count in 1..9u32, events in prop::collection::vec((0..6u8, 0..8usize), 0..80),
        ) {
            let mut pool = Pool::new(count);
            let (mut owned, mut building, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
            for (event, at) in events {
                match event {
                    0 => owned.extend(pool.request(&QUERY, at % 3)),
                    1 => building.extend(pool.take_requests(at).iter().map(|request| request.block)),
                    2 => building.drain(..at.min(building.len())).for_each(|block| pool.built(block)),
                    3 if at < owned.len() => pool.release(owned.remove(at)),
                    4 if at < owned.len() => {
                        let block = owned.remove(at);
                        pool.claim(block);
                        jobs.push(block);
                    }
                    5 => jobs.extend(pool.take()),
                    _ => {}
                }
                let mut dropped = building.clone();
                dropped.retain(|block| !owned.contains(block) && !jobs.contains(block));
                let mut all = [&pool.free[..], &owned, &jobs, &dropped].concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..count).collect::<Vec<u32>>());
                prop_assert_eq!(pool.unclaimed, owned.len() + dropped.len());
                prop_assert!(pool.unclaimed <= count as usize / 2);
            }
        }
    }
}
