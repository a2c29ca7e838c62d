//! A build, a search and a server inside a memory control group: the kernel enforces what `--ram-budget` promises.
//! Needs the right to make groups (root, or a delegated group); elsewhere the tests are left out.

mod common;
#[path = "common/fixed_profile.rs"]
mod fixed_profile;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Data, Noise, Running, arg, folder, get, post, wait_for};
use stratann_testing::{Need, is_required, leave_out};

const MIB: u64 = 1 << 20;
/// Memory that the kernel charges to the group besides the program's own: page tables, sockets, and dirty pages of the
/// files being written, which it writes back and drops under pressure.
const KERNEL_MIB: u64 = 8;
/// Pages of the program's file that are accounted, and that a search need not touch.
const FILE_MIB: u64 = 4;

/// Records that a test is left out. Where `stratann doctor` finds that groups can be made, that is a failure.
fn without_groups(why: &str) {
    if is_required() {
        let doctor = common::json(&["doctor"]);
        assert!(!doctor["memory_groups_refusal"].is_null(), "memory control groups can be made, but {why}");
    }
    leave_out(Need::MemoryGroups, why);
}

/// A memory control group that is removed in the end.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    peak: &'static str,
}

impl Group {
    /// A group under the root of whichever hierarchy can be written; the reason when there is none.
    fn new(name: &str, limit_bytes: u64) -> Result<Group, String> {
        let v1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes");
        let v2 = ("/sys/fs/cgroup", "memory.max", "memory.peak");
        let mut why = String::new();
        for (root, limit, peak) in [v1, v2] {
            if !Path::new(root)
                .join(if root.ends_with("memory") { limit } else { "cgroup.controllers" })
                .exists()
            {
                continue;
            }
            let folder = Path::new(root).join(format!("stratann-{name}-{}", std::process::id()));
            if let Err(e) = fs::create_dir(&folder) {
                why = format!("{}: {e}", folder.display());
                continue;
            }
            let group = Group { folder, limit, peak };
            match fs::write(group.folder.join(group.limit), limit_bytes.to_string()) {
                Ok(()) if group.peak_bytes().is_some() => return Ok(group),
                Ok(()) => why = format!("{} is not kept", group.peak),
                Err(e) => why = format!("{}: {e}", group.folder.join(group.limit).display()),
            }
        }
        Err(why)
    }

    fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.peak)).ok()?.trim().parse().ok()
    }

    /// `stratann` in the group. The shell enters it before it becomes the program.
    fn command(&self, args: &[&str]) -> Command {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.folder.display());
        let mut command = Command::new("sh");
        command.arg("-c").arg(enter).arg(env!("CARGO_BIN_EXE_stratann")).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

fn write_rows(path: &Path, rows: u32, dim: u32, seed: u64) {
    let centres: Vec<f64> = {
        let mut noise = Noise(77);
        (0..50 * dim).map(|_| noise.normal()).collect()
    };
    let mut noise = Noise(seed);
    let mut out = std::io::BufWriter::new(fs::File::create(path).unwrap());
    out.write_all(&[rows.to_le_bytes(), dim.to_le_bytes()].concat()).unwrap();
    for _ in 0..rows {
        let centre = (noise.bits() % 50) as usize * dim as usize;
        // One draw for two components is enough here, and takes half the time.
        for i in 0..dim as usize {
            let value = centres[centre + i] + noise.share() - 0.5;
            out.write_all(&(value as f32).to_le_bytes()).unwrap();
        }
    }
    out.flush().unwrap();
}

/// Builds an index of `rows` and searches it, each in a group of its own; the reason when there can be no groups.
fn build_and_search(rows: u32, dim: u32, budget_mib: u64) -> Result<(), String> {
    let limit = (budget_mib + KERNEL_MIB) * MIB;
    let build = Group::new(&format!("build-{dim}"), limit)?;
    let search = Group::new(&format!("search-{dim}"), limit)?;
    let dir = folder();
    let (base, asked, index) =
        (dir.path().join("base.fbin"), dir.path().join("asked.fbin"), dir.path().join("index"));
    write_rows(&base, rows, dim, 1);
    write_rows(&asked, 200, dim, 2);
    let budget = format!("{budget_mib}MiB");
    let place = ["build", arg(&base), "-o", arg(&index), "--kind", "disk-graph"];
    let quick = ["--degree", "16", "--build-list", "24", "--calibration-queries", "60", "--threads", "2"];
    let made = build.run(&[&place[..], &quick, &["--ram-budget", &budget, "--json"]].concat());
    assert!(made.status.success(), "{:?}: {}", made.status, common::stderr(&made));
    let report: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let (resident, peak) = (report["peak_rss_bytes"].as_u64().unwrap(), build.peak_bytes().unwrap());
    eprintln!("build of {dim} dimensions in {budget}: group peak {peak}, resident peak {resident}");
    assert!(resident <= budget_mib * MIB, "{resident} bytes resident of {budget}");

    let options = ["-k", "10", "--search-list", "60", "--threads", "2", "--ram-budget", &budget, "--json"];
    let found = search.run(&[&["search", arg(&index), arg(&asked)], &options[..]].concat());
    assert!(found.status.success(), "{:?}: {}", found.status, common::stderr(&found));
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(report["runs"][0]["queries"], 200);
    let (resident, peak) =
        (report["runs"][0]["peak_rss_bytes"].as_u64().unwrap(), search.peak_bytes().unwrap());
    eprintln!("search of {dim} dimensions: group peak {peak}, resident peak {resident}");
    assert!(resident <= budget_mib * MIB, "{resident} bytes resident of {budget}");
    Ok(())
}

#[test]
fn build_and_search_stay_within_what_the_kernel_allows() {
    // Vectors that take more than the budget; few rows of many components, where preparing codes takes most.
    for (rows, dim, budget_mib) in [(66_000, 128, 32), (6000, 384, 43), (4200, 1100, 91)] {
        if let Err(why) = build_and_search(rows, dim, budget_mib) {
            without_groups(&why);
        }
    }
}

/// The smallest budget that a refusal names, which is no more than needed: one less is refused too.
fn smallest_budget(build: &[&str]) -> u64 {
    let refusal = |budget: &str| {
        let output = common::run(&[build, &["--ram-budget", budget]].concat());
        assert!(!output.status.success(), "{budget} was accepted");
        common::stderr(&output)
    };
    let said = refusal("1MiB");
    let named = said.split("give --ram-budget ").nth(1).and_then(|s| s.split("MiB").next());
    let named: u64 = named.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    refusal(&format!("{}MiB", named - 1));
    named
}

/// Builds clusters in the smallest budget that is accepted, and searches them while they learn and hold what codes fit.
fn cluster_and_search(rows: u32, dim: u32, search_mib: u64) -> Result<(), String> {
    let search = Group::new(&format!("probes-{dim}"), (search_mib + KERNEL_MIB) * MIB)?;
    let dir = folder();
    let (base, asked, index, profile) = (
        dir.path().join("base.fbin"),
        dir.path().join("asked.fbin"),
        dir.path().join("index"),
        dir.path().join("profile.json"),
    );
    write_rows(&base, rows, dim, 1);
    write_rows(&asked, 600, dim, 2);
    fixed_profile::write(&profile);
    let place = ["build", arg(&base), "-o", arg(&index), "--kind", "hybrid-ivf", "--profile", arg(&profile)];
    let limits = ["--threads", "2", "--calibration-queries", "60", "--json"];
    let args = [&place[..], &limits[..]].concat();
    let build_mib = smallest_budget(&args);
    let build = Group::new(&format!("clusters-{dim}"), (build_mib + KERNEL_MIB) * MIB)?;
    let (build_budget, search_budget) = (format!("{build_mib}MiB"), format!("{search_mib}MiB"));
    let made = build.run(&[&args[..], &["--ram-budget", &build_budget]].concat());
    assert!(made.status.success(), "{:?}: {}", made.status, common::stderr(&made));
    let report: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let (resident, peak) = (report["peak_rss_bytes"].as_u64().unwrap(), build.peak_bytes().unwrap());
    eprintln!("clusters of {dim} dimensions in {build_budget}: group peak {peak}, resident peak {resident}");
    assert!(resident <= build_mib * MIB);

    let effort = ["-k", "10", "--nprobe", "24", "--head-budget", "1MiB", "--epoch-queries", "200"];
    let limits = ["--threads", "2", "--ram-budget", &search_budget, "--json"];
    let found = search.run(&[&["search", arg(&index), arg(&asked)], &effort[..], &limits[..]].concat());
    assert!(found.status.success(), "{:?}: {}", found.status, common::stderr(&found));
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let run = &report["runs"][0];
    let (resident, peak) = (run["peak_rss_bytes"].as_u64().unwrap(), search.peak_bytes().unwrap());
    eprintln!("search among them in {search_budget}: group peak {peak}, resident peak {resident}");
    assert!(run["queries"] == 600 && run["failed_queries"] == 0, "{run}");
    assert!(resident <= search_mib * MIB && index.join("learnt.bin").exists());
    Ok(())
}

/// An index whose kind keeps what it searches first in memory.
struct Resident<'a> {
    /// The kind and its options.
    build: &'a [&'a str],
    effort: &'a [&'a str],
    /// The account is at most this part above what is taken.
    slack: u64,
}

const GRID: Resident<'_> = Resident { build: &["grid-ivf"], effort: &["--nprobe", "9"], slack: 10 };
/// Most queries read less than is set aside for each, so that few are in flight.
const GPU: Resident<'_> = Resident {
    build: &["gpu-ivf", "--code-bytes", "64"],
    effort: &["--nprobe", "40", "--in-flight", "2"],
    slack: 20,
};

/// Builds lists in the smallest budget that is accepted, and searches them in the smallest one.
fn lists_and_search(
    what: &Resident<'_>,
    rows: u32,
    dim: u32,
    calibration_queries: &str,
) -> Result<(), String> {
    let dir = folder();
    let place = |name: &str| dir.path().join(name);
    let (base, asked, index) = (place("base.fbin"), place("asked.fbin"), place("index"));
    write_rows(&base, rows, dim, 1);
    write_rows(&asked, 300, dim, 2);
    let build = ["build", arg(&base), "-o", arg(&index), "--threads", "2", "--json", "--kind"];
    let build = [&build[..], what.build, &["--calibration-queries", calibration_queries]].concat();
    let search = ["search", arg(&index), arg(&asked), "-k", "10", "--threads", "2", "--json"];
    let search = [&search[..], what.effort].concat();
    for words in [&build, &search] {
        let budget_mib = smallest_budget(words);
        let name = format!("{}-{}-{dim}", what.build[0], words[0]);
        let group = Group::new(&name, (budget_mib + KERNEL_MIB) * MIB)?;
        let budget = format!("{budget_mib}MiB");
        let done = group.run(&[&words[..], &["--ram-budget", &budget]].concat());
        assert!(done.status.success(), "{:?}: {}", done.status, common::stderr(&done));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let report = if words[0] == "search" { &report["runs"][0] } else { &report };
        let (resident, peak) = (report["peak_rss_bytes"].as_u64().unwrap(), group.peak_bytes().unwrap());
        eprintln!("{name} in {budget}: group peak {peak}, resident peak {resident}");
        assert!(resident <= budget_mib * MIB, "{resident} bytes resident of {budget}");
        if words[0] == "search" {
            // The account is what is taken, within its slack, the last MiB, and pages of the program's file.
            let accounted = report["memory"]["total_bytes"].as_u64().unwrap();
            assert!(
                resident + (1 + FILE_MIB) * MIB >= accounted - accounted / what.slack,
                "{resident} of {accounted} accounted: {report}"
            );
        }
    }
    Ok(())
}

#[test]
fn grids_stay_within_what_the_kernel_allows() {
    // Without calibration the build takes less than the vectors, 35 MiB; with it they are all in memory.
    for (rows, dim, calibration_queries) in [(72_000, 128, "0"), (5000, 448, "60")] {
        if let Err(why) = lists_and_search(&GRID, rows, dim, calibration_queries) {
            without_groups(&why);
        }
    }
}

#[test]
fn codes_stay_within_what_the_kernel_allows() {
    // 35 MiB of vectors, more than the build takes without calibration; few rows of many components with it.
    for (rows, dim, calibration_queries) in [(72_000, 128, "0"), (5000, 448, "60")] {
        if let Err(why) = lists_and_search(&GPU, rows, dim, calibration_queries) {
            without_groups(&why);
        }
    }
}

#[test]
fn clusters_stay_within_what_the_kernel_allows() {
    // 35 MiB of vectors, more than the build may take; few rows of many components, where the training of codes
    // takes most.
    for (rows, dim, search_mib) in [(72_000, 128, 30), (4000, 448, 34)] {
        if let Err(why) = cluster_and_search(rows, dim, search_mib) {
            without_groups(&why);
        }
    }
}

/// Asks a confined server 10,000 queries at once, and gives how many it answered and how many it held at a time.
fn ask_ten_thousand(data: &Data, index: &Path, budget_mib: u64) -> Result<(usize, u64), String> {
    let limit = (budget_mib + KERNEL_MIB) * MIB;
    let group = Group::new(&format!("serve-{budget_mib}"), limit)?;
    let budget = format!("{budget_mib}MiB");
    let place = ["serve", "--index", arg(index), "--http", "127.0.0.1:0", "--until-eof", "--json"];
    let limits = ["--queue", "10000", "--threads", "1", "--ram-budget", &budget];
    let server = Running::of(group.command(&[&place[..], &limits[..]].concat()));
    let queries: Vec<u8> =
        data.base_rows[..1000].iter().flatten().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let path = "/v1/search?k=1&search_list=120&timeout_ms=60000";
    let mut held = 0;
    let answered = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..10).map(|_| scope.spawn(|| post(server.address(), path, &queries))).collect();
        wait_for("the last answer", || {
            held = held.max(get(server.address(), "/v1/status").1["waiting"].as_u64().unwrap());
            asking.iter().all(|a| a.is_finished())
        });
        let found = |reply: serde_json::Value| {
            let answers = reply["answers"].as_array().cloned().unwrap_or_default();
            answers.iter().filter(|answer| answer["error"].is_null()).count()
        };
        asking.into_iter().map(|a| found(a.join().unwrap().1)).sum()
    });
    let status = get(server.address(), "/v1/status").1;
    let (resident, peak) = (status["peak_rss_bytes"].as_u64().unwrap(), group.peak_bytes().unwrap());
    eprintln!(
        "{budget_mib} MiB: {answered} answered, {held} held, resident peak {resident}, group peak {peak}"
    );
    assert!(resident <= budget_mib * MIB, "{resident} bytes resident of {budget}");
    drop(server);
    Ok((answered, held))
}

#[test]
fn ten_thousand_queries_that_wait_stay_within_the_budget() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &[]);
    // With room for all of them, and with room for some: the others are refused, and the server is unharmed.
    match (ask_ten_thousand(&data, &index, 192), ask_ten_thousand(&data, &index, 54)) {
        (Ok((all, held)), Ok((some, _))) => {
            assert!(all == 10_000 && held > 3000, "{all} answered, {held} held");
            assert!((1000..10_000).contains(&some), "{some} answered");
        }
        (Err(why), _) | (_, Err(why)) => without_groups(&why),
    }
}
