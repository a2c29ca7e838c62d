//! Requests to the batcher, which alone calls the driver, and the memory that they take.

use crate::backend::{Backend, Staging};
use crate::counters::Totals;
use crate::layout::{BlockLayout, MemoryAccount, Params};
use crate::queue::CodesNumber;
use crate::{Error, Failure};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// Share of the free memory that codes without a budget may use.
const FREE_SHARE: (u64, u64) = (9, 10);

/// Something that the batcher does between batches.
pub(crate) enum Action {
    /// Tells how much memory codes without a budget may use.
    UsableBytes,
    /// Plans and allocates memory.
    Allocate(Box<Plan>),
    /// Copies a part of codes to this offset.
    Write { codes: CodesNumber, at: u64, bytes: Arc<Vec<u8>> },
    /// Waits until all parts have arrived. Streams do not wait for them.
    EndWrites,
}

impl Action {
    /// Whether the action depends on how much memory is free.
    pub(crate) fn needs_memory(&self) -> bool {
        matches!(self, Action::UsableBytes | Action::Allocate(_))
    }
}

/// What a request led to.
pub(crate) enum Outcome {
    Done,
    UsableBytes(u64),
    Allocated(MemoryAccount),
}

/// An action, and the receiver of its outcome.
pub(crate) struct Request {
    pub(crate) action: Action,
    pub(crate) reply: Sender<Result<Outcome, Error>>,
}

/// Waits for the outcome of a request.
pub(crate) fn wait_for(outcome: Receiver<Result<Outcome, Error>>) -> Result<Outcome, Error> {
    // A device that is lost drops requests.
    outcome.recv().unwrap_or(Err(Error::Lost(Failure::Lost)))
}

/// What is known of codes before there is memory for them.
pub(crate) struct Plan {
    pub(crate) codes: CodesNumber,
    pub(crate) totals: Arc<Totals>,
    pub(crate) codes_bytes: u64,
    pub(crate) block: BlockLayout,
    pub(crate) blocks_max: usize,
    pub(crate) budget_bytes: Option<u64>,
    // Without addresses.
    pub(crate) params: Params,
}

/// Memory of codes, of their blocks and of their staging areas.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) params: Params,
    pub(crate) staging: Staging,
}

/// Memory of all codes on a device.
#[derive(Default)]
pub(crate) struct DeviceMemory {
    placed: BTreeMap<CodesNumber, Placed>,
}

impl DeviceMemory {
    /// The memory of codes.
    pub(crate) fn get(&self, codes: CodesNumber) -> Option<&Placed> {
        self.placed.get(&codes)
    }

    /// Plans with the memory that is free now where there is no budget, and allocates. After an error nothing is left
    /// allocated.
    pub(crate) fn allocate(
        &mut self,
        backend: &mut dyn Backend,
        plan: &Plan,
    ) -> Result<MemoryAccount, Error> {
        let budget = match plan.budget_bytes {
            Some(given) => given,
            None => usable_bytes(backend)?,
        };
        let memory = MemoryAccount::plan(&plan.block, plan.blocks_max, plan.codes_bytes, budget)?;
        // An allocation of no bytes is an error for some drivers.
        let sizes = [("codes", memory.codes.max(256)), ("blocks of queries", memory.blocks)];
        let mut addresses = Vec::with_capacity(sizes.len());
        let mut allocate = |backend: &mut dyn Backend| {
            for (what, bytes) in sizes {
                addresses.push(backend.allocate(what, bytes)?);
            }
            backend.allocate_staging(memory.block_count, plan.block.staging_bytes())
        };
        match (allocate(backend), &addresses[..]) {
            (Ok(staging), &[codes, blocks]) => {
                let params = Params { codes, blocks, ..plan.params };
                self.placed.insert(plan.codes, Placed { params, staging });
                Ok(memory)
            }
            (outcome, _) => {
                for &address in &addresses {
                    backend.free(address).map_err(Error::Call)?;
                }
                Err(outcome.err().unwrap_or_else(|| Error::Call("an allocation is missing".to_string())))
            }
        }
    }

    /// Copies a part of codes.
    pub(crate) fn write(
        &self,
        backend: &mut dyn Backend,
        codes: CodesNumber,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let gone = || Error::Call("the codes are closed already".to_string());
        let placed = self.placed.get(&codes).ok_or_else(gone)?;
        backend.write(placed.params.codes + at, bytes)
    }

    /// Frees the memory of codes, of which no batch is under way.
    pub(crate) fn free(&mut self, backend: &mut dyn Backend, codes: CodesNumber) -> Result<(), String> {
        let Some(Placed { params, staging }) = self.placed.remove(&codes) else { return Ok(()) };
        backend.free(params.codes)?;
        backend.free(params.blocks)?;
        backend.free_staging(staging)
    }
}

/// Memory that codes without a budget may use.
pub(crate) fn usable_bytes(backend: &mut dyn Backend) -> Result<u64, Error> {
    Ok(backend.free_bytes()? / FREE_SHARE.1 * FREE_SHARE.0)
}
