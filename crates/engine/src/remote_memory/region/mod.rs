//! The region of a memory node: anonymous memory, memory with a file, or a segment of shared memory.

mod file;
mod journal;
mod mapping;
mod segment;

use std::path::PathBuf;

use ring::rand::{SecureRandom, SystemRandom};

use self::file::RegionFile;
pub(super) use self::mapping::Mapping;
pub(super) use self::segment::{Segment, segments_work};
use super::ucx::Target;
use super::{Facts, MemoryError, NodeId, Operation};
use crate::{Error, ErrorKind, Result};

/// Where a region is.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// In memory alone.
    #[default]
    Memory,
    /// In memory, and durable on a file.
    File(PathBuf),
    /// A named segment of shared memory.
    Shared(String),
    /// In memory that libucp allocates, for the ucx back end.
    Ucx,
}

/// The bytes of a memory node.
pub(super) struct Region {
    facts: Facts,
    memory: Memory,
    file: Option<RegionFile>,
}

enum Memory {
    Own(Mapping),
    Shared(Segment),
    Ucx(Target),
}

impl Region {
    /// Makes a region, or opens that of a file.
    pub(super) fn open(node: NodeId, region_bytes: u64, place: &Place) -> Result<Region> {
        if region_bytes == 0 {
            return Err(Error::bad_input("a region of 0 bytes; give a --size such as 8GiB"));
        }
        let own = || {
            Mapping::anonymous(region_bytes).map_err(|e| {
                let why = format!("{region_bytes} bytes of memory cannot be had: {e}; give a smaller --size");
                Error { kind: ErrorKind::Io, message: why }
            })
        };
        let facts = Facts { node, region_bytes, epoch: random()?, has_file: false };
        Ok(match place {
            Place::Memory => Region { facts, memory: Memory::Own(own()?), file: None },
            Place::Shared(name) => {
                Region { facts, memory: Memory::Shared(Segment::create(name, &facts)?), file: None }
            }
            Place::Ucx => {
                let target = Target::new(region_bytes)
                    .map_err(|why| Error::bad_input(format!("--ucx cannot be used: {why}")))?;
                Region { facts, memory: Memory::Ucx(target), file: None }
            }
            Place::File(path) => {
                let mapping = own()?;
                let (file, epoch) = RegionFile::open(path, &mapping, facts.epoch)?;
                let facts = Facts { epoch, has_file: true, ..facts };
                Region { facts, memory: Memory::Own(mapping), file: Some(file) }
            }
        })
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

    /// Executes one operation, whose range is in the region. With a file, a change is durable after the next
    /// [`Region::commit`].
    pub(super) fn execute(&mut self, operation: &mut Operation<'_>) {
        self.bytes().execute(operation);
        let Some(file) = &mut self.file else { return };
        match operation {
            Operation::Read { .. } => {}
            Operation::Write { offset, from } => file.note(*offset, from),
            Operation::FetchAdd { offset, add, old } => {
                file.note(*offset, &old.wrapping_add(*add).to_le_bytes());
            }
            Operation::CompareSwap { offset, expected, new, old } if old == expected => {
                file.note(*offset, &new.to_le_bytes());
            }
            Operation::CompareSwap { .. } => {}
        }
    }

    /// Bytes of changes that are not durable yet.
    pub(super) fn uncommitted_bytes(&self) -> usize {
        self.file.as_ref().map_or(0, RegionFile::noted_bytes)
    }

    /// Makes all changes durable, when there is a file.
    pub(super) fn commit(&mut self) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let memory = match &self.memory {
            Memory::Own(mapping) => mapping,
            Memory::Shared(segment) => segment.bytes(),
            Memory::Ucx(target) => target.bytes(),
        };
        file.commit(memory)
    }

    /// Ends the region: a file is brought up to date, and a segment is removed.
    pub(super) fn close(&mut self) -> Result<()> {
        self.commit()?;
        match (&mut self.file, &mut self.memory) {
            (Some(file), Memory::Own(memory)) => file.checkpoint(memory),
            (_, Memory::Shared(segment)) => {
                segment.remove();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Opens a segment of shared memory for a client.
pub(super) fn open_segment(address: &str, name: &str) -> std::result::Result<Segment, MemoryError> {
    Segment::open(address, name)
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
