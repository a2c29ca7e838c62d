//! A server of the collections of a data folder.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use stratann_node::collections::Node;
use stratann_params::open::OpenSettings;
use stratann_params::search::SearchSettings;
use stratann_params::serve::{CapSettings, ServeSettings};
use stratann_params::{Given, Place};
use stratann_server::{Front, FrontOptions, Log, ServedCollections};
use stratann_storage::budget::size;
use stratann_storage::ledger::Ledger;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use super::{Args, SEARCH_THREADS_PER_HTTP, Stop, caps, http_of, stops};
use crate::output::{Output, print};
use crate::{Verdict, data_folder, options};

/// Fewest requests that are handled at once: writes that wait share a sync.
const CALLS_MIN: usize = 16;
/// Collections without a request for this long are closed.
const IDLE: Duration = Duration::from_secs(600);

/// Whether a data folder is to be served, rather than an index.
pub(super) fn are_asked(given: &Given) -> bool {
    given.has("data") && !given.has("store")
}

/// Serves a data folder until a signal.
pub(super) fn run(args: &Args, given: &Given, log: Log, output: Output) -> Result<Verdict> {
    if given.has("index") {
        return Err(Error::bad_input("both index and data are set; remove one of them"));
    }
    given.check(&args.table.scope(None, Place::Collections))?;
    let (settings, caps): (ServeSettings, CapSettings) = (given.read(), given.read());
    let (http, callers) = http_of(&settings, output)?;
    let ram_budget = given.read::<OpenSettings>().ram_budget;
    let threads = given.read::<SearchSettings>().threads.unwrap_or_else(options::all_cores);
    let (calls, http_threads) = (threads.max(CALLS_MIN), threads.div_ceil(SEARCH_THREADS_PER_HTTP));
    let limits = caps::limits(&caps, ram_budget)?;
    let folder = data_folder::path(settings.data)?;
    let stop = stops(args.until_eof)?;
    let node = opened(&folder, (ram_budget, &caps, http_threads + calls), &log)?;
    let node = Arc::new(node);
    let served = ServedCollections { node: Arc::clone(&node), calls, threads, max_k: caps.max_k, ram_budget };
    let (ledger, front_log) = (Ledger::new(ram_budget), Arc::clone(&log));
    let options = FrontOptions { http, limits, callers, threads: http_threads, ledger, log: front_log };
    let front = Front::of_collections(served, options)?;
    report_ready(&node, &front, (&folder.display().to_string(), &log), output)?;
    let why = wait_for_end(&stop, &node);
    log(why.text());
    front.stop();
    drop(node);
    log("stopped");
    Ok(if why == Stop::Interrupted { Verdict::Interrupted } else { Verdict::Fine })
}

/// Opens the data folder with what HTTP leaves of the budget.
fn opened(
    folder: &Path,
    (ram_budget, caps, threads): (Option<u64>, &CapSettings, usize),
    log: &Log,
) -> Result<Node> {
    let logged = Logged(Arc::clone(log));
    let Some(budget) = ram_budget else { return data_folder::open_or_make(folder, None, &logged) };
    let front = caps::limits(caps, ram_budget)?.bytes(threads);
    match data_folder::open_or_make(folder, Some(budget.saturating_sub(front)), &logged) {
        Err(e) if e.kind == ErrorKind::Budget => Err(Error::budget(format!(
            "the RAM budget is too small: HTTP takes {}, and a data folder needs {} beside it; give --ram-budget {}MiB",
            size(front),
            size(data_folder::least_budget()),
            least_budget(caps, threads)? >> 20
        ))),
        opened => opened,
    }
}

/// The smallest RAM budget of a server, in steps of 8 MiB: HTTP takes a share of it.
fn least_budget(caps: &CapSettings, threads: usize) -> Result<u64> {
    const STEP: u64 = 8 << 20;
    let mut budget = data_folder::least_budget();
    while budget < caps::limits(caps, Some(budget))?.bytes(threads) + data_folder::least_budget() {
        budget += STEP;
    }
    Ok(budget)
}

fn report_ready(node: &Node, front: &Front, (folder, log): (&str, &Log), output: Output) -> Result<()> {
    if output.json {
        let ready = serde_json::json!({ "http": front.address().to_string(), "pid": std::process::id() });
        print(&format!("{ready}\n"))?;
    }
    let all = node.collections().map_err(data_folder::plain)?.len();
    log(&format!("serves {all} collections of {folder} on http://{}", front.address()));
    Ok(())
}

/// Waits for the request to stop, and closes idle collections meanwhile.
fn wait_for_end(stop: &mpsc::Receiver<Stop>, node: &Node) -> Stop {
    loop {
        match stop.recv_timeout(IDLE) {
            Ok(why) => return why,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Stop::Requested,
            Err(mpsc::RecvTimeoutError::Timeout) => _ = node.close_idle(),
        }
    }
}

/// Notes of a data folder, as lines of the log.
struct Logged(Log);

impl Progress for Logged {
    fn stage(&self, name: &str, _: u64, _: &str) {
        (self.0)(name);
    }

    fn advance(&self, _: u64) {}

    fn note(&self, line: &str) {
        (self.0)(line);
    }

    fn interrupted(&self) -> bool {
        false
    }
}
