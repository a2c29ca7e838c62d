//! Memory nodes of an open index: where each one is, and a connection that is dialed when it is needed.

use std::time::{Duration, Instant};

use super::connect::connect_one;
use super::{Credentials, Facts, MemoryError, Operation, RemoteMemory};

/// Pause after a node could not be dialed.
const PAUSE: Duration = Duration::from_millis(100);

/// A node that has answered with its part of the index.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) address: String,
    pub(super) facts: Facts,
}

/// A connection to a known node, which need not answer before something is asked of it.
pub(super) struct Dialed {
    known: Known,
    credentials: Credentials,
    memory: Option<Box<dyn RemoteMemory>>,
    /// Time at which it is dialed again, and the reason why not before.
    failed: Option<(Instant, MemoryError)>,
}

impl Dialed {
    pub(super) fn boxed(known: &Known, credentials: &Credentials) -> Box<dyn RemoteMemory> {
        let (known, credentials) = (known.clone(), credentials.clone());
        Box::new(Dialed { known, credentials, memory: None, failed: None })
    }

    /// Connects. A node with another region has lost what the index needs.
    fn dial(&self) -> Result<Box<dyn RemoteMemory>, MemoryError> {
        let Known { address, facts } = &self.known;
        let memory = connect_one(address, &self.credentials)?;
        let found = memory.facts();
        if found == *facts {
            return Ok(memory);
        }
        let (address, expected, found) = (address.clone(), facts.epoch, found.epoch);
        Err(MemoryError::EpochChanged { address, expected, found })
    }
}

impl RemoteMemory for Dialed {
    fn facts(&self) -> Facts {
        self.known.facts
    }

    fn address(&self) -> &str {
        &self.known.address
    }

    fn execute(&mut self, operations: &mut [Operation<'_>]) -> Result<(), MemoryError> {
        if let Some((_, why)) = self.failed.as_ref().filter(|(again, _)| Instant::now() < *again) {
            return Err(why.clone());
        }
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => {
                self.dial().inspect_err(|why| self.failed = Some((Instant::now() + PAUSE, why.clone())))?
            }
        };
        self.failed = None;
        self.memory.insert(memory).execute(operations)
    }

    fn backend(&self) -> &'static str {
        self.memory.as_ref().map_or("none", |memory| memory.backend())
    }
}
