//! `stratann profile`: measures costs of reads and distances and writes them to a file.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use stratann_params::measure::ProfileSettings;
use stratann_params::search::SearchSettings;
use stratann_params::{Place, Stage};
use stratann_storage::budget::size as size_text;
use stratann_storage::output::OutputPath;
use stratann_storage::profile::{
    self, ComputeCosts, DEPTHS, DiskCosts, DistanceCost, KeptProfile, Measurement, Profile, ProfileOptions,
    SIZES,
};
use stratann_storage::{Error, Result};

use crate::Verdict;
use crate::output::{Named, Output, count, duration, table, utc};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;

/// Measure the costs of reads and distances on this machine and one of its disks, and write them to a file
///
/// Measures sequential reads, random reads of several sizes and depths, and exact and code distances on one core. A
/// scratch file in FOLDER is removed afterwards. Run nothing else meanwhile.
///
/// The first build of a hybrid-ivf on a disk measures it too, in 8 s, and keeps the profile for all later builds on
/// that disk, in the folder STRATANN_CACHE or ~/.cache/stratann. --kept shows it, --keep replaces it.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// A folder on the disk that will hold indexes [default: . or, with --show, that of FILE]
    folder: Option<PathBuf>,
    /// File to write [default: FOLDER/stratann-profile.json]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing profile; other files are never replaced
    #[arg(long, conflicts_with = "show")]
    force: bool,
    /// Keep the profile for all builds on the disk of FOLDER, instead of writing it to a file in FOLDER
    #[arg(long, conflicts_with_all = ["output", "force", "io"])]
    keep: bool,
    /// Measure nothing: print the profile that is kept for builds on the disk of FOLDER
    #[arg(long, conflicts_with_all = ["keep", "output", "force", "seconds", "scratch", "io", "show"])]
    kept: bool,
    /// Measure nothing: print this profile, and whether it is from this machine and the disk of FOLDER
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keep", "output", "seconds", "scratch", "io"])]
    show: Option<PathBuf>,
    #[command(flatten)]
    table: Parameters<ProfileRows>,
}

/// The table's options of a measurement.
struct ProfileRows;

impl Rows for ProfileRows {
    const STAGES: &'static [Stage] = &[Stage::Profile];
}

const EXAMPLES: &str = "\
Examples:
  stratann profile /data
  stratann profile /data --seconds 5 -o nvme.json
  stratann profile /data --keep
  stratann profile /data --kept
  stratann profile --show /data/stratann-profile.json";

#[derive(Serialize)]
struct Document<'a> {
    file: Named<'a>,
    /// Why the profile does not apply to this machine and disk.
    differs: Option<String>,
    #[serde(flatten)]
    profile: Profile,
}

/// Runs `stratann profile`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    args.table.check(None, Place::Folder)?;
    if let Some(file) = &args.show {
        let profile = Profile::read(file)?;
        let beside = || file.parent().unwrap_or(Path::new("."));
        let folder = args.folder.as_deref().unwrap_or_else(beside);
        return report(file, profile, folder, output);
    }
    let folder = args.folder.as_deref().unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Error::bad_input(format!("{}: no such folder; create it first", folder.display())));
    }
    if args.kept {
        return show_kept(folder, output);
    }
    // Checked before time is spent.
    let target = Target::of(args, folder)?;
    let (settings, reads): (ProfileSettings, SearchSettings) =
        (args.table.given.read(), args.table.given.read());
    let usual = ProfileOptions::default();
    let options = ProfileOptions {
        seconds: settings.seconds,
        scratch_bytes: settings.scratch.unwrap_or(usual.scratch_bytes),
        io: reads.io.into(),
    };
    let printer = ProgressPrinter::new(output);
    let measured = Profile::measure(folder, &options, &printer)?;
    target.write(&measured)?;
    printer.finish();
    report(target.path(), measured, folder, output)
}

/// Place of a profile.
enum Target {
    File(OutputPath),
    Kept(KeptProfile),
}

impl Target {
    fn of(args: &Args, folder: &Path) -> Result<Target> {
        if args.keep {
            return KeptProfile::of_disk(folder).map(Target::Kept);
        }
        let file = args.output.clone().unwrap_or_else(|| folder.join(profile::FILE_NAME));
        let file = OutputPath::check(&file, args.force, &[])?;
        profile::may_write(&file)?;
        Ok(Target::File(file))
    }

    fn path(&self) -> &Path {
        match self {
            Target::File(file) => file.path(),
            Target::Kept(kept) => &kept.path,
        }
    }

    fn write(&self, profile: &Profile) -> Result<()> {
        match self {
            Target::File(file) => profile.write(file),
            Target::Kept(kept) => kept.write(profile),
        }
    }
}

/// Prints the profile that builds on the disk of `folder` use.
fn show_kept(folder: &Path, output: Output) -> Result<Verdict> {
    let kept = KeptProfile::of_disk(folder)?;
    let profile = kept.read()?.ok_or_else(|| {
        Error::bad_input(format!(
            "no profile is kept for the disk of {} ({} does not exist): the next build of a hybrid-ivf there measures \
             one; or measure now with `stratann profile {} --keep`",
            folder.display(),
            kept.path.display(),
            folder.display()
        ))
    })?;
    report(&kept.path, profile, folder, output)
}

fn report(file: &Path, profile: Profile, folder: &Path, output: Output) -> Result<Verdict> {
    let document = Document { file: Named(file), differs: profile.differs_from_here(folder), profile };
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

fn text(document: &Document<'_>) -> String {
    let (origin, profile) = (&document.profile.origin, &document.profile);
    let when = profile.measurement.as_ref().map_or(String::new(), |m| format!(" {}", measured_words(m)));
    let mut out = format!("{}: measured{when} in {}\n", document.file.display(), duration(profile.seconds));
    if let Some(reason) = &document.differs {
        out += &format!("not of this machine and disk: {reason}\n");
    }
    out += &format!(
        "processor    {}, {} cores, kernels for {}\ndisk         {} on {}, by {}\n\n",
        origin.cpu, origin.cores, origin.isa, origin.file_system, origin.device, origin.io_backend
    );
    out + &disk_text(&profile.disk) + "\n" + &compute_text(&profile.compute)
}

/// When and by which version, such as `2026-01-31T12:00:00Z by stratann 0.1.0`.
pub(crate) fn measured_words(m: &Measurement) -> String {
    format!("{} by stratann {}", utc(UNIX_EPOCH + Duration::from_secs(m.unix_s)), m.version)
}

fn disk_text(disk: &DiskCosts) -> String {
    let how = match disk.direct {
        true => "",
        false => "; direct reads are refused: these figures are those of the page cache",
    };
    let mut out = format!(
        "sequential reads {:.2} GB/s; a single random read of 4 KiB {:.0} us (median), {:.0} us (mean); \
         from a file of {}{how}\n\n",
        disk.sequential_bytes_per_s / 1e9,
        disk.latency_us,
        disk.latency_mean_us,
        size_text(disk.file_bytes)
    );
    let of = |bytes: u32, depth: u32| disk.random.iter().find(|r| (r.bytes, r.depth) == (bytes, depth));
    let us = |bytes, depth| of(bytes, depth).map_or("-".into(), |r| format!("{:.0}", r.mean_us));
    let rate = |bytes, depth| of(bytes, depth).map_or("-".into(), |r| count(r.per_second as u64));
    let pages = DEPTHS.map(|depth| vec![depth.to_string(), rate(SIZES[0], depth), us(SIZES[0], depth)]);
    out += &table(&["4 KiB reads in flight", "reads/s", "mean us"], &pages);
    let (alone, loaded) = (disk.alone.depth, disk.loaded.depth);
    let sizes = SIZES.map(|bytes| {
        let name = format!("{} KiB", bytes >> 10);
        vec![name, us(bytes, alone), us(bytes, loaded), rate(bytes, loaded)]
    });
    let headings = ["size of a read", "alone, us", "32 under way, us", "reads/s"];
    out += &format!("\n{}", table(&headings, &sizes));
    for line in [&disk.alone, &disk.loaded] {
        out += &format!(
            "{} in flight: {:.0} us + {:.3} us per KiB\n",
            line.depth,
            line.fixed_us,
            1.024 * line.ns_per_byte
        );
    }
    out
}

fn compute_text(compute: &ComputeCosts) -> String {
    let row = |name: &str, cost: &DistanceCost| {
        let measured: Vec<String> =
            cost.measured.iter().map(|m| format!("{}: {:.1}", m.size, m.ns)).collect();
        vec![
            name.into(),
            format!("{:.1}", cost.fixed_ns),
            format!("{:.4}", cost.ns_per_unit),
            measured.join("  "),
        ]
    };
    let rows = [
        row("f32, per component", &compute.full_f32),
        row("f16, per component", &compute.full_f16),
        row("u8, per component", &compute.full_u8),
        row("codes, per byte", &compute.codes),
    ];
    table(&["distance, ns", "fixed", "each", "measured"], &rows)
}
