//! Options that several commands share, and their parsers.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use stratann_core::query::ScoringMode;
use stratann_core::query::wire::{Carry, Results};
use stratann_engine::DType;
use stratann_engine::exec::{Admission, Width};
use stratann_params::choices::{CarryName, RemoteName, ResultsName};
use stratann_params::{IndexKind, Parameter, Type, Value, parse_size};
use stratann_storage::{Error, Result as Checked};

use crate::http_client::address;
use crate::memory_nodes::KeyArgs;
use crate::parameters::one_line;

/// `--kind`: `None` for an automatic choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KindChoice(pub(crate) Option<IndexKind>);

/// Parses `--kind`.
pub(crate) fn kinds() -> impl TypedValueParser<Value = KindChoice> {
    let auto = PossibleValue::new("auto").help("Choose by the vectors and the RAM of --search-budget");
    let kinds = IndexKind::CHOICES.iter().map(|kind| PossibleValue::new(kind.name).help(one_line(kind.help)));
    PossibleValuesParser::new([auto].into_iter().chain(kinds)).map(|name| KindChoice(IndexKind::parse(&name)))
}

/// Parses one of the choices of the table.
pub fn choice<T: Parameter + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    let choices = if let Type::Choice(choices) = T::TYPE { choices } else { &[] };
    let names = choices.iter().map(|choice| PossibleValue::new(choice.name).help(one_line(choice.help)));
    let read = |name: String| T::read(&Value::Text(name)).ok_or("an unknown name");
    PossibleValuesParser::new(names).try_map(read)
}

/// Returns the name of an admission policy for `--admission`.
pub(crate) fn admission_name(admission: Admission) -> &'static str {
    match admission {
        Admission::One => "one",
        Admission::Batch => "batch",
        Admission::Fixed => "fixed",
    }
}

/// The form of `--carry`.
pub(crate) fn carry(name: CarryName) -> Carry {
    match name {
        CarryName::Ids => Carry::Ids,
        CarryName::Distances => Carry::Distances,
    }
}

/// Returns the name of a form for `--carry`.
pub(crate) fn carry_name(carry: Carry) -> &'static str {
    match carry {
        Carry::Ids => CarryName::Ids.name(),
        Carry::Distances => CarryName::Distances.name(),
    }
}

/// The use of lists of other servers by `--remote`.
pub(crate) fn remote(name: RemoteName) -> ScoringMode {
    match name {
        RemoteName::Score => ScoringMode::Score,
        RemoteName::Forward => ScoringMode::Forward,
        RemoteName::HandOver => ScoringMode::HandOver,
    }
}

/// The way of partial results by `--results`.
pub(crate) fn results(name: ResultsName) -> Results {
    match name {
        ResultsName::Along => Results::Along,
        ResultsName::Origin => Results::Origin,
    }
}

/// Parses a size such as `512MiB`.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
}

/// Parses a number of threads: 1 to 1024.
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=1024).contains(&n) => Ok(n),
        _ => Err("use 1 to 1024".into()),
    }
}

/// Returns the default number of threads: the cores that this process may use.
pub fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Returns the value of `--width` for a report; null where it is the usual one of an index that is not known here.
pub(crate) fn width_name(width: Width) -> serde_json::Value {
    match width {
        Width::Usual => serde_json::Value::Null,
        Width::Auto => "auto".into(),
        Width::Fixed(n) => n.into(),
    }
}

/// Returns the name and size of an element type for a message.
pub(crate) fn dtype_text(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32 (4 bytes)",
        DType::F16 => "f16 (2 bytes)",
        DType::U8 => "u8 (1 byte)",
        DType::I8 => "i8 (1 byte)",
    }
}

/// Index or servers, and queries: shared by `search` and `bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Searched {
    /// The folder of the index; not given with --connect
    #[arg(value_name = "INDEX", required = true)]
    // Optional only because a subcommand may take its place.
    first: Option<PathBuf>,
    /// Queries, in any vector format; f32 and f16 are converted to each other
    #[arg(value_name = "QUERIES")]
    second: Option<PathBuf>,
    /// Search on running servers instead of an opened index
    ///
    /// Several addresses of one index are used in turn. A request that one server cannot answer goes to the next one,
    /// once to each. CPU time and memory are sums over the listed servers.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = address)]
    pub(crate) connect: Vec<String>,
    /// Search an index that memory nodes hold, instead of a folder: HOST:PORT, shm:NAME or ucx:HOST:PORT of each, or
    /// etcd:CLUSTER@URL, with --key-file
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "connect")]
    pub(crate) memory: Vec<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// Target of a search, from [`Searched`].
pub(crate) enum Target<'a> {
    /// An index on this machine.
    Index { index: &'a Path, queries: &'a Path },
    /// Running servers.
    Servers { addresses: &'a [String], queries: &'a Path },
    /// Memory nodes.
    Memory { addresses: &'a [String], queries: &'a Path },
}

impl Searched {
    /// Name of a collection, and queries.
    ///
    /// # Errors
    /// When one of them is missing.
    pub(crate) fn in_collection(&self) -> Checked<(&str, &Path)> {
        match (self.first.as_deref().and_then(Path::to_str), &self.second) {
            (Some(name), Some(queries)) => Ok((name, queries)),
            _ => Err(Error::bad_input(
                "--data needs two arguments; give the name of a collection and a file of queries",
            )),
        }
    }

    /// # Errors
    /// When a path is missing or superfluous.
    pub(crate) fn target(&self) -> Checked<Target<'_>> {
        let Some(first) = self.first.as_deref() else {
            return Err(Error::bad_input("an index and queries are required; see --help"));
        };
        if !self.memory.is_empty() {
            return match &self.second {
                None => Ok(Target::Memory { addresses: &self.memory, queries: first }),
                Some(queries) => Err(Error::bad_input(format!(
                    "--memory searches what memory nodes hold; leave out {} and give {} only",
                    first.display(),
                    queries.display()
                ))),
            };
        }
        match (self.connect.as_slice(), &self.second) {
            ([], Some(queries)) => Ok(Target::Index { index: first, queries }),
            ([], None) => Err(Error::bad_input(format!(
                "{} is one path; give an index and a file of queries, or servers with --connect",
                first.display()
            ))),
            (addresses, None) => Ok(Target::Servers { addresses, queries: first }),
            (_, Some(queries)) => Err(Error::bad_input(format!(
                "--connect uses the index of the servers; leave out {} and give {} only",
                first.display(),
                queries.display()
            ))),
        }
    }
}
