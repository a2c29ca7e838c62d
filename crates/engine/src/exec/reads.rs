//! Reads of a driver: from a query's want to its result, by way of the cache, of equal reads under way, or of the tier.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use stratann_core::kinds::IndexView;
use stratann_core::query::{Extent, Loss, MAX_WIDTH, QueryStats, Read, ScorerId, Tag, Want};
use stratann_storage::cache::{Cached, ExtentCache};
use stratann_storage::link::Inbounds;
use stratann_storage::tier::{Buffer, Completion, FileId, Tier};

use super::batch_loads::{Completed, ThreadBatch};
use super::codes::CodeScorer;
use super::options::READS_WANTED;
use super::segment::view_of;
use super::shared_reads::{Asker, Delivery, Place, Share};
use super::slot::{ReadResult, seen};
use super::{Driver, MergedReads, Queries, Scored};

/// Queued reads are started, before further steps, once there are so many. A system call for each would cost more
/// than the wait.
pub const START_READS: usize = 32;
/// Time of computing after which reads are also started, in nanoseconds.
const START_AFTER_NS: u64 = 500_000;

/// A read that the tier makes for this thread.
pub(super) struct TierRead {
    // The segment that is read, and the number of its file.
    seat: usize,
    file: FileId,
    read: Read,
    // Bytes of the read before its own first: reads begin at multiples of the tier's alignment.
    skip: usize,
    to: To,
    // Whether others may have joined it.
    is_shared: bool,
    // Whether its query is in the background.
    is_background: bool,
}

/// Receiver of the bytes of a read.
#[derive(Clone, Copy)]
enum To {
    /// One query, and those that joined it.
    Query(Asker),
    /// All queries that wait for a gathered read: its number.
    Batch(usize),
}

/// The reads that the tier makes, by the tag that it knows them by.
#[derive(Default)]
pub(super) struct TierReads {
    reads: Vec<Option<TierRead>>,
    free: Vec<usize>,
}

impl TierReads {
    fn add(&mut self, read: TierRead) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[at] = Some(read);
        at as u64
    }

    fn remove(&mut self, tag: u64) -> Option<TierRead> {
        let read = self.reads.get_mut(tag as usize)?.take()?;
        self.free.push(tag as usize);
        Some(read)
    }

    /// Queues a gathered read of the loader, which knows it by `number`.
    pub(super) fn load(
        &mut self,
        tier: &mut dyn Tier,
        file: FileId,
        (read, at): (Read, Extent),
        number: usize,
    ) {
        let (offset, bytes) = aligned(tier, at);
        let skip = (at.offset - offset) as usize;
        let to = To::Batch(number);
        let tag =
            self.add(TierRead { seat: 0, file, read, skip, to, is_shared: false, is_background: false });
        let mut buffer = Buffer::new(bytes);
        buffer.show_exactly(bytes);
        tier.submit(tag, file, offset, buffer);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.reads.len()
    }

    /// The reads that others may wait for.
    pub(super) fn shared(&self) -> impl Iterator<Item = Place> {
        let shared = self.reads.iter().flatten().filter(|read| read.is_shared);
        shared.map(|read| Place { file: read.file, at: read.read.at })
    }
}

/// Offset and bytes of the read that covers an extent.
fn aligned(tier: &dyn Tier, at: Extent) -> (u64, usize) {
    let alignment = tier.alignment() as u64;
    let offset = at.offset / alignment * alignment;
    (offset, (at.end() - offset).next_multiple_of(alignment) as usize)
}

/// Verifies bytes that were read and makes them ready for steps. The cache keeps those that will never change.
pub(super) fn take_in(
    view: &IndexView<'_>,
    cache: Option<&ExtentCache>,
    read: &Read,
    bytes: &mut [u8],
) -> Result<(), Loss> {
    view.check_read(read, bytes)?;
    if view.mask_unwritten(read, bytes)
        && let Some(cache) = cache
    {
        cache.put(read.at, bytes);
    }
    Ok(())
}

impl Driver<'_> {
    /// Begins to meet the wants of a query's last step.
    pub(super) fn fetch_wants(&mut self, slot: usize, queries: &mut dyn Queries) {
        for i in 0..self.slots[slot].state.wants().len() {
            let (tag, at) = match self.slots[slot].state.wants()[i] {
                Want::Fetch { tag, at } => (tag, at),
                Want::Score { tag, to: ScorerId::Server(to) } => {
                    self.score(slot, (tag, to), queries);
                    continue;
                }
                Want::Score { tag, to: ScorerId::Codes } => {
                    self.rank_codes(slot, tag);
                    continue;
                }
                Want::Tell { to, threshold } => {
                    if let Some(peers) = queries.peers() {
                        peers.tell(self.slots[slot].number, to, threshold);
                    }
                    continue;
                }
            };
            let Some(read) = self.slots[slot].state.read_of(tag) else { continue };
            let asker = Asker { slot: slot as u32, generation: self.slots[slot].generation, tag };
            let thread_batch = self.thread_batch.as_ref().filter(|own| !own.is_loading());
            if let (Some(thread_batch), Some((_, mailbox))) = (thread_batch, &self.sharing) {
                thread_batch.want(read, mailbox, asker);
                self.joined += 1;
                continue;
            }
            let cached = self.seats[self.slots[slot].seat].segment.cache().and_then(|cache| cache.get(at));
            let cached = cached.map(|bytes| match bytes {
                Cached::Resident(_) => ReadResult::Cached(at),
                Cached::Shared(bytes) => ReadResult::Shared(bytes),
            });
            let result = if cached.is_some() {
                self.slots[slot].state.count_cache_hit(tag);
                cached
            } else {
                let is_background = self.slots[slot].is_background;
                if self.postponed(is_background).is_empty() && self.has_room(slot, read, is_background) {
                    self.read(asker, read, queries).map(|loss| self.lost(read, loss, queries))
                } else {
                    self.postponed(is_background).push_back((asker, read));
                    None
                }
            };
            if let Some(result) = result {
                self.slots[slot].results.push((tag, result));
            }
        }
    }

    /// Asks another server for the scores of a job.
    fn score(&mut self, slot: usize, job: (Tag, u8), queries: &mut dyn Queries) {
        let own = &mut self.slots[slot];
        let segment = &self.seats[own.seat].segment;
        let view = seen(view_of(&**segment, &self.others), own.snapshot.as_ref());
        let peers = queries.peers();
        if !peers.is_some_and(|peers| peers.score(own.number, job, &view, &own.state)) {
            own.results.push((job.0, ReadResult::Lost(Loss::Failed)));
        }
    }

    /// Gives scores that have arrived to the queries that wait for them.
    pub(super) fn collect_scores(&mut self, queries: &mut dyn Queries) {
        let Some(peers) = queries.peers() else { return };
        let mut scores = std::mem::take(&mut self.scores);
        peers.scored(&mut scores);
        for Scored { number, tag, scores } in scores.drain(..) {
            let at = self.slots.iter().position(|slot| slot.is_active && slot.number == number);
            let Some(at) = at else { continue };
            self.slots[at].results.push((tag, scores.map_or_else(ReadResult::Lost, ReadResult::Scores)));
            if self.slots[at].is_ready() {
                self.enqueue(at);
            }
        }
        self.scores = scores;
    }

    /// Joins an equal read that is under way, or gives the read to the tier, which has room. Returns why there can be
    /// no such read.
    fn read(&mut self, asker: Asker, read: Read, queries: &mut dyn Queries) -> Option<Loss> {
        let seat = self.slots[asker.slot as usize].seat;
        let segment = &self.seats[seat].segment;
        let Some(at) = segment.locate(read.at) else { return Some(Loss::Short) };
        let file = segment.file_ids().of(at.store);
        match self.tier.file_bytes(file) {
            None => return Some(Loss::Failed),
            Some(file_bytes) if at.end() > file_bytes => return Some(Loss::Short),
            Some(_) => {}
        }
        let share = match &self.sharing {
            None => Share::ReadAlone,
            Some((shared, mailbox)) => shared.begin(Place { file, at: read.at }, read, mailbox, asker),
        };
        let is_background = self.slots[asker.slot as usize].is_background;
        self.has_urgent |= !is_background;
        if share == Share::Join {
            queries.merged(MergedReads { reads: 1, bytes: aligned(&*self.tier, at).1 as u64 });
            self.joined += 1;
            return None;
        }
        let (offset, bytes) = aligned(&*self.tier, at);
        let buffer = self.buffers.take(bytes);
        self.background_reads += usize::from(is_background);
        let is_shared = share == Share::Read;
        let skip = (at.offset - offset) as usize;
        let to = To::Query(asker);
        let tag = self.reads.add(TierRead { seat, file, read, skip, to, is_shared, is_background });
        self.tier.submit(tag, file, offset, buffer);
        self.unstarted += 1;
        if self.thread_batch.is_some() {
            // A query of a gathered batch counts no reads of its own.
            let (bytes_read, pages_read) = (u64::from(at.bytes), at.pages());
            if let Some(loads) = queries.loads() {
                loads.loaded(&QueryStats {
                    reads: 1,
                    round_trips: 1,
                    bytes_read,
                    pages_read,
                    ..QueryStats::default()
                });
            }
        }
        None
    }

    pub(super) fn usual_begin(&mut self, count: usize) {
        self.foreground_in_flight += count;
        self.sharing.iter().for_each(|(shared, _)| shared.usual_begin(count));
    }

    pub(super) fn usual_end(&mut self, count: usize) {
        self.foreground_in_flight -= count;
        self.sharing.iter().for_each(|(shared, _)| shared.usual_end(count));
    }

    /// Whether the tier takes one more read, and a buffer for it keeps to the limit. The background has no more reads
    /// under way than the widest query, and few while other queries are in flight on any thread: theirs would wait.
    fn has_room(&self, slot: usize, read: Read, is_background: bool) -> bool {
        let segment = &self.seats[self.slots[slot].seat].segment;
        let has_usual = self.foreground_in_flight > 0
            || self.sharing.as_ref().is_some_and(|(shared, _)| shared.has_usual());
        let most = if has_usual { READS_WANTED } else { MAX_WIDTH as usize };
        (!is_background || self.background_reads < most)
            && self.tier.room() > 0
            && self.buffers.has_room(aligned(&*self.tier, segment.locate(read.at).unwrap_or(read.at)).1)
    }

    fn postponed(&mut self, is_background: bool) -> &mut VecDeque<(Asker, Read)> {
        if is_background { &mut self.postponed_background } else { &mut self.postponed_usual }
    }

    fn read_postponed(&mut self, queries: &mut dyn Queries) {
        for is_background in [false, true] {
            while let Some(&(asker, read)) = self.postponed(is_background).front() {
                if !self.has_room(asker.slot as usize, read, is_background) {
                    break;
                }
                self.postponed(is_background).pop_front();
                if let Some(loss) = self.read(asker, read, queries) {
                    let result = self.lost(read, loss, queries);
                    self.give(asker, result);
                }
            }
        }
    }

    /// Starts queued reads when they are many, or have been queued for long.
    pub(super) fn start_reads(&mut self) -> io::Result<()> {
        if self.unstarted == 0 {
            self.unstarted_ns = 0;
        } else if self.unstarted >= START_READS || self.unstarted_ns >= START_AFTER_NS {
            self.start_reads_now()?;
        }
        Ok(())
    }

    pub(super) fn start_reads_now(&mut self) -> io::Result<()> {
        (self.unstarted, self.unstarted_ns, self.has_urgent) = (0, 0, false);
        self.tier.start()
    }

    /// Whether reads are under way that a query of this thread, or of another, may wait for.
    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
            || self.joined > 0
            || self.thread_batch.as_ref().is_some_and(ThreadBatch::is_loading)
            || self.seats.iter().any(|seat| seat.codes.as_ref().is_some_and(CodeScorer::may_wait))
    }

    /// Takes in completed reads and deliveries; with `wait`, waits for one.
    pub(super) fn collect(&mut self, wait: bool, queries: &mut dyn Queries) -> io::Result<()> {
        let wait = wait && self.sharing.as_ref().is_none_or(|(_, mailbox)| mailbox.may_wait());
        if wait {
            // Waiting starts all reads.
            (self.unstarted, self.has_urgent) = (0, false);
        }
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.tier.poll(wait, &mut completions);
        for completion in completions.drain(..) {
            if completion.tag >= Inbounds::TAGS {
                self.inbounds.take(&mut *self.tier, completion);
                self.unstarted += 1;
            } else {
                self.complete(completion, queries);
            }
        }
        self.completions = completions;
        self.collect_deliveries(wait, queries);
        self.read_postponed(queries);
        polled
    }

    /// Begins to receive from the servers whose connections this thread takes over.
    pub(super) fn take_connections(&mut self, queries: &mut dyn Queries) {
        while let Some(connection) = queries.connection() {
            match self.inbounds.add(&mut *self.tier, connection) {
                Ok(()) => self.unstarted += 1,
                Err(refused) => queries.connection_refused(*refused),
            }
        }
    }

    fn collect_deliveries(&mut self, has_waited: bool, queries: &mut dyn Queries) {
        let Some((_, mailbox)) = &self.sharing else { return };
        if has_waited {
            mailbox.end_wait();
        }
        let mut deliveries = std::mem::take(&mut self.deliveries);
        let thread_batch = &mut self.thread_batch;
        mailbox.take(&mut deliveries, |load| {
            if let Some(thread_batch) = thread_batch {
                thread_batch.deliveries.push_back(load);
            }
        });
        for Delivery { to, read, result } in deliveries.drain(..) {
            self.joined -= 1;
            let result = match result {
                Ok(bytes) => ReadResult::Shared(bytes),
                Err(loss) => self.lost(read, loss, queries),
            };
            self.give(to, result);
        }
        self.deliveries = deliveries;
    }

    fn complete(&mut self, Completion { tag, mut buffer, result }: Completion, queries: &mut dyn Queries) {
        let Some(TierRead { seat, file, read, skip, to, is_shared, is_background }) = self.reads.remove(tag)
        else {
            return;
        };
        self.background_reads -= usize::from(is_background);
        let result = result.map_err(|_| Loss::Failed);
        let asker = match to {
            To::Query(asker) => asker,
            To::Batch(number) => {
                self.loaded(number, result.map(|end| Completed { buffer, skip, end }), queries);
                return;
            }
        };
        let at = read.at;
        let range = skip..skip + at.bytes as usize;
        let taken = result.and_then(|end| {
            let bytes = buffer.bytes_mut()[..end].get_mut(range.clone()).ok_or(Loss::Short)?;
            let snapshot = self.thread_batch.as_ref().and_then(|thread_batch| thread_batch.snapshot.as_ref());
            let segment = &*self.seats[seat].segment;
            let view = seen(view_of(segment, &self.others), snapshot);
            take_in(&view, segment.cache(), &read, bytes)
        });
        // The cache has the bytes before the read ends: who finds it ended finds them there.
        if let Some((shared, _)) = self.sharing.as_ref().filter(|_| is_shared) {
            shared.complete(Place { file, at }, || taken.map(|()| Arc::from(&buffer.bytes()[range.clone()])));
        }
        let result = match taken {
            Ok(()) => ReadResult::Buffer(buffer, range),
            Err(loss) => {
                self.buffers.recycle(buffer);
                self.lost(read, loss, queries)
            }
        };
        self.give(asker, result);
    }

    pub(super) fn lost(&self, read: Read, loss: Loss, queries: &mut dyn Queries) -> ReadResult {
        queries.lost(read, loss);
        ReadResult::Lost(loss)
    }

    /// Gives a result to the query that asked for it. One that has ended did not wait for it.
    pub(super) fn give(&mut self, to: Asker, result: ReadResult) {
        let slot = &mut self.slots[to.slot as usize];
        if slot.is_active && slot.generation == to.generation {
            slot.results.push((to.tag, result));
            if slot.is_ready() {
                self.enqueue(to.slot as usize);
            }
        } else if let ReadResult::Buffer(buffer, _) = result {
            self.buffers.recycle(buffer);
        }
    }
}

/// A driver gives the tier its buffers back. One that ends early leaves no query of another thread waiting.
impl Drop for Driver<'_> {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            slot.release(&mut self.buffers);
        }
        self.tier.take_back(self.buffers.empty());
        let Some((shared, mailbox)) = &self.sharing else { return };
        mailbox.close();
        for place in self.reads.shared() {
            shared.complete(place, || Err(Loss::Failed));
        }
        shared.usual_end(self.foreground_in_flight);
    }
}
