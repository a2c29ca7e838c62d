//! `stratann info`: shows what an index contains.

use std::path::Path;

use stratann_engine::curve::{IN_MEMORY, RECALL_USUAL, all_unreached};
use stratann_engine::kinds::gpu_ivf::facts::GpuFacts;
use stratann_engine::kinds::grid_ivf::facts::GridFacts;
use stratann_engine::kinds::hybrid_ivf::learning::LearnedFacts;
use stratann_engine::kinds::known::facts;
use stratann_engine::kinds::remote_hnsw::facts::RemoteFacts;
use stratann_engine::kinds::resident_bytes_max;
use stratann_engine::manifest::{Manifest, PointFacts};
use stratann_engine::verify;
use stratann_params::IndexKind;
use stratann_storage::Result;
use stratann_storage::budget::{Account, size};

use crate::memory_nodes::{IndexPlace, PlaceArgs};
use crate::options::dtype_text;
use crate::output::{Output, count, table};
use crate::{Verdict, memory};

mod clusters;
mod in_memory;

/// Show an index's contents, memory and disk use
///
/// Reads only the manifest and the learnt statistics, and compares the lengths of files with the manifest, so that
/// it is fast for every size. With --memory: the manifest and the headers that memory nodes hold, with their fresh
/// records and tombstones.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
}

/// Runs `stratann info`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let folder = match args.place.place(output)? {
        IndexPlace::Folder(folder) => folder,
        IndexPlace::Memory(name, index) => return in_memory::show(&name, &index, output),
    };
    let (version, manifest) = Manifest::read(folder)?;
    let notes = manifest.damaged_note(version).into_iter().chain(manifest.curves_note());
    notes.for_each(|note| output.note(&format!("warning: {note}")));
    manifest.check_lengths(folder)?;
    let account = manifest.planned_account(0);
    let left: Vec<String> =
        verify::left_over(folder, &manifest, version)?.iter().map(|p| p.display().to_string()).collect();
    let mut document = document(version, &manifest, &account);
    document["left_over"] = serde_json::json!(left);
    let learnt = clusters::learnt(folder, &manifest, output);
    if let Some(section) = manifest.section.lists() {
        document["clusters"] = serde_json::json!(section.facts);
        document["plan"] = serde_json::json!(section.plan);
        document["learnt"] = serde_json::json!(learnt);
    }
    if let Some(section) = manifest.section.gpu() {
        document["gpu"] = serde_json::json!(section.facts);
    }
    if let Some(section) = manifest.section.grid() {
        document["grid"] = serde_json::json!(section.facts);
    }
    output.result(&document, || text(folder, version, &manifest, &account, &left, learnt))?;
    Ok(Verdict::Fine)
}

/// Document of the manifest's facts, of every kind.
fn document(version: u64, manifest: &Manifest, account: &Account) -> serde_json::Value {
    let disk: u64 = manifest.files.values().map(|f| f.bytes).sum();
    let vector_bytes = manifest.dim * manifest.dtype().map_or(0, |d| d.size());
    let mut document = serde_json::json!({
        "version": version,
        "format_version": manifest.format_version,
        "build_id": manifest.build_id,
        "kind": manifest.kind,
        "metric": manifest.metric,
        "dtype": manifest.dtype,
        "rows": manifest.rows,
        "dim": manifest.dim,
        "blocks": manifest.blocks,
        "build": manifest.build,
        "files": manifest.files,
        "index_bytes": disk,
        "vector_bytes": manifest.rows * vector_bytes as u64,
        "memory": memory::json(account),
        "ram_bytes_per_vector": ram_per_vector(account, manifest),
        "resident_bytes_max": resident_bytes_max(manifest),
        "curves": manifest.curves,
        "unreached": all_unreached(&manifest.curves, RECALL_USUAL),
        "left_over": [],
        "cluster": manifest.spread,
    });
    if let Some(deletes) = &manifest.deletes {
        document["deletes"] = serde_json::json!({
            "rows": manifest.deleted_rows(), "left": manifest.live_rows(),
            "undo": deletes.steps.len() - usize::from(deletes.is_cut),
        });
    }
    if let Some(points) = &manifest.points {
        document["points"] = serde_json::json!(points);
    }
    if let Some(rows) = manifest.curve_rows {
        document["curve_rows"] = rows.into();
    }
    if let Some(section) = manifest.section.remote() {
        document["remote"] = serde_json::json!(section.facts);
    }
    document
}

/// Memory of the program, which does not depend on the index.
fn ram_per_vector(account: &Account, manifest: &Manifest) -> f64 {
    let own: u64 = account.components.iter().filter(|c| c.0 != "program").map(|c| c.1).sum();
    own as f64 / manifest.rows.max(1) as f64
}

/// Formats a value as it was given: fractional options are f32, and 1.2 is not 1.2000000476837158.
fn plain(value: &serde_json::Value) -> String {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(x) if f64::from(x as f32) == x => (x as f32).to_string(),
        _ => value.to_string(),
    }
}

fn text(
    folder: &Path,
    version: u64,
    m: &Manifest,
    account: &Account,
    left: &[String],
    learnt: Option<LearnedFacts>,
) -> String {
    let disk: u64 = m.files.values().map(|f| f.bytes).sum();
    let mut out = format!(
        "{}: {}, {}, {} vectors of {} {}\n",
        folder.display(),
        m.kind,
        m.metric,
        count(m.rows),
        m.dim,
        m.dtype().map_or("an unknown type", dtype_text)
    );
    if m.deletes.is_some() {
        out +=
            &format!("{} of them are deleted, {} are left\n", count(m.deleted_rows()), count(m.live_rows()));
    }
    out += &format!("version {version}, format {}, build {}\n", m.format_version, m.build_id);
    out += &m.points.as_ref().map_or_else(String::new, points);
    out += &match m.section.lists() {
        Some(section) => clusters::text(m, section, learnt),
        None => match (m.section.grid(), m.section.gpu(), m.section.remote()) {
            (Some(section), ..) => grid(&section.facts),
            (_, Some(section), _) => gpu(m, &section.facts),
            (.., Some(section)) => remote(&section.facts),
            _ => blocks(m),
        },
    };
    if m.blocks.code_bytes > 0 {
        out += &format!("codes of {} bytes on disk, in the blocks\n", m.blocks.code_bytes);
    }
    let parameters: Vec<String> =
        m.build.iter().map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value))).collect();
    out += &format!("built with: {}\n\n", parameters.join(", "));
    out += &cluster(m);
    let files: Vec<Vec<String>> =
        m.files.iter().map(|(name, f)| vec![name.to_string(), size(f.bytes)]).collect();
    out += &table(&["file", "size"], &files);
    out +=
        &format!("all {} on disk, {:.0} bytes per vector\n", size(disk), disk as f64 / m.rows.max(1) as f64);
    out += &format!(
        "\nRAM when open: {}\n{:.1} bytes per vector; a search adds to it, see `stratann search --json`\n",
        memory::text(account),
        ram_per_vector(account, m)
    );
    if let Some(most) = resident_bytes_max(m) {
        out += &format!("with up to {} more, all that searches read is in memory\n", size(most));
    }
    out += &curves(m);
    if !left.is_empty() {
        out += &format!("\nnot needed by this version: {}\n", left.join(", "));
    }
    out
}

/// Ids and payloads.
fn points(facts: &PointFacts) -> String {
    const FIELDS_SHOWN: usize = 20;
    let of_form = |(number, name): (u64, &str)| (number > 0).then(|| format!("{} {name}", count(number)));
    let forms = [(facts.numbers, "numbers"), (facts.uuids, "UUIDs"), (facts.strings, "strings")];
    let forms: Vec<String> = forms.into_iter().filter_map(of_form).collect();
    let shown = facts.fields.iter().take(FIELDS_SHOWN);
    let mut fields: Vec<String> = shown.map(|(name, &rows)| format!("{name} ({})", count(rows))).collect();
    if facts.has_more_fields || facts.fields.len() > FIELDS_SHOWN {
        fields.push("…".into());
    }
    let indexes: Vec<String> =
        facts.indexes.iter().map(|(field, kinds)| format!("{field}={}", kinds.join(","))).collect();
    let or_none = |texts: &[String]| if texts.is_empty() { "none".into() } else { texts.join(", ") };
    format!(
        "ids: {}; {} payloads, with the fields {}; indexes: {}; a search that asks for them takes {} more\n",
        forms.join(", "),
        count(facts.payloads),
        or_none(&fields),
        or_none(&indexes),
        size(facts.memory_bytes)
    )
}

/// The lists of a `grid-ivf`.
fn grid(facts: &GridFacts) -> String {
    let sizes = &facts.sizes;
    format!(
        "{} inverted lists of {} to {} vectors (mean {:.1}, Gini {:.2}); groups of components end at {}; the first \
         {} stored component by component\n",
        count(sizes.count),
        sizes.min,
        sizes.max,
        sizes.mean,
        sizes.gini,
        facts.edges[1..].iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        facts.columns
    )
}

/// The lists and blocks of a `gpu-ivf`.
fn gpu(m: &Manifest, facts: &GpuFacts) -> String {
    let sizes = &facts.sizes;
    let blocks = u64::from(m.blocks.count) * m.blocks.bytes as u64;
    let vectors = m.rows * (m.dim * m.dtype().map_or(4, |dtype| dtype.size())) as u64;
    format!(
        "{} inverted lists of {} to {} vectors (mean {:.1}, Gini {:.2}); a vector is in {:.2} of them, a replica takes \
         {:.2} bytes\n{}{:.1}% of their room is filled; blocks take {:.3} times the bytes of the vectors{}\n",
        count(sizes.count),
        sizes.min,
        sizes.max,
        sizes.mean,
        sizes.gini,
        facts.replication,
        facts.replica_bytes,
        self::blocks(m),
        100.0 * facts.filled,
        blocks as f64 / vectors.max(1) as f64,
        if facts.baselines { "; with files for --baseline" } else { "" }
    )
}

/// The clusters and groups of a `remote-hnsw`.
fn remote(facts: &RemoteFacts) -> String {
    let sizes = &facts.sizes;
    format!(
        "{} clusters of {} to {} vectors (mean {:.1}, Gini {:.2}), {} in all, the largest {}; {} neighbours on upper \
         layers\n{} groups, each with room for {} fresh records ({}); room for {} tombstones; the meta-HNSW takes {}\n",
        count(sizes.count),
        sizes.min,
        sizes.max,
        sizes.mean,
        sizes.gini,
        size(facts.cluster_bytes),
        size(facts.cluster_bytes_max),
        facts.m,
        count(facts.groups.into()),
        count(facts.capacity.into()),
        size(facts.overflow_bytes()),
        count(facts.tombstones),
        size(facts.meta_bytes)
    )
}

fn blocks(m: &Manifest) -> String {
    let per_block = m.rows as f64 / f64::from(m.blocks.count.max(1));
    format!(
        "{} blocks of {}, {per_block:.1} vectors in each; ids of {} bytes\n",
        count(u64::from(m.blocks.count)),
        size(m.blocks.bytes as u64),
        m.blocks.id_bytes
    )
}

/// Describes the partition over servers, if there is one.
fn cluster(m: &Manifest) -> String {
    let Some(c) = &m.spread else { return String::new() };
    let (unit, units) = m.facts().unit_names;
    let held = |pick: fn(u32, u32) -> u32| c.held.iter().copied().reduce(pick).unwrap_or(0);
    format!(
        "partitioned over {} servers by {} (seed {}): {} to {} {units} each, {} replicas of a {unit}, \
         {:.0} % with one more, {:.1} % of the edges cut; made from build {}\n\n",
        c.servers,
        c.method,
        c.seed,
        count(u64::from(held(u32::min))),
        count(u64::from(held(u32::max))),
        c.replicas,
        100.0 * c.overlap,
        100.0 * c.cut_share,
        c.source
    )
}

fn curves(m: &Manifest) -> String {
    // A kind that this program does not know has no curves that it could show.
    let Some(kind) = m.kind() else { return String::new() };
    let (effort, (stop, unit)) = (facts(kind).effort.name(), facts(kind).stop_name);
    let mut rows = Vec::new();
    let (usual, other): (Vec<_>, Vec<_>) =
        m.curves.iter().partition(|curve| curve.family.as_deref().is_none_or(|family| family == IN_MEMORY));
    for curve in usual {
        for p in &curve.frontier() {
            let slack = p.stop.slack.map_or("-".into(), |s| format!("{s:.2}"));
            let in_memory = curve.family.is_some();
            let share = if p.stop.share > 0.0 && !in_memory {
                format!("{:.2} {unit}", p.stop.share)
            } else {
                "-".into()
            };
            rows.push(vec![
                format!(
                    "k {}{} on {} {}",
                    curve.k,
                    if in_memory { " in memory" } else { "" },
                    curve.queries,
                    curve.source
                ),
                format!("{:.4}", p.recall),
                format!("{:.1}", p.reads),
                p.effort.to_string(),
                slack,
                share,
            ]);
        }
    }
    match rows.is_empty() {
        true if !facts(kind).has_curve => "\nno recall curve: every search is exact\n".into(),
        true => {
            let option = facts(kind).effort.option();
            format!("\nno recall curve: search with {option}, or run `stratann tune`\n")
        }
        false => format!(
            "\nrecall curve, as measured:\n{}{}{}",
            table(&["curve", "recall", "reads", effort, "slack", stop], &rows),
            if other.is_empty() { "" } else { "Those for --baseline and --rule are in --json.\n" },
            unreached_lines(m, kind)
        ),
    }
}

/// Recalls of usual searches that the curves do not reach.
fn unreached_lines(m: &Manifest, kind: IndexKind) -> String {
    all_unreached(&m.curves, RECALL_USUAL).iter().map(|found| found.describe(kind) + "\n").collect()
}
