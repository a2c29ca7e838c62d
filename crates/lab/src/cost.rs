//! `stratann-lab cost`: what an index of many vectors takes, and throughput for the money (FusionANNS §6.4).
//!
//! It is a command of its own: prices change without a new measurement, and sizes need an index and no queries.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_cli::Verdict;
use stratann_cli::output::{Named, Output, count, table};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_params::IndexKind;
use stratann_storage::budget::size;
use stratann_storage::data_file::FileEntry;
use stratann_storage::names::FileName;
use stratann_storage::{Error, Result, input};

/// Show what many vectors would take and cost, and throughput per dollar and per GB of RAM
///
/// Sizes are those of the structures of INDEX, a gpu-ivf that was built with --baselines, in proportion to the vectors.
/// Throughput is given, or that of an earlier `stratann-lab ablation --kind gpu-ivf --json`, which has none of a
/// rummy-like: that needs a GPU.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder of the index
    index: PathBuf,
    /// Vectors
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000)]
    rows: u64,
    /// Queries per second of a system: spann, rummy-like, gpu-ivf or mi-cpu
    #[arg(long, value_name = "SYSTEM=QPS,…", value_delimiter = ',')]
    qps: Vec<String>,
    /// Take queries per second from FILE: what `stratann-lab ablation --kind gpu-ivf --json` printed
    #[arg(long, value_name = "FILE", conflicts_with = "qps")]
    ablation: Option<PathBuf>,
    /// The recall of the ablation [default: its lowest]
    #[arg(long, value_name = "SHARE", requires = "ablation")]
    recall: Option<f64>,
    #[command(flatten)]
    prices: Prices,
}

/// Prices in dollars, and what is bought for them.
#[derive(Clone, Copy, Debug, Serialize, clap::Args)]
#[command(next_help_heading = "Prices in dollars (those of the paper, unless given)")]
struct Prices {
    /// Server with its processors
    #[arg(long, value_name = "USD", default_value_t = 5000.0)]
    server_price: f64,
    /// GB (10^9 bytes) of RAM
    #[arg(long, value_name = "USD", default_value_t = 10.0)]
    ram_gb_price: f64,
    /// SSD
    #[arg(long, value_name = "USD", default_value_t = 400.0)]
    ssd_price: f64,
    /// Capacity of an SSD, GB
    #[arg(long, value_name = "GB", default_value_t = 2000.0)]
    ssd_gb: f64,
    /// GPU
    #[arg(long, value_name = "USD", default_value_t = 3000.0)]
    gpu_price: f64,
    /// Memory of a GPU, GiB
    #[arg(long, value_name = "GIB", default_value_t = 32.0)]
    gpu_gib: f64,
}

const EXAMPLES: &str = "\
Examples:
  stratann-lab cost base.idx --qps spann=1200,rummy-like=5000,gpu-ivf=14000
  stratann-lab ablation base.idx query.u8bin --groundtruth truth.ibin --kind gpu-ivf --json > ablation.json
  stratann-lab cost base.idx --ablation ablation.json --recall 0.9 --ram-gb-price 4";

/// Place of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    Ram,
    Gpu,
    Ssd,
}

/// A structure of an index.
#[derive(Clone, Debug, Serialize)]
struct Part {
    what: &'static str,
    place: Place,
    /// In this index; nothing of what does not depend on the number of vectors.
    bytes_a_vector: f64,
    /// Bytes for the given number of vectors.
    bytes: u64,
}

/// A system, what it takes and what it costs.
#[derive(Clone, Debug, Serialize)]
struct System {
    name: &'static str,
    parts: Vec<Part>,
    ram_bytes: u64,
    gpu_bytes: u64,
    ssd_bytes: u64,
    gpus: u64,
    ssds: u64,
    server_dollars: f64,
    ram_dollars: f64,
    gpu_dollars: f64,
    ssd_dollars: f64,
    dollars: f64,
    qps: Option<f64>,
    qps_a_dollar: Option<f64>,
    qps_a_ram_gb: Option<f64>,
}

/// A row of table 2 of the paper, queries per second per dollar, and its ratios.
#[derive(Clone, Copy, Debug, Serialize)]
struct Table2 {
    data: &'static str,
    spann: f64,
    rummy: f64,
    fusionanns: f64,
    over_spann: f64,
    over_rummy: f64,
}

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    index_rows: u64,
    rows: u64,
    prices: Prices,
    systems: Vec<System>,
    /// The replicas' ids, of which neighbours in a list differ by more where there are more vectors: at most so much.
    ids_bytes_at_most: u64,
    paper_table_2: Vec<Table2>,
}

/// Structures of an index, from its open parts and its files.
struct Sizes {
    rows: u64,
    asked: u64,
    account: Vec<(String, u64)>,
    lists: u64,
    files: Vec<(String, u64)>,
}

/// Runs `stratann-lab cost`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    args.prices.check()?;
    if args.rows == 0 || args.rows > 1 << 50 {
        return Err(Error::bad_input(format!("--rows is {}; use 1 to 2^50", args.rows)));
    }
    let known = match &args.ablation {
        Some(path) => of_ablation(path, args.recall)?,
        None => args.qps.iter().map(|text| named_qps(text)).collect::<Result<Vec<_>>>()?,
    };
    let sizes = Sizes::of(&args.index, args.rows)?;
    let qps = |name: &str| known.iter().find(|known| known.0 == name).map(|known| known.1);
    let systems = NAMES
        .iter()
        .map(|&name| Ok(System::of(name, sizes.parts(name)?, qps(name), &args.prices)))
        .collect::<Result<Vec<_>>>()?;
    let document = Document {
        index: Named(&args.index),
        index_rows: sizes.rows,
        rows: args.rows,
        prices: args.prices,
        systems,
        ids_bytes_at_most: sizes.ids_at_most(&args.index)?,
        paper_table_2: table_2(),
    };
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

const NAMES: [&str; 4] = ["spann", "rummy-like", "gpu-ivf", "mi-cpu"];

impl Prices {
    fn check(&self) -> Result<()> {
        let amounts = [
            ("--server-price", self.server_price),
            ("--ram-gb-price", self.ram_gb_price),
            ("--ssd-price", self.ssd_price),
            ("--gpu-price", self.gpu_price),
        ];
        let wrong = amounts.into_iter().find(|amount| !(0.0..=1e12).contains(&amount.1));
        let sizes = [("--ssd-gb", self.ssd_gb), ("--gpu-gib", self.gpu_gib)];
        match wrong.or(sizes.into_iter().find(|size| !(1e-3..=1e12).contains(&size.1))) {
            Some((name, amount)) => {
                Err(Error::bad_input(format!("{name} is {amount}; use a positive number up to 1e12")))
            }
            None => Ok(()),
        }
    }
}

/// Parses `spann=1200`.
fn named_qps(text: &str) -> Result<(String, f64)> {
    let parsed = text.split_once('=').and_then(|(name, qps)| Some((name, qps.parse::<f64>().ok()?)));
    match parsed {
        Some((name, qps)) if NAMES.contains(&name) && (0.0..=1e15).contains(&qps) => Ok((name.into(), qps)),
        _ => Err(Error::bad_input(format!(
            "--qps {text}: write SYSTEM=QPS, where the system is one of {}",
            NAMES.join(", ")
        ))),
    }
}

/// Throughput of the ways of an ablation at a recall.
fn of_ablation(path: &Path, recall: Option<f64>) -> Result<Vec<(String, f64)>> {
    let wrong = |why: String| {
        Error::bad_input(format!(
            "{}: {why}; give what `stratann-lab ablation --kind gpu-ivf --json` printed",
            path.display()
        ))
    };
    let document: serde_json::Value =
        serde_json::from_str(&input::read_text(path)?).map_err(|e| wrong(e.to_string()))?;
    let ways = document["ways"].as_array().ok_or_else(|| wrong("it has no \"ways\"".into()))?;
    let asked = |way: &serde_json::Value| way["asked"].as_f64();
    let lowest = ways.iter().filter_map(asked).fold(f64::INFINITY, f64::min);
    let wanted = recall.unwrap_or(lowest);
    let at = ways.iter().filter(|way| asked(way) == Some(wanted));
    let named = at.filter_map(|way| {
        let name = match way["name"].as_str()? {
            "default" => "gpu-ivf",
            name => name,
        };
        Some((name.to_string(), way["qps"].as_f64()?))
    });
    let all: Vec<(String, f64)> = named.collect();
    if all.is_empty() {
        return Err(wrong(format!("it has no way at a recall of {wanted}")));
    }
    Ok(all)
}

impl Sizes {
    fn of(folder: &Path, asked: u64) -> Result<Sizes> {
        let (_, manifest) = Manifest::read(folder)?;
        let section = manifest.section.gpu().filter(|_| manifest.kind() == Some(IndexKind::GpuIvf));
        let Some(facts) = section.map(|section| section.facts.clone()) else {
            return Err(Error::bad_input(format!(
                "{} is of kind {}; give an index of kind gpu-ivf that was built with --baselines",
                folder.display(),
                manifest.kind
            )));
        };
        if !facts.baselines {
            return Err(Error::bad_input(format!(
                "{} has no lists of vectors to compare with; build it with --baselines",
                folder.display()
            )));
        }
        let index = Index::open(folder, OpenOptions::default())?;
        let of_file = |(name, file): (&FileName, &FileEntry)| {
            let role = name.split_once('-').map_or(&**name, |(_, role)| role);
            (role.to_string(), file.bytes)
        };
        Ok(Sizes {
            rows: manifest.rows.max(1),
            asked,
            account: index
                .account()
                .components
                .into_iter()
                .map(|(what, bytes)| (what.into_owned(), bytes))
                .collect(),
            lists: facts.lists().into(),
            files: manifest.files.iter().map(of_file).collect(),
        })
    }

    fn find(all: &[(String, u64)], name: &str) -> Result<u64> {
        let found = all.iter().find(|one| one.0 == name).map(|one| one.1);
        found.ok_or_else(|| {
            Error::corrupt(format!("the index has no {name}; run `stratann verify`, or build it again"))
        })
    }

    /// A structure in RAM that grows with the vectors.
    fn held(&self, what: &'static str, place: Place) -> Result<Part> {
        Ok(self.scaled(what, place, Sizes::find(&self.account, what)?))
    }

    /// A file that grows with the vectors.
    fn file(&self, what: &'static str, role: &str, place: Place) -> Result<Part> {
        Ok(self.scaled(what, place, Sizes::find(&self.files, role)?))
    }

    fn scaled(&self, what: &'static str, place: Place, bytes: u64) -> Part {
        let all = u128::from(bytes) * u128::from(self.asked) / u128::from(self.rows);
        let bytes_a_vector = bytes as f64 / self.rows as f64;
        Part { what, place, bytes_a_vector, bytes: u64::try_from(all).unwrap_or(u64::MAX) }
    }

    /// A structure that does not grow.
    fn fixed(&self, what: &'static str, place: Place) -> Result<Part> {
        let bytes = Sizes::find(&self.account, what)?;
        Ok(Part { what, place, bytes_a_vector: 0.0, bytes })
    }

    /// Structures of a system, and their places.
    fn parts(&self, name: &str) -> Result<Vec<Part>> {
        use Place::{Gpu, Ram, Ssd};
        let mut parts = vec![
            self.fixed("program", Ram)?,
            self.held("centroids", Ram)?,
            self.held("navigation graph", Ram)?,
        ];
        // Where each list begins: as an open index holds it, four bytes a list.
        let directory = self.scaled("places of lists", Ram, 4 * (self.lists + 1));
        let lists = |place| self.file("lists of vectors", "list-vectors.bin", place);
        match name {
            "spann" => parts.extend([directory, lists(Ssd)?]),
            "rummy-like" => parts.extend([directory, lists(Ram)?]),
            _ => {
                let scorer = if name == "gpu-ivf" { Gpu } else { Ram };
                parts.extend([
                    self.held("ids of lists", Ram)?,
                    self.held("block map", Ram)?,
                    self.fixed("codebook", Ram)?,
                    self.held("codes", scorer)?,
                    self.file("blocks", "blocks.bin", Ssd)?,
                ]);
                if scorer == Gpu {
                    parts.push(self.fixed("codebook", Gpu)?);
                }
            }
        }
        Ok(parts)
    }

    /// Ids of four bytes for every replica.
    fn ids_at_most(&self, folder: &Path) -> Result<u64> {
        let (_, manifest) = Manifest::read(folder)?;
        let replication = manifest.section.gpu().map_or(1.0, |section| section.facts.replication);
        let own = Sizes::find(&self.account, "ids of lists")?;
        let replicas = 4.0 * (replication - 1.0).max(0.0) * self.asked as f64;
        Ok((replicas as u64).max(self.scaled("", Place::Ram, own).bytes))
    }
}

impl System {
    fn of(name: &'static str, parts: Vec<Part>, qps: Option<f64>, prices: &Prices) -> System {
        let sum = |place: Place| parts.iter().filter(|part| part.place == place).map(|part| part.bytes).sum();
        let (ram_bytes, ssd_bytes): (u64, u64) = (sum(Place::Ram), sum(Place::Ssd));
        let gpu_bytes: u64 = sum(Place::Gpu);
        let units = |bytes: u64, each: f64| (bytes as f64 / each).ceil() as u64;
        // Lists go to the GPU of rummy-like query by query: one is enough.
        let gpus = units(gpu_bytes, prices.gpu_gib * f64::from(1 << 30)).max(u64::from(name == "rummy-like"));
        let ssds = units(ssd_bytes, prices.ssd_gb * 1e9);
        let ram_dollars = ram_bytes as f64 / 1e9 * prices.ram_gb_price;
        let (gpu_dollars, ssd_dollars) = (gpus as f64 * prices.gpu_price, ssds as f64 * prices.ssd_price);
        let dollars = prices.server_price + ram_dollars + gpu_dollars + ssd_dollars;
        System {
            name,
            parts,
            ram_bytes,
            gpu_bytes,
            ssd_bytes,
            gpus,
            ssds,
            server_dollars: prices.server_price,
            ram_dollars,
            gpu_dollars,
            ssd_dollars,
            dollars,
            qps,
            qps_a_dollar: qps.map(|qps| qps / dollars.max(f64::MIN_POSITIVE)),
            qps_a_ram_gb: qps.map(|qps| qps / (ram_bytes as f64 / 1e9)),
        }
    }
}

/// Table 2 as it is printed in the paper.
fn table_2() -> Vec<Table2> {
    let printed =
        [("SIFT1B", 0.32, 0.88, 1.98), ("SPACEV1B", 0.41, 1.40, 2.35), ("DEEP1B", 0.12, 0.15, 1.01)];
    let row = |(data, spann, rummy, fusionanns)| Table2 {
        data,
        spann,
        rummy,
        fusionanns,
        over_spann: fusionanns / spann,
        over_rummy: fusionanns / rummy,
    };
    printed.into_iter().map(row).collect()
}

fn text(document: &Document<'_>) -> String {
    let mut out = format!(
        "{} vectors, in proportion to the {} of {}\n\n",
        count(document.rows),
        count(document.index_rows),
        document.index.display()
    );
    let row = |system: &System, part: &Part| {
        vec![
            system.name.to_string(),
            part.what.to_string(),
            format!("{:?}", part.place).to_uppercase(),
            format!("{:.2}", part.bytes_a_vector),
            size(part.bytes),
        ]
    };
    let parts =
        document.systems.iter().flat_map(|system| system.parts.iter().map(move |part| row(system, part)));
    out += &table(&["", "structure", "in", "bytes a vector", "together"], &parts.collect::<Vec<_>>());
    out += &format!(
        "ids of lists grow a little more than the vectors do, to {} at most\n\n",
        size(document.ids_bytes_at_most)
    );
    let rate = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.3}"));
    let row = |system: &System| {
        vec![
            system.name.to_string(),
            size(system.ram_bytes),
            size(system.gpu_bytes),
            size(system.ssd_bytes),
            format!("{:.0}", system.server_dollars),
            format!("{:.0}", system.ram_dollars),
            format!("{:.0}", system.gpu_dollars),
            format!("{:.0}", system.ssd_dollars),
            format!("{:.0}", system.dollars),
            system.qps.map_or("-".into(), |qps| count(qps as u64)),
            rate(system.qps_a_dollar),
            rate(system.qps_a_ram_gb),
        ]
    };
    let head =
        ["", "RAM", "GPU", "SSD", "server $", "RAM $", "GPU $", "SSD $", "all $", "QPS", "QPS/$", "QPS/GB"];
    out += &table(&head, &document.systems.iter().map(row).collect::<Vec<_>>());
    out += "\nQPS/$ of the paper (table 2), and what it divides to:\n";
    for row in &document.paper_table_2 {
        out += &format!(
            "{}: FusionANNS over SPANN {:.2}/{:.2} = {:.2}, over RUMMY {:.2}/{:.2} = {:.2}\n",
            row.data, row.fusionanns, row.spann, row.over_spann, row.fusionanns, row.rummy, row.over_rummy
        );
    }
    let least = document.paper_table_2.iter().map(|row| row.over_rummy).fold(f64::INFINITY, f64::min);
    out + &format!("at least {least:.2} over RUMMY by the printed numbers; the text of the paper says 2.25\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_2_divides_to_what_it_says() {
        let ratios: Vec<f64> = table_2().iter().map(|row| (100.0 * row.over_rummy).round() / 100.0).collect();
        assert_eq!(ratios, [2.25, 1.68, 6.73]);
    }

    #[test]
    fn systems_are_named() {
        assert_eq!(named_qps("spann=12.5").unwrap(), ("spann".to_string(), 12.5));
        for wrong in ["spann", "spann=", "spann=-1", "diskann=4", "spann=NaN"] {
            assert!(named_qps(wrong).is_err(), "{wrong}");
        }
    }
}
