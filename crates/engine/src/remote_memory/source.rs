//! Memory nodes as the place where an open index reads, in the place of a file.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_core::format::region::{Superblock, node_offset};
use stratann_core::query::{Extent, Loss};

use super::connect::connect_answering;
use super::lost::{Awaited, LostNodes};
use super::tier::IdleConnections;
use super::{Credentials, MemoryError, Nodes, RemoteCounters, RemoteMemory, RemoteTier};
use crate::tier::Tier;

/// The memory nodes of an open index.
pub struct RemoteSource {
    addresses: Vec<String>,
    credentials: Credentials,
    nodes: Mutex<Nodes>,
    lost: Arc<LostNodes>,
    counters: Arc<RemoteCounters>,
    /// Connections of tiers that have ended, so that a short search need not connect.
    idle: IdleConnections,
}

impl RemoteSource {
    /// Connects.
    ///
    /// # Errors
    /// As [`Nodes::new`].
    pub fn new(addresses: &[String], credentials: &Credentials) -> Result<RemoteSource, MemoryError> {
        let nodes = Nodes::new(addresses, credentials)?;
        Ok(RemoteSource {
            lost: LostNodes::new(nodes.known(), addresses, credentials.clone()),
            nodes: Mutex::new(nodes),
            addresses: addresses.to_vec(),
            credentials: credentials.clone(),
            counters: Arc::default(),
            idle: Arc::default(),
        })
    }

    /// Notes the load that the superblocks of all nodes name, and which nodes have a part of it, with the bytes of
    /// their regions. Those that do not answer are looked for.
    pub(crate) fn expect(&self, superblock: &Superblock, nodes: Vec<(u8, u64)>) {
        self.lost.expect(superblock, nodes);
    }

    /// Leaves out a node that answers and has no part of the index, and returns its address. It is used once it has.
    pub(crate) fn leave_out(&self, node: u8) -> String {
        self.nodes.lock().unwrap_or_else(|e| e.into_inner()).leave_out(node);
        self.lost.leave_out(node)
    }

    /// Notes that a node does not answer, which is looked for from then on. Returns how often it has answered again so
    /// far.
    pub(crate) fn lose(&self, node: u8) -> u64 {
        self.lost.lose(node)
    }

    /// How often a node that was lost has answered again, with what it had.
    pub(crate) fn returns(&self, node: u8) -> u64 {
        self.lost.returns(node)
    }

    /// Connections of its own, to the regions that it was opened with. A node that has another one now is lost.
    ///
    /// # Errors
    /// As [`Nodes::new`].
    pub fn connect(&self) -> Result<Nodes, MemoryError> {
        let nodes = Nodes::among(&self.addresses, &self.credentials, Some(&self.lost.facts()))?;
        Ok(nodes.counted(&self.counters))
    }

    /// Whether all nodes have a file.
    pub fn have_files(&self) -> bool {
        self.lost.facts().iter().all(|own| own.has_file)
    }

    /// The addresses, as they were given.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// A tier for one thread. A node that does not answer now is dialed when something is read of it.
    ///
    /// # Errors
    /// A thread cannot be started, or no node answers.
    pub fn tier(&self, depth: usize, doorbell: usize) -> io::Result<Box<dyn Tier>> {
        let idle = self.idle().pop();
        let (mut memories, missed) = match idle {
            Some(memories) => (memories, None),
            None => connect_answering(&self.addresses, &self.credentials, Some(&self.lost.facts()))
                .map_err(io::Error::other)?,
        };
        for facts in self.lost.all_facts() {
            if memories.iter().all(|memory| memory.facts().node != facts.node) {
                memories.push(Box::new(Awaited::new(facts, &self.lost)));
            }
        }
        let tier = RemoteTier::new(memories, depth, doorbell, &self.counters)?;
        // A set without all nodes is not kept: the next search may find them.
        Ok(Box::new(if missed.is_none() { tier.returning(self.idle.clone()) } else { tier }))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<Box<dyn RemoteMemory>>>> {
        self.idle.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes that were read of each node, by number.
    pub(crate) fn bytes_by_node(&self) -> Vec<u64> {
        let mut bytes = self.counters.bytes_by_node();
        let facts = self.lost.all_facts();
        let nodes = facts.iter().map(|own| usize::from(own.node.0) + 1).max().unwrap_or(0);
        bytes.resize(bytes.len().max(nodes), 0);
        bytes
    }

    /// Why the last read failed, if one has.
    pub fn last_error(&self) -> Option<MemoryError> {
        self.counters.last_error()
    }

    /// The reason why a query has no answer that lacks this extent.
    pub fn failure(&self, at: Extent, loss: Loss) -> String {
        let (node, offset) = (at.store.0, node_offset(at.offset));
        let place = format!("memory node {node} at byte {offset} ({} bytes)", at.bytes);
        match loss {
            Loss::Damaged => format!("{place} is damaged; load the index again"),
            Loss::Failed | Loss::Short | Loss::Expired => {
                let why = self.last_error().map_or(String::new(), |e| format!(": {e}"));
                format!("{place} was not read{why}; check that the node runs, or load the index with mirrors")
            }
        }
    }

    /// Replaces `out` by the bytes of an extent. The upper bits of its offset are a version and no place.
    ///
    /// # Errors
    /// Why there are none.
    pub fn read_extent(&self, at: Extent, out: &mut Vec<u8>) -> Result<(), Loss> {
        let mut nodes = self.nodes.lock().unwrap_or_else(|e| e.into_inner());
        let offset = node_offset(at.offset);
        *out = nodes.read(at.store.0, offset, at.bytes.into()).map_err(|_| Loss::Failed)?;
        Ok(())
    }
}
