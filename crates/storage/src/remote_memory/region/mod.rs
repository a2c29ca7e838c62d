//! The region of a memory node: anonymous memory, or a segment of shared memory. It ends with its node, or when a load
//! begins: then another one takes its place.

mod mapping;
mod segment;

use std::net::SocketAddr;

use ring::rand::{SecureRandom, SystemRandom};

pub(super) use self::mapping::Mapping;
pub(super) use self::segment::{Segment, segments_work};
use super::ucx::Target;
use super::{Facts, MemoryError, NodeId, Operation};
use crate::{Error, ErrorKind, Result};

/// Place of a region.
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
    place: Place,
    memory: Memory,
    door: Option<SocketAddr>,
}

enum Memory {
    Own(Mapping),
    Shared(Segment),
    Ucx(Target),
}

impl Memory {
    fn of(facts: &Facts, place: &Place, secret: &[u8]) -> Result<Memory> {
        let region_bytes = facts.region_bytes;
        Ok(match place {
            Place::Memory => Memory::Own(Mapping::anonymous(region_bytes).map_err(|e| {
                let why = format!("{region_bytes} bytes of memory cannot be had: {e}; give a smaller --size");
                Error { kind: ErrorKind::Io, message: why }
            })?),
            Place::Shared(name) => Memory::Shared(Segment::create(name, facts, secret)?),
            Place::Ucx => Memory::Ucx(
                Target::new(region_bytes)
                    .map_err(|why| Error::bad_input(format!("--ucx cannot be used: {why}")))?,
            ),
        })
    }

    /// Gives the memory back. Where libucp had it, nothing else comes to its addresses: a client may still write there.
    fn release(&mut self) -> std::io::Result<()> {
        let before = std::mem::replace(self, Memory::Own(Mapping::anonymous(8)?));
        let Memory::Ucx(target) = before else { return Ok(()) };
        let pages = target.bytes().pages();
        drop(target);
        mapping::hold(pages)
    }
}

impl Region {
    /// Makes a region of zeros.
    pub(super) fn open(node: NodeId, region_bytes: u64, place: &Place, secret: &[u8]) -> Result<Region> {
        if region_bytes == 0 {
            return Err(Error::bad_input("a region of 0 bytes; give a --size such as 8GiB"));
        }
        let facts = Facts { node, region_bytes, epoch: random()? };
        let memory = Memory::of(&facts, place, secret)?;
        Ok(Region { facts, place: place.clone(), memory, door: None })
    }

    /// Notes where the node listens.
    pub(super) fn set_door(&mut self, door: SocketAddr) {
        self.door = Some(door);
        if let Memory::Shared(segment) = &self.memory {
            segment.set_door(door);
        }
    }

    /// Replaces the region by one of zeros. Whoever has access to the one before keeps to memory that nobody reads.
    ///
    /// # Errors
    /// Memory that cannot be had: there is no region then.
    pub(super) fn begin_load(&mut self, load: u64, secret: &[u8]) -> Result<()> {
        self.close();
        self.memory.release().map_err(|e| Error {
            kind: ErrorKind::Io,
            message: format!("the memory of the last load cannot be given back: {e}; start the node again"),
        })?;
        self.facts.epoch = load;
        self.memory = Memory::of(&self.facts, &self.place, secret)?;
        self.door.into_iter().for_each(|door| self.set_door(door));
        Ok(())
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

    /// Bytes that the ucx back end needs; empty without it.
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
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error {
        kind: ErrorKind::Io,
        message: "the system gives no random numbers; check /dev/urandom".into(),
    })?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests;
