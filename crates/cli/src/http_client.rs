//! HTTP client of running servers.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stratann_core::query::Mode;
use stratann_engine::exec::Width;
use stratann_engine::kinds::disk_graph::landmarks::Landmarks;
use stratann_engine::kinds::remote_hnsw::router::Router;
use stratann_engine::manifest::MessagePrices;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_server::wire::{Answered, Failed, FailureKind, FilterReport, Found, Refusal, Reply, Used};
use stratann_storage::error::quoted;
use stratann_storage::link::LinkCosts;
use stratann_storage::names::BuildId;
use stratann_storage::{Error, ErrorKind, Result};
use ureq::Agent;

use crate::filter::RequestIds;
use crate::output::eprint_line;
use crate::queries::Wanted;

mod affinity;
mod body;
mod liveness;
pub(crate) mod routing;
use affinity::Fetched;
use liveness::Liveness;
use routing::Routing;

/// Longest wait for a connection, because a machine that is down does not reply.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time for a server to report its health or its status.
const STATUS_TIME: Duration = Duration::from_secs(3);
/// Longest time for the servers' clusters and their meta-HNSW.
const CACHES_TIME_MAX: Duration = Duration::from_secs(60);
/// Interval at which a waiting request looks whether its server still lives.
const LOOK: Duration = Duration::from_millis(200);
/// Additional time for a reply, beyond the time limit of the server.
const TRANSFER_TIME: Duration = Duration::from_secs(10);
/// Longest reply that is read, bytes: answers, and the meta-HNSW.
const REPLY_BYTES: u64 = 256 << 20;
/// Longest status, health, and numbers of lists that were visited.
const STATUS_BYTES: u64 = 16 << 20;
/// Idle connections that are kept per server.
const KEPT: usize = 1024;

/// Fields of a server's status that a client reads.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    rows: u64,
    dim: usize,
    dtype: String,
    metric: String,
    build_id: BuildId,
    #[serde(default)]
    builds: Vec<BuildId>,
    pub(crate) io_backend: String,
    pub cpu_us: u64,
    pub peak_rss_bytes: u64,
    pub(crate) bytes_sent: u64,
    #[serde(default)]
    pub(crate) merged_reads: u64,
    #[serde(default)]
    pub(crate) merged_bytes: u64,
    #[serde(default)]
    pub(crate) components: u64,
    #[serde(default)]
    pub(crate) loads: u64,
    #[serde(default)]
    pub(crate) loaded_bytes: u64,
    #[serde(default)]
    pub(crate) round_trips: u64,
    /// Costs of messages to other servers.
    #[serde(default)]
    links: Vec<LinkCosts>,
    pub(crate) memory: Value,
    pub(crate) ram_budget_bytes: Option<u64>,
}

impl Status {
    /// Returns whether two servers serve one index. During a change of versions they may have different builds.
    fn has_in_common(&self, other: &Status) -> bool {
        let is_held = |build: &BuildId| *build == other.build_id || other.builds.contains(build);
        is_held(&self.build_id) || self.builds.iter().any(is_held)
    }
}

/// Last queries of a server, as it reports them.
#[derive(Deserialize)]
struct Visits {
    build_id: BuildId,
    queries: Vec<Vec<u32>>,
}

/// Servers of one index.
pub struct HttpClient {
    addresses: Vec<String>,
    agent: Agent,
    liveness: Liveness,
    /// Router of several servers of a `remote-hnsw`, once they gave it.
    router: OnceLock<Router>,
    /// Of several servers of a partitioned `disk-graph`.
    landmarks: OnceLock<Landmarks>,
    /// Time for the next attempt to get it; `None` where queries are not routed.
    attempt: Mutex<Option<Duration>>,
    /// Vectors of the index they serve.
    pub(crate) rows: u64,
    /// Requirements of queries.
    pub(crate) wanted: Wanted,
}

/// Answers to the queries of one request, in their order, and the parameters used when there is an answer.
pub struct Replies {
    pub answers: Vec<std::result::Result<Found, Failed>>,
    pub(crate) used: Option<Used>,
    /// What is said of the filter of each query; `None` without one, and without an answer.
    pub(crate) filters: Vec<Option<FilterReport>>,
}

/// Runs `count` clients, each on its own thread. Returns the first error.
///
/// # Errors
/// Errors of the clients, or an unexpected end of one.
pub fn run_clients(count: usize, client: impl Fn() -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..count).map(|_| scope.spawn(&client)).collect();
        clients.into_iter().try_for_each(|client| {
            let ended = client.join();
            ended.unwrap_or_else(|_| {
                Err(Error::corrupt("a client thread ended unexpectedly; please report this"))
            })
        })
    })
}

impl HttpClient {
    /// Requests the status of all servers.
    ///
    /// # Errors
    /// When no server responds, or they serve different indexes.
    pub fn connect(addresses: &[String]) -> Result<HttpClient> {
        let agent = agent();
        let mut found: Option<(&String, Status)> = None;
        let mut silent = Vec::new();
        let liveness = Liveness::new(addresses.len());
        for (server, address) in addresses.iter().enumerate() {
            let status: Status = match get(&agent, address, "/v1/status") {
                Ok((_, status)) => status,
                Err(why) => {
                    silent.push(format!("{address}: {why}"));
                    liveness.set_silent(server, true);
                    continue;
                }
            };
            match &found {
                Some((first, other)) if !other.has_in_common(&status) => {
                    return Err(Error::bad_input(format!(
                        "{first} and {address} serve different indexes; give servers of one index"
                    )));
                }
                Some(_) => {}
                None => found = Some((address, status)),
            }
        }
        let Some((_, status)) = found else {
            let message =
                format!("no server answers ({}); start one with `stratann serve`", silent.join(", "));
            return Err(Error { kind: ErrorKind::Io, message });
        };
        let (Some(dtype), Some(metric)) =
            (DType::from_name(&status.dtype), Metric::from_name(&status.metric))
        else {
            return Err(Error::bad_input("the servers are of a newer version; use a newer stratann"));
        };
        let wanted = Wanted { dim: status.dim, dtype, metric };
        let addresses = addresses.to_vec();
        let (router, landmarks, attempt) = (OnceLock::new(), OnceLock::new(), Mutex::new(None));
        Ok(HttpClient { addresses, agent, liveness, router, landmarks, attempt, rows: status.rows, wanted })
    }

    /// Routes queries to servers where they have less to do, where there are several of a kind for which that differs.
    pub(crate) fn route_queries(&mut self) {
        let has_choice = self.addresses.len() > 1;
        self.attempt = Mutex::new(has_choice.then_some(STATUS_TIME));
    }

    /// Asks the servers what routing needs, unless it is here. An attempt that fails is said once; the next one has
    /// twice the time.
    fn fetch_caches(&self) {
        let mut attempt = self.attempt.lock().unwrap_or_else(|e| e.into_inner());
        let Some(limit) = attempt.filter(|_| self.router.get().is_none()) else { return };
        let answers = |server| self.answers(server);
        *attempt = match affinity::fetch(&self.agent, &self.addresses, self.wanted, limit, answers) {
            Fetched::Here(own) => {
                let _ = self.router.set(*own);
                None
            }
            Fetched::OtherKind => {
                // Where some failed and none has any, they are asked again before the next run.
                let (found, is_sure) = routing::landmarks(&self.agent, &self.addresses, self.wanted, answers);
                let is_over = found.is_some() || is_sure;
                found.into_iter().for_each(|own| drop(self.landmarks.set(own)));
                if is_over { None } else { Some(limit) }
            }
            Fetched::Failed(why) => {
                if limit == STATUS_TIME {
                    eprint_line(&format!(
                        "warning: the meta-HNSW did not arrive, so queries go to the servers in turn ({why}); it is \
                         asked for again before the next run; check the link, or give --no-affinity"
                    ));
                }
                Some((2 * limit).min(CACHES_TIME_MAX))
            }
        };
    }

    /// The way to choose servers for a run that begins; `None` where queries go to servers in turn.
    pub(crate) fn routing(&self, parameters: &str) -> Option<Routing<'_>> {
        self.fetch_caches();
        if let Some(own) = self.router.get() {
            let nprobe = affinity::begin(own, &self.agent, &self.addresses, parameters)?;
            return Some(Routing::Caches(own, nprobe));
        }
        self.landmarks.get().map(|own| Routing::Entries(own).begin())
    }

    /// Whether a server answers, as far as is known.
    pub(crate) fn answers(&self, server: usize) -> bool {
        !self.liveness.is_silent(server)
    }

    /// The addresses as given.
    pub(crate) fn name(&self) -> String {
        self.addresses.join(",")
    }

    /// The status of every server; `None` for one that does not respond.
    pub fn statuses(&self) -> Vec<Option<Status>> {
        let status = |(server, address): (usize, &String)| {
            let status = get(&self.agent, address, "/v1/status").ok();
            self.liveness.set_silent(server, status.is_none());
            Some(status?.1)
        };
        self.addresses.iter().enumerate().map(status).collect()
    }

    /// The mean prices of messages over all links that the servers have measured, since as many go over each; `None`
    /// where there is none.
    pub(crate) fn message_prices(&self) -> Option<MessagePrices> {
        let links: Vec<LinkCosts> = self.statuses().into_iter().flatten().flat_map(|own| own.links).collect();
        let mean = |price: fn(&LinkCosts) -> f64| links.iter().map(price).sum::<f64>() / links.len() as f64;
        (!links.is_empty()).then(|| MessagePrices {
            message_ns: mean(|link| link.message_ns),
            byte_ns: mean(LinkCosts::slower_byte_ns),
        })
    }

    /// The lists that the last queries of each server visited, of all servers that answer.
    ///
    /// # Errors
    /// When a server has another build than `build_id`.
    pub(crate) fn visits(&self, build_id: BuildId) -> Result<Vec<Vec<u32>>> {
        let mut all = Vec::new();
        for (server, address) in self.addresses.iter().enumerate() {
            let visits: std::result::Result<(_, Visits), _> = get(&self.agent, address, "/v1/visits");
            self.liveness.set_silent(server, visits.is_err());
            let Ok((_, mut visits)) = visits else { continue };
            if visits.build_id != build_id {
                return Err(Error::bad_input(format!(
                    "{address} serves the build {}, not {build_id}; wait until a change of versions has ended, or name \
                     the folder that is served",
                    visits.build_id
                )));
            }
            all.append(&mut visits.queries);
        }
        Ok(all)
    }

    /// One line for each server that does not answer.
    pub(crate) fn silent(&self) -> Vec<String> {
        let silent = self.addresses.iter().enumerate().filter(|(server, _)| self.liveness.is_silent(*server));
        silent
            .map(|(_, address)| format!("{address} accepts requests and answers none, or cannot be reached"))
            .collect()
    }

    /// Asks all servers with open requests for their health until `stop` says so or is dropped. Requests to a server
    /// that is frozen go to the next one then, long before their own time-outs.
    pub(crate) fn watch(&self, stop: &mpsc::Receiver<()>) {
        self.liveness.watch(stop, |server| healthy(&self.agent, &self.addresses[server]).is_ok());
    }

    /// Searches for the neighbours of `rows`, starting with server number `turn`, round robin. Queries that one server
    /// cannot answer go to the next server, once to each.
    ///
    /// # Errors
    /// When the request is invalid for every server.
    pub fn ask(&self, turn: usize, rows: &[u8], parameters: &str) -> Result<Replies> {
        self.ask_filtered(turn, rows, parameters, None)
    }

    /// Like [`HttpClient::ask`], for queries that may return some rows alone.
    ///
    /// # Errors
    /// As [`HttpClient::ask`].
    pub(crate) fn ask_filtered(
        &self,
        turn: usize,
        rows: &[u8],
        parameters: &str,
        ids: Option<&RequestIds<'_>>,
    ) -> Result<Replies> {
        let row_bytes = self.wanted.dim * self.wanted.dtype.size();
        let row = |i: usize| &rows[i * row_bytes..(i + 1) * row_bytes];
        let mut answers: Vec<std::result::Result<Found, Failed>> =
            (0..rows.len() / row_bytes).map(|_| Err(unreachable(String::new()))).collect();
        let (mut used, mut filters) = (None, vec![None; answers.len()]);
        for server in self.liveness.order(turn) {
            let open: Vec<usize> = (0..answers.len()).filter(|&i| is_open(&answers[i])).collect();
            if open.is_empty() {
                break;
            }
            let address = &self.addresses[server];
            let rest: Vec<u8> = open.iter().flat_map(|&i| row(i)).copied().collect();
            let reply = self.post(server, rest, parameters, ids.map(|ids| ids.of(&open)))?;
            match reply {
                Ok(reply) if reply.answers.len() == open.len() => {
                    used = Some(reply.params);
                    for (at, (i, answer)) in open.into_iter().zip(reply.answers).enumerate() {
                        filters[i] = reply.filter.as_ref().and_then(|filters| filters.of(at));
                        answers[i] = match answer {
                            Answered::Found(found) => Ok(found),
                            Answered::Failed(Failed { error, kind }) => {
                                Err(Failed { error: quoted(&error), kind })
                            }
                        };
                    }
                }
                Ok(_) => set(&mut answers, &open, &unreachable(format!("{address}: an invalid reply"))),
                Err(failed) => set(&mut answers, &open, &failed),
            }
        }
        Ok(Replies { answers, used, filters })
    }

    /// Sends one request to one server. The outer error is for requests that are invalid everywhere.
    fn post(
        &self,
        server: usize,
        rows: Vec<u8>,
        parameters: &str,
        ids: Option<RequestIds<'_>>,
    ) -> Result<std::result::Result<Reply, Failed>> {
        let address = &self.addresses[server];
        let cached = self.router.get().map(|own| affinity::parameter(own, server)).unwrap_or_default();
        let parameters = format!("{parameters}{cached}");
        let (url, body, content_type) = match ids {
            Some(ids) => {
                let body = body::body(&rows, self.wanted, &parameters, &ids);
                (format!("http://{address}/v1/search"), body, "application/json")
            }
            None => (format!("http://{address}/v1/search?{parameters}"), rows, "application/octet-stream"),
        };
        let agent = self.agent.clone();
        let send = move || {
            let sent = agent.post(url).content_type(content_type).send(&body[..]);
            let mut response = sent.map_err(|e| quoted(&e.to_string()))?;
            let body = response.body_mut().with_config().limit(REPLY_BYTES).read_to_vec();
            Ok((response.status().as_u16(), body.map_err(|e| quoted(&e.to_string()))?))
        };
        let (status, body) = match self.while_alive(server, send)? {
            Ok(read) => read,
            Err(why) => return Ok(Err(unreachable(format!("{address}: {why}")))),
        };
        let refusal = || {
            serde_json::from_slice::<Refusal>(&body).map_or_else(|_| status.to_string(), |r| quoted(&r.error))
        };
        match (status, serde_json::from_slice::<Reply>(&body)) {
            (200 | 503, Ok(reply)) => {
                if let (Some(own), Some(cached)) = (self.router.get(), &reply.cached) {
                    affinity::note(own, server, cached);
                }
                Ok(Ok(reply))
            }
            (200, Err(_)) if serde_json::from_slice::<IdForm>(&body).is_ok_and(|form| form.any_ids) => {
                Err(Error::bad_input(format!(
                    "{address}: some ids of its index are UUIDs or strings, and this command reads numbers alone; ask \
                     the server from Python or over HTTP"
                )))
            }
            (400, _) => Err(Error::bad_input(format!("{address}: {}", refusal()))),
            (503, _) => {
                let error = format!("{address}: {}", refusal());
                Ok(Err(Failed { error, kind: FailureKind::Overloaded }))
            }
            _ => Ok(Err(unreachable(format!("{address}: {}", refusal())))),
        }
    }
}

/// What a reply says of its ids.
#[derive(serde::Deserialize)]
struct IdForm {
    #[serde(default)]
    any_ids: bool,
}

type Sent = std::result::Result<(u16, Vec<u8>), String>;

impl HttpClient {
    /// Runs a request on a thread of its own, and gives it up when its server is found silent.
    ///
    /// # Errors
    /// A system without threads.
    fn while_alive(&self, server: usize, send: impl FnOnce() -> Sent + Send + 'static) -> Result<Sent> {
        let _open = self.liveness.open(server);
        let (sender, receiver) = mpsc::channel();
        let run = move || {
            // The receiver is gone when the request was given up.
            let _ = sender.send(send());
        };
        std::thread::Builder::new().name("request".into()).spawn(run).map_err(|e| Error {
            kind: ErrorKind::Io,
            message: format!("starting a thread: {e}; use fewer --in-flight"),
        })?;
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(sent) => return Ok(sent),
                Err(RecvTimeoutError::Timeout) if self.liveness.is_silent(server) => {
                    return Ok(Err("it accepts requests and answers none".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Err("the request ended unexpectedly; please report this".into()));
                }
            }
        }
    }
}

/// Requests a server's health: whether the whole index is reachable.
///
/// # Errors
/// The reason why it does not respond.
pub(crate) fn healthy(agent: &Agent, address: &str) -> std::result::Result<bool, String> {
    get::<Value>(agent, address, "/v1/health").map(|(status, _)| status == 200)
}

/// Creates a client that keeps its connections.
pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        // Servers are addressed directly; proxies of the environment are ignored.
        .proxy(None)
        .max_redirects(0)
        .max_idle_connections(8 * KEPT)
        .max_idle_connections_per_host(KEPT)
        .timeout_connect(Some(CONNECT_TIME))
        .timeout_global(Some(Duration::from_millis(TIMEOUT_MS) + TRANSFER_TIME))
        .build()
        .new_agent()
}

/// Time limit of a request on the server, milliseconds.
const TIMEOUT_MS: u64 = 60_000;

/// The status of a GET, and its body, which has up to so much time and so many bytes.
fn get_raw(
    agent: &Agent,
    address: &str,
    path: &str,
    (time, bytes): (Duration, u64),
) -> std::result::Result<(u16, Vec<u8>), String> {
    let asked = agent.get(format!("http://{address}{path}"));
    let asked = asked.config().timeout_global(Some(time)).build().call();
    let mut response = asked.map_err(|e| quoted(&e.to_string()))?;
    let body =
        response.body_mut().with_config().limit(bytes).read_to_vec().map_err(|e| quoted(&e.to_string()))?;
    Ok((response.status().as_u16(), body))
}

fn get<T: DeserializeOwned>(
    agent: &Agent,
    address: &str,
    path: &str,
) -> std::result::Result<(u16, T), String> {
    let (status, body) = get_raw(agent, address, path, (STATUS_TIME, STATUS_BYTES))?;
    let read = serde_json::from_slice(&body);
    read.map(|body| (status, body))
        .map_err(|_| format!("status {status}; this is not a stratann server of an index"))
}

fn unreachable(error: String) -> Failed {
    Failed { error, kind: FailureKind::Unreachable }
}

/// Returns whether another server may succeed.
fn is_open(answer: &std::result::Result<Found, Failed>) -> bool {
    matches!(answer, Err(f) if matches!(f.kind, FailureKind::Overloaded | FailureKind::Unreachable))
}

fn set(answers: &mut [std::result::Result<Found, Failed>], which: &[usize], failed: &Failed) {
    for &i in which {
        answers[i] = Err(failed.clone());
    }
}

/// Encodes options as URL parameters.
pub fn parameters(options: &SearchOptions, timeout_ms: Option<u64>, partial: bool) -> String {
    let mut text = format!("k={}&timeout_ms={}", options.k, timeout_ms.unwrap_or(TIMEOUT_MS));
    match options.effort {
        Effort::Recall(recall) => text += &format!("&recall={recall}"),
        Effort::Nprobe(clusters, slack, early_stop) => {
            text += &format!("&nprobe={clusters}");
            slack.iter().for_each(|slack| text += &format!("&stop_slack={slack}"));
            early_stop.iter().for_each(|share| text += &format!("&early_stop={share}"));
        }
        Effort::SearchList(list, None) => text += &format!("&search_list={list}"),
        Effort::SearchList(list, Some(slack)) => text += &format!("&search_list={list}&stop_slack={slack}"),
    }
    match options.width {
        Width::Usual => {}
        Width::Auto => text += "&width=auto",
        Width::Fixed(width) => text += &format!("&width={width}"),
    }
    if options.mode == Mode::Eager {
        text += "&mode=eager";
    }
    // Earlier servers do not know all of them.
    for (name, value) in options.switches.differing() {
        text += &format!("&{name}={value}");
    }
    if partial {
        text += "&partial=true";
    }
    text
}

/// Parses a server's address, `HOST:PORT`.
pub(crate) fn address(text: &str) -> std::result::Result<String, String> {
    let plain = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let port =
        plain.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, p)| p.parse::<u16>().ok());
    match port {
        Some(1..) if !plain.contains(['/', '?', '@', ' ']) => Ok(plain.to_string()),
        _ => Err("use HOST:PORT, such as 127.0.0.1:8700".into()),
    }
}

#[cfg(test)]
mod tests {

    use stratann_params::search::{GraphSwitches, GridSwitches, RemoteSwitches};

    use super::*;

    #[test]
    fn options_become_parameters() {
        let usual = SearchOptions::default();
        assert_eq!(parameters(&usual, Some(70), false), "k=10&timeout_ms=70&recall=0.95");
        let options = SearchOptions {
            k: 3,
            effort: Effort::SearchList(40, Some(1.5)),
            width: Width::Fixed(4),
            mode: Mode::Eager,
            switches: GraphSwitches {
                patience: Some(0),
                head: false,
                whole_blocks: false,
                ..GraphSwitches::default()
            }
            .into(),
            ..usual
        };
        assert_eq!(
            parameters(&options, None, true),
            "k=3&timeout_ms=60000&search_list=40&stop_slack=1.5&width=4&mode=eager&patience=0&head=false\
             &whole_blocks=false&partial=true"
        );
        let grid = GridSwitches {
            prune_dimension: false,
            prune_code: false,
            prune_vector: false,
            prewarm: false,
            fan_out: 4,
            busy_last: false,
            balance: false,
            pipeline: false,
            chain: false,
        };
        let effort = Effort::Nprobe(9, None, None);
        assert_eq!(
            parameters(&SearchOptions { effort, switches: grid.into(), ..usual }, None, false),
            "k=10&timeout_ms=60000&nprobe=9&prune_dimension=false&prune_code=false&prune_vector=false&prewarm=false\
             &fan_out=4&busy_last=false&balance=false&pipeline=false&chain=false"
        );
        let switches = RemoteSwitches { ef: Some(50), ..RemoteSwitches::default() }.into();
        assert_eq!(
            parameters(&SearchOptions { effort, switches, ..usual }, None, false),
            "k=10&timeout_ms=60000&nprobe=9&ef=50"
        );
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(address("10.0.0.1:80").as_deref(), Ok("10.0.0.1:80"));
        assert_eq!(address("http://[::1]:8700/").as_deref(), Ok("[::1]:8700"));
        for text in ["", "host", ":80", "host:0", "host:99999", "host:80/v1", "https://host:80"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
