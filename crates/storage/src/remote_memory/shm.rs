//! Remote memory on the same host: a segment of shared memory, without a thread of the memory node.

use super::client::TcpMemory;
use super::operation::{check_bounds, check_limits};
use super::region::Segment;
use super::{Credentials, Facts, MemoryError, Operation, RemoteMemory};

/// The segment of a node. Reads and writes are copies of words, atomic operations those of the processor.
pub(super) struct ShmMemory {
    address: String,
    name: String,
    credentials: Credentials,
    segment: Segment,
}

impl ShmMemory {
    /// Maps the segment of a node.
    pub(super) fn connect(
        address: &str,
        name: &str,
        credentials: &Credentials,
    ) -> Result<ShmMemory, MemoryError> {
        let (segment, credentials) =
            (Segment::open(address, name, &credentials.secret)?, credentials.clone());
        let memory = ShmMemory { address: address.into(), name: name.into(), segment, credentials };
        memory.check(false)?;
        Ok(memory)
    }

    /// Checks that the node has not ended, and that no load has begun.
    fn check(&self, may_have_run: bool) -> Result<(), MemoryError> {
        if !self.segment.has_ended() {
            return Ok(());
        }
        let (address, expected) = (self.address.clone(), self.segment.facts().epoch);
        match Segment::open(&self.address, &self.name, &self.credentials.secret) {
            Ok(other) if other.facts().epoch != expected => {
                Err(MemoryError::EpochChanged { address, expected, found: other.facts().epoch })
            }
            _ => {
                Err(MemoryError::Disconnected { address, why: "its segment has ended".into(), may_have_run })
            }
        }
    }
}

impl RemoteMemory for ShmMemory {
    fn facts(&self) -> Facts {
        self.segment.facts()
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn execute(&mut self, operations: &mut [Operation<'_>]) -> Result<(), MemoryError> {
        check_limits(operations.iter().map(Operation::access))?;
        check_bounds(operations.iter().map(Operation::access), self.facts().region_bytes)?;
        self.check(false)?;
        operations.iter_mut().for_each(|operation| self.segment.bytes().execute(operation));
        // A change of a segment that ended meanwhile may be lost.
        self.check(operations.iter().any(Operation::changes))
    }

    /// The node makes a new segment under the name, and ends this one.
    fn begin_load(&mut self, load: u64) -> Result<(), MemoryError> {
        TcpMemory::connect(&self.segment.door().to_string(), &self.credentials)?.begin_load(load)?;
        let segment = Segment::open(&self.address, &self.name, &self.credentials.secret)?;
        let (address, found) = (self.address.clone(), segment.facts().epoch);
        if found != load {
            return Err(MemoryError::EpochChanged { address, expected: load, found });
        }
        self.segment = segment;
        Ok(())
    }

    fn backend(&self) -> &'static str {
        "shm"
    }
}
