//! Memory nodes that do not answer: they are looked for until they answer again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use stratann_core::format::region::{SUPERBLOCK_BYTES, Superblock};

use super::connect::connect_one;
use super::{Credentials, Facts, MemoryError, NodeId, Operation, RemoteMemory};

/// Interval at which lost nodes are looked for. The first look comes later for a node that was lost more often.
const LOOK: Duration = Duration::from_millis(500);
const DOUBLINGS_MAX: u64 = 4;

/// A node that has answered with its part of the index.
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

/// What the superblocks of all nodes say.
struct Load {
    build: u64,
    sequence: u64,
    /// Nodes with a part of the index, and the bytes of their regions that it may use.
    nodes: Vec<(u8, u64)>,
}

/// Nodes that were lost, and which of them answer again.
pub(super) struct LostNodes {
    known: Mutex<Vec<Known>>,
    addresses: Vec<String>,
    credentials: Credentials,
    load: OnceLock<Load>,
    looked: Mutex<BTreeMap<u8, Looked>>,
}

impl LostNodes {
    pub(super) fn new(known: Vec<Known>, addresses: &[String], credentials: Credentials) -> Arc<LostNodes> {
        let (load, looked) = (OnceLock::new(), Mutex::default());
        Arc::new(LostNodes {
            known: Mutex::new(known),
            addresses: addresses.to_vec(),
            credentials,
            load,
            looked,
        })
    }

    /// Notes the load of the open index and the nodes that have parts of it. Those that are not known are looked for.
    pub(super) fn expect(self: &Arc<Self>, superblock: &Superblock, nodes: Vec<(u8, u64)>) {
        let Superblock { build, sequence, .. } = *superblock;
        let unknown: Vec<u8> = nodes.iter().map(|node| node.0).filter(|&n| self.find(n).is_none()).collect();
        // An index is opened once, and the nodes were compared with each other.
        let _ = self.load.set(Load { build, sequence, nodes });
        for node in unknown {
            self.lose(node);
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn find(&self, node: u8) -> Option<Known> {
        self.known().iter().find(|own| own.facts.node.0 == node).cloned()
    }

    /// Properties of the known nodes.
    pub(super) fn facts(&self) -> Vec<Facts> {
        self.known().iter().map(|own| own.facts).collect()
    }

    /// The same, and of nodes that are not known yet what is known of them.
    pub(super) fn all_facts(&self) -> Vec<Facts> {
        let mut all = self.facts();
        for &(node, region_bytes) in self.load.get().map_or(&[][..], |load| &load.nodes) {
            if all.iter().all(|own| own.node.0 != node) {
                all.push(Facts { node: NodeId(node), region_bytes, epoch: 0, has_file: false });
            }
        }
        all
    }

    /// Forgets a node, and returns its address.
    pub(super) fn leave_out(&self, node: u8) -> String {
        let mut known = self.known();
        let at = known.iter().position(|own| own.facts.node.0 == node);
        at.map_or(String::new(), |at| known.remove(at).address)
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

    /// Whether a node answers with the region that it had, and that holds the same load of the index. A node that is
    /// not known yet is then.
    fn answers(&self, node: u8) -> bool {
        if let Some(known) = self.find(node) {
            return self.facts_of_load(&known.address) == Some(known.facts);
        }
        let taken: Vec<String> = self.known().iter().map(|own| own.address.clone()).collect();
        for address in self.addresses.iter().filter(|address| !taken.contains(address)) {
            if let Some(facts) = self.facts_of_load(address).filter(|facts| facts.node.0 == node) {
                self.known().push(Known { address: address.clone(), facts });
                return true;
            }
        }
        false
    }

    /// Properties of the node at an address, if it holds the load of the open index.
    fn facts_of_load(&self, address: &str) -> Option<Facts> {
        let mut memory = connect_one(address, &self.credentials).ok()?;
        let mut bytes = vec![0; 2 * SUPERBLOCK_BYTES as usize];
        memory.execute(&mut [Operation::Read { offset: 0, into: &mut bytes }]).ok()?;
        let (found, load) = (Superblock::newest(&bytes)?, self.load.get()?);
        ((found.build, found.sequence) == (load.build, load.sequence)).then(|| memory.facts())
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

/// A node without a connection, which is dialed when something is asked of it and it is known.
pub(super) struct Awaited {
    facts: Facts,
    address: String,
    lost: Arc<LostNodes>,
    memory: Option<Box<dyn RemoteMemory>>,
    /// When it is dialed again, and why not before.
    failed: Option<(Instant, MemoryError)>,
}

impl Awaited {
    pub(super) fn new(facts: Facts, lost: &Arc<LostNodes>) -> Awaited {
        let address = lost.find(facts.node.0).map_or(String::new(), |known| known.address);
        Awaited { facts, address, lost: lost.clone(), memory: None, failed: None }
    }

    fn dial(&self) -> Result<Box<dyn RemoteMemory>, MemoryError> {
        let node = self.facts.node.0;
        let Known { address, facts } = &self.lost.find(node).ok_or(MemoryError::Missing { node })?;
        let memory = connect_one(address, &self.lost.credentials)?;
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
        self.facts
    }

    fn address(&self) -> &str {
        &self.address
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
