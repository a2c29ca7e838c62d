//! Memory nodes that do not answer: they are looked for until they answer again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use stratann_core::format::region::{SUPERBLOCK_BYTES, Superblock};

use super::connect::connect_one;
use super::{Credentials, Facts, MemoryError, Operation, RemoteMemory};

/// Interval at which lost nodes are looked for. The first look comes later for a node that was lost more often.
const LOOK: Duration = Duration::from_millis(500);
const DOUBLINGS_MAX: u64 = 4;

/// A node that answered when the index was opened.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) address: String,
    pub(super) facts: Facts,
}

/// One node that was lost at some time.
#[derive(Default)]
struct Looked {
    /// How often it answered again.
    returns: u64,
    /// Looks until it is asked, while it is lost.
    looks_left: u64,
    is_lost: bool,
}

/// Nodes that were lost, and which of them answer again.
pub(super) struct LostNodes {
    pub(super) known: Vec<Known>,
    credentials: Credentials,
    /// The build and the load that the superblocks of all nodes name.
    load: OnceLock<(u64, u64)>,
    looked: Mutex<BTreeMap<u8, Looked>>,
}

impl LostNodes {
    pub(super) fn new(known: Vec<Known>, credentials: Credentials) -> Arc<LostNodes> {
        Arc::new(LostNodes { known, credentials, load: OnceLock::new(), looked: Mutex::default() })
    }

    /// Notes the build and the load of the open index.
    pub(super) fn expect(&self, superblock: &Superblock) {
        // An index is opened once, and the nodes were compared with each other.
        let _ = self.load.set((superblock.build, superblock.sequence));
    }

    fn looked(&self) -> MutexGuard<'_, BTreeMap<u8, Looked>> {
        self.looked.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that a node does not answer. Returns how often it has answered again so far.
    pub(super) fn lose(self: &Arc<Self>, node: u8) -> u64 {
        let mut looked = self.looked();
        let is_looking = looked.values().any(|own| own.is_lost);
        let own = looked.entry(node).or_default();
        if !own.is_lost {
            (own.is_lost, own.looks_left) = (true, (1 << own.returns.min(DOUBLINGS_MAX)) - 1);
        }
        let returns = own.returns;
        if !is_looking {
            let lost = Arc::downgrade(self);
            // Without a thread the node stays lost, and its mirror is read.
            let started = Builder::new().name("lost-nodes".into()).spawn(move || look(&lost));
            own.is_lost = started.is_ok();
        }
        returns
    }

    /// How often a node has answered again.
    pub(super) fn returns(&self, node: u8) -> u64 {
        self.looked().get(&node).map_or(0, |own| own.returns)
    }

    /// Asks the nodes whose turn it is. Returns whether some are lost still.
    fn look_once(&self) -> bool {
        let mut due = Vec::new();
        for (&node, own) in self.looked().iter_mut().filter(|(_, own)| own.is_lost) {
            match own.looks_left.checked_sub(1) {
                Some(left) => own.looks_left = left,
                None => due.push(node),
            }
        }
        let found: Vec<u8> = due.into_iter().filter(|&node| self.answers(node)).collect();
        let mut looked = self.looked();
        for node in found {
            if let Some(own) = looked.get_mut(&node) {
                (own.is_lost, own.returns) = (false, own.returns + 1);
            }
        }
        looked.values().any(|own| own.is_lost)
    }

    /// Whether a node answers with the region that it had, and that holds the same load of the index.
    fn answers(&self, node: u8) -> bool {
        let Some(known) = self.known.iter().find(|own| own.facts.node.0 == node) else { return false };
        let Ok(mut memory) = connect_one(&known.address, &self.credentials) else { return false };
        let mut bytes = vec![0; 2 * SUPERBLOCK_BYTES as usize];
        let read = memory.execute(&mut [Operation::Read { offset: 0, into: &mut bytes }]);
        let found = Superblock::newest(&bytes).map(|own| (own.build, own.sequence));
        let facts = memory.facts();
        let is_same = (facts.node, facts.epoch) == (known.facts.node, known.facts.epoch);
        read.is_ok() && is_same && found.as_ref() == self.load.get()
    }
}

/// Looks for lost nodes until all answer, or the index is closed.
fn look(lost: &Weak<LostNodes>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(lost) = lost.upgrade() else { return };
        if !lost.look_once() {
            return;
        }
    }
}

/// A known node without a connection, which is dialed when something is asked of it.
pub(super) struct Awaited {
    known: Known,
    credentials: Credentials,
    memory: Option<Box<dyn RemoteMemory>>,
    /// When it is dialed again, and why not before.
    failed: Option<(Instant, MemoryError)>,
}

impl Awaited {
    pub(super) fn new(known: &Known, credentials: &Credentials) -> Awaited {
        Awaited { known: known.clone(), credentials: credentials.clone(), memory: None, failed: None }
    }

    fn dial(&self) -> Result<Box<dyn RemoteMemory>, MemoryError> {
        let Known { address, facts } = &self.known;
        let memory = connect_one(address, &self.credentials)?;
        let found = memory.facts();
        match found.node == facts.node {
            true if found.epoch == facts.epoch => Ok(memory),
            true => {
                let (expected, found) = (facts.epoch, found.epoch);
                Err(MemoryError::EpochChanged { address: address.clone(), expected, found })
            }
            false => Err(MemoryError::Missing { node: facts.node.0 }),
        }
    }
}

impl RemoteMemory for Awaited {
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
                self.dial().inspect_err(|why| self.failed = Some((Instant::now() + LOOK, why.clone())))?
            }
        };
        self.failed = None;
        self.memory.insert(memory).execute(operations)
    }

    fn backend(&self) -> &'static str {
        self.memory.as_ref().map_or("none", |memory| memory.backend())
    }
}
