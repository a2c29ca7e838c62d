//! The region of a memory node: anonymous memory, or a segment of shared memory. It ends with its node.

mod mapping;
mod segment;

use ring::rand::{SecureRandom, SystemRandom};

pub(super) use self::mapping::Mapping;
pub(super) use self::segment::{Segment, segments_work};
use super::ucx::Target;
use super::{Facts, MemoryError, NodeId, Operation};
use crate::{Error, ErrorKind, Result};

/// Where a region is.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// In memory of the process.
    #[default]
    Memory,
    /// A named segment of shared memory.
    Shared(String),
    /// In memory that libucp allocates, for the ucx back end.
    Ucx,
}

/// The bytes of a memory node.
pub(super) struct Region {
    facts: Facts,
    memory: Memory,
}

enum Memory {
    Own(Mapping),
    Shared(Segment),
    Ucx(Target),
}

impl Region {
    /// Makes a region of zeros.
    pub(super) fn open(node: NodeId, region_bytes: u64, place: &Place, secret: &[u8]) -> Result<Region> {
        if region_bytes == 0 {
            return Err(Error::bad_input("a region of 0 bytes; give a --size such as 8GiB"));
        }
        let facts = Facts { node, region_bytes, epoch: random()? };
        let memory = match place {
            Place::Memory => Memory::Own(Mapping::anonymous(region_bytes).map_err(|e| {
                let why = format!("{region_bytes} bytes of memory cannot be had: {e}; give a smaller --size");
                Error { kind: ErrorKind::Io, message: why }
            })?),
            Place::Shared(name) => Memory::Shared(Segment::create(name, &facts, secret)?),
            Place::Ucx => Memory::Ucx(
                Target::new(region_bytes)
                    .map_err(|why| Error::bad_input(format!("--ucx cannot be used: {why}")))?,
            ),
        };
        Ok(Region { facts, memory })
    }

    pub(super) fn facts(&self) -> Facts {
        self.facts
    }

    fn bytes(&self) -> &Mapping {
        match &self.memory {
            Memory::Own(mapping) => mapping,
            Memory::Shared(segment) => segment.bytes(),
            Memory::Ucx(target) => target.bytes(),
        }
    }

    /// The part of the region that the ucx back end works for.
    pub(super) fn target(&self) -> Option<&Target> {
        match &self.memory {
            Memory::Ucx(target) => Some(target),
            Memory::Own(_) | Memory::Shared(_) => None,
        }
    }

    /// What the ucx back end needs; empty without it.
    pub(super) fn attach(&self) -> &[u8] {
        self.target().map_or(&[], Target::attach)
    }

    /// Reads a range that is in the region.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        self.bytes().read(offset, into);
    }

    /// Executes one operation, whose range is in the region.
    pub(super) fn execute(&self, operation: &mut Operation<'_>) {
        self.bytes().execute(operation);
    }

    /// Ends the region: a segment is removed.
    pub(super) fn close(&mut self) {
        if let Memory::Shared(segment) = &mut self.memory {
            segment.remove();
        }
    }
}

/// A random number that is not 0.
pub(crate) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error {
        kind: ErrorKind::Io,
        message: "the system gives no random numbers; check /dev/urandom".into(),
    })?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests;
