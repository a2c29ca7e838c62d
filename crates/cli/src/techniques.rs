//! Options of the command line that switch techniques of a search, to compare.

use clap::ValueEnum;
use stratann_core::plan::gpu_ivf::Rule;
use stratann_engine::exec::GatherOptions;
use stratann_engine::kinds::options::{
    GpuSwitches, GraphSwitches, GridSwitches, ListSwitches, RemoteSwitches, Switches,
};
use stratann_storage::{Error, Result as Checked};

use crate::gathering::RemoteTechniques;

#[cfg(feature = "lab")]
mod baseline;

/// Techniques of hybrid-ivf, to switch off for comparison.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Techniques of hybrid-ivf (to compare)")]
pub(crate) struct Techniques {
    /// Rank lists by the distance to their centroids only, without the navigation graph
    #[arg(long, conflicts_with = "order")]
    no_reorder: bool,
    /// Order in which lists are visited
    ///
    /// [default: chosen by calibration]
    #[arg(long, value_enum)]
    order: Option<OrderName>,
    /// Visit all lists that --nprobe or --recall allow
    #[arg(long)]
    no_early_stop: bool,
    /// Count every list without a new result as one towards the early stop, as in the paper, without weights
    #[arg(long)]
    no_weights: bool,
    /// Read every vector of a visited list
    #[arg(long, conflicts_with = "bounds")]
    no_bounds: bool,
    /// Bounds that prune vectors before they are read; they never change a result
    #[arg(long, value_enum, default_value = "both")]
    bounds: BoundsName,
    /// Sub-lists to scan in a divided list [default: as planned]
    #[arg(long, value_name = "N")]
    local_lists: Option<u32>,
    /// Length of the beam in a list with a graph [default: 32]
    #[arg(long, value_name = "L")]
    local_list: Option<u32>,
    /// Sampled vectors of the navigation graph that count towards the rank of their lists [default: 64]
    #[arg(long, value_name = "N")]
    votes: Option<u32>,
    #[command(flatten)]
    grid: GridTechniques,
    #[command(flatten)]
    gpu: GpuTechniques,
    #[command(flatten)]
    remote: RemoteTechniques,
}

/// Techniques of grid-ivf, to switch off for comparison.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Techniques of grid-ivf (to compare)")]
struct GridTechniques {
    /// Compare all components of all vectors of the lists
    #[arg(long)]
    no_prune: bool,
    /// Keep the first threshold, which does not fall from list to list
    #[arg(long)]
    no_prune_vector: bool,
    /// Compare vectors whole, whatever their first components say
    #[arg(long)]
    no_prune_dimension: bool,
    /// Start without a threshold
    #[arg(long)]
    no_prewarm: bool,
    /// Rows of lists to visit at a time, 1 to 64, where they are divided over servers [default: 1]
    ///
    /// More of them take less time and more work: each row is pruned by those that have ended.
    #[arg(long, value_name = "F", value_parser = clap::value_parser!(u8).range(1..=64))]
    fan_out: Option<u8>,
    /// Visit slices of components in their order, whatever the load of their servers
    #[arg(long)]
    static_order: bool,
    /// Choose servers without regard to their load: neither the order of slices nor a replica depends on it
    #[arg(long)]
    no_balance: bool,
    /// Score all slices of a row at once, and add their sums where the query is
    #[arg(long)]
    no_pipeline: bool,
}

/// Techniques of gpu-ivf, to choose or to switch off for comparison.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Techniques of gpu-ivf (to compare)")]
struct GpuTechniques {
    /// Search as another system does, or without some techniques
    #[cfg(feature = "lab")]
    #[arg(long, value_enum, value_name = "NAME")]
    baseline: Option<baseline::BaselineName>,
    #[cfg(not(feature = "lab"))]
    #[arg(long, value_name = "NAME", hide = true)]
    baseline: Option<String>,
    /// What ends re-ranking [default: the cheaper of margin and changes with --recall, margin otherwise]
    #[arg(long, value_enum, conflicts_with = "baseline")]
    rule: Option<RuleName>,
    /// Most candidates to re-rank [default: from the curve; 16 k + 128 with --nprobe]
    #[arg(long, value_name = "N")]
    candidates: Option<u32>,
    /// Candidates of a mini-batch [default: from the curve; 16 with --nprobe]
    #[arg(long, value_name = "N")]
    batch_size: Option<u32>,
    /// With --rule changes: a mini-batch that changes at most this share of the results is without effect
    #[arg(long, value_name = "SHARE")]
    epsilon_stop: Option<f32>,
    /// With --rule changes: stop after this many mini-batches without effect, consecutively
    #[arg(long, value_name = "N")]
    beta: Option<u32>,
    /// With --rule margin: stop when the next candidate is farther by its code than is expected of a result by this
    /// share of the distance
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    margin: Option<f32>,
}

/// `--rule`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RuleName {
    /// A fixed number of candidates is re-ranked.
    Static,
    /// Mini-batches that change few results end it (FusionANNS, algorithm 1).
    Changes,
    /// The code distance of the next candidate ends it.
    Margin,
}

impl GpuTechniques {
    fn switches(&self) -> GpuSwitches {
        let rule = |name| match name {
            RuleName::Static => Rule::Static,
            RuleName::Changes => Rule::Changes,
            RuleName::Margin => Rule::Margin,
        };
        GpuSwitches {
            #[cfg(feature = "lab")]
            baseline: self.baseline.and_then(baseline::BaselineName::of_gpu),
            rule: self.rule.map(rule),
            candidates: self.candidates,
            batch: self.batch_size,
            epsilon_stop: self.epsilon_stop,
            beta: self.beta,
            margin: self.margin,
            no_whole_blocks: false,
        }
    }
}

/// `--order`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OrderName {
    /// By distance to the centroid, less a gain for sampled vectors that were found.
    Evidence,
    /// By the number of sampled vectors that were found, as in the paper.
    Votes,
    /// By the expected number of results.
    Expected,
}

/// `--bounds`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BoundsName {
    /// Distances to centroids, as in the paper.
    Centroid,
    /// Codes with the radius of their error.
    Code,
    /// Both.
    Both,
}

/// The switches of all kinds as one: those of the kind where one of them differs from its default.
///
/// # Errors
/// When techniques of several kinds are switched; a baseline, which the laboratory has.
pub(crate) fn switches(graph: GraphSwitches, techniques: &Techniques) -> Checked<Switches> {
    #[cfg(not(feature = "lab"))]
    if let Some(name) = &techniques.gpu.baseline {
        return Err(Error::laboratory(&format!("--baseline {name}"), "search"));
    }
    let (lists, grid, gpu) = (techniques.lists(), techniques.grid.switches(), techniques.gpu.switches());
    let remote = techniques.remote.switches();
    if gpu != GpuSwitches::default() {
        // It shares a switch of disk-graph.
        let others = GraphSwitches { whole_blocks: true, ..graph };
        let is_alone = others == GraphSwitches::default()
            && lists == ListSwitches::default()
            && grid == GridSwitches::default()
            && remote == RemoteSwitches::default();
        let own = GpuSwitches { no_whole_blocks: !graph.whole_blocks, ..gpu };
        return if is_alone { Ok(own.into()) } else { Err(several()) };
    }
    let mut switched: Vec<Switches> = Vec::new();
    if graph != GraphSwitches::default() {
        switched.push(graph.into());
    }
    if lists != ListSwitches::default() {
        switched.push(lists.into());
    }
    if grid != GridSwitches::default() {
        switched.push(grid.into());
    }
    if remote != RemoteSwitches::default() {
        switched.push(remote.into());
    }
    match switched[..] {
        [] => Ok(Switches::Default),
        [one] => Ok(one),
        _ => Err(several()),
    }
}

fn several() -> Error {
    Error::bad_input("techniques of several kinds of index are switched; leave out those of the other kinds")
}

impl GridTechniques {
    fn switches(&self) -> GridSwitches {
        GridSwitches {
            prune_dimension: !(self.no_prune || self.no_prune_dimension),
            prune_vector: !(self.no_prune || self.no_prune_vector),
            prewarm: !self.no_prewarm,
            fan_out: self.fan_out.unwrap_or(GridSwitches::default().fan_out),
            busy_last: !self.static_order,
            balance: !self.no_balance,
            pipeline: !self.no_pipeline,
        }
    }
}

impl Techniques {
    /// # Errors
    /// When a technique is switched with --connect.
    pub(crate) fn check_usual(&self) -> Checked<()> {
        match switches(GraphSwitches::default(), self)? {
            // Requests carry these.
            Switches::Default | Switches::GridIvf(_) | Switches::RemoteHnsw(_) => Ok(()),
            _ => Err(Error::bad_input(
                "techniques of hybrid-ivf and gpu-ivf cannot be set with --connect; leave out --connect or them",
            )),
        }
    }

    /// Whether a baseline ranks codes with this machine's threads, whatever GPU there is.
    pub(crate) fn wants_processor(&self) -> bool {
        #[cfg(feature = "lab")]
        {
            self.baseline_wants_processor()
        }
        #[cfg(not(feature = "lab"))]
        {
            false
        }
    }

    /// How a batch of a remote-hnsw is loaded.
    pub(crate) fn gather(&self) -> GatherOptions {
        #[cfg(feature = "lab")]
        {
            self.load_scheme().gather(self.remote.gather())
        }
        #[cfg(not(feature = "lab"))]
        {
            self.remote.gather()
        }
    }

    /// Whether nothing is cached.
    pub(crate) fn is_uncached(&self) -> bool {
        #[cfg(feature = "lab")]
        {
            self.baseline_is_uncached()
        }
        #[cfg(not(feature = "lab"))]
        {
            false
        }
    }

    fn lists(&self) -> ListSwitches {
        use stratann_core::plan::hybrid_ivf::Order;
        use stratann_core::verify::Bounds;
        let bounds = match self.bounds {
            _ if self.no_bounds => Bounds::Off,
            BoundsName::Centroid => Bounds::Centroid,
            BoundsName::Code => Bounds::Code,
            BoundsName::Both => Bounds::Both,
        };
        let order = match self.order {
            _ if self.no_reorder => Some(Order::Centroid),
            None => None,
            Some(OrderName::Evidence) => Some(Order::Evidence),
            Some(OrderName::Votes) => Some(Order::Votes),
            Some(OrderName::Expected) => Some(Order::Expected),
        };
        ListSwitches {
            order,
            early_stop: !self.no_early_stop,
            weighed: !self.no_weights,
            bounds,
            local_lists: self.local_lists,
            local_list: self.local_list,
            sample_hits: self.votes,
        }
    }
}
