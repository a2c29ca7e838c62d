//! The figures as tables.

use stratann_cli::output::{count, table};

use super::Document;
use super::saved::Saved;
use super::settings::Setting;
use super::threads::Scaled;
use super::timed::{AtRecall, Speed};
use super::ways::DEFAULT;

/// Beginnings of the names of the ways of figure 4.
const FIGURE_4: [&str; 2] = ["spann", "hi+"];

pub(super) fn text(document: &Document<'_>) -> String {
    let first = document.recalls.first().copied().unwrap_or(0.0);
    let mut out = format!(
        "{} vectors of {} components in {} lists; recall@{} of {} queries, {} of them timed\n",
        count(document.rows),
        document.dim,
        count(document.lists.into()),
        document.k,
        count(document.counted_queries as u64),
        count(document.timed_queries as u64),
    );
    out += &format!(
        "cheapest: fewest reads, with {} codes counted as one; this machine's processor ranks codes\n\
         bytes counted only: the way needs a GPU; nothing is copied here, so it has no times\n",
        document.codes_per_read
    );
    out += &format!("\nhierarchical indexing with codes and a GPU at a recall of {first} (figure 4)\n");
    let is_of_4 = |at: &&AtRecall| at.asked == first && FIGURE_4.iter().any(|name| at.name.starts_with(name));
    out += &io(document.ways.iter().filter(is_of_4));
    out += "\nevery way at every recall (figures 9 and 10)\n";
    out += &ways(&document.ways);
    out += &format!("\nreads and bytes at a recall of {first}\n");
    out += &io(document.ways.iter().filter(|at| at.asked == first));
    out += "\ntechniques added one by one, with equal lists (figure 12)\n";
    out += &ways(&document.techniques);
    out +=
        "\nreads of re-ranking that are saved, over the smallest fixed number of candidates (figure 12c)\n";
    out += &saved(document);
    out += &needed(document);
    out += "\nsettings of the rule by changes, at the lists of the highest recall\n";
    out += &sweep(document);
    out += &format!("\nthreads, a query on each, at a recall of {first} (figures 3 and 11)\n");
    out += &threads(&document.threads);
    out + "\nQPS: with many queries in flight on each thread; blocking, and latency: with a query on each thread\n"
}

fn numbers(setting: &Setting) -> String {
    let mut all = vec![format!("m {}", setting.nprobe)];
    all.extend(setting.candidates.filter(|_| setting.batch.is_none()).map(|n| format!("n {n}")));
    all.extend(setting.batch.map(|batch| format!("batch {batch}")));
    all.extend(setting.epsilon.map(|epsilon| format!("ε {epsilon}")));
    all.extend(setting.beta.map(|beta| format!("β {beta}")));
    all.extend(setting.margin.map(|margin| format!("margin {margin:.3}")));
    all.join(" ")
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2} x"))
}

fn ways(all: &[AtRecall]) -> String {
    let row = |at: &AtRecall| {
        let speed = |of: &dyn Fn(&Speed) -> String| at.speed.as_ref().map_or("-".into(), of);
        vec![
            at.asked.to_string(),
            at.name.to_string(),
            format!("{:.4}", at.recall),
            numbers(&at.setting),
            speed(&|own| count(own.qps as u64)),
            speed(&|own| times(own.qps_over_spann)),
            speed(&|own| count(own.blocking_qps as u64)),
            speed(&|own| format!("{:.0}", own.latency_us.mean)),
            speed(&|own| times(own.latency_over_spann)),
            speed(&|own| format!("{:.0}", own.latency_us.p99)),
            format!("{:.1}", at.reads),
            format!("{:.1}", at.pages),
        ]
    };
    let head = [
        "recall", "", "reached", "setting", "QPS", "of spann", "blocking", "mean us", "of spann", "p99 us",
        "reads", "pages",
    ];
    table(&head, &all.iter().map(row).collect::<Vec<_>>())
}

fn io<'a>(all: impl Iterator<Item = &'a AtRecall>) -> String {
    let row = |at: &AtRecall| {
        let speed = |of: fn(&Speed) -> f64| at.speed.as_ref().map_or("-".into(), |own| count(of(own) as u64));
        vec![
            at.name.to_string(),
            speed(|own| own.qps),
            speed(|own| own.latency_us.mean),
            speed(|own| own.latency_us.p50),
            speed(|own| own.latency_us.p99),
            format!("{:.1}", at.reads),
            format!("{:.0}", at.bytes_a_read),
            count(at.gpu_bytes as u64),
            count(at.codes as u64),
            count(at.vectors as u64),
            count(at.duplicates as u64),
        ]
    };
    let head = [
        "",
        "QPS",
        "mean us",
        "p50 us",
        "p99 us",
        "reads",
        "bytes a read",
        "GPU bytes",
        "codes",
        "vectors",
        "duplicates",
    ];
    table(&head, &all.map(row).collect::<Vec<_>>())
}

fn saved(document: &Document<'_>) -> String {
    let row = |saved: &Saved| {
        vec![
            saved.rule.to_string(),
            saved.asked.to_string(),
            numbers(&saved.setting),
            saved.static_n.map_or("-".into(), |n| n.to_string()),
            format!("{:.1}", saved.candidates),
            format!("{:.1}", saved.reads),
            percent(saved.share_by_rule),
            percent(saved.share_by_sharing),
            percent(saved.share),
        ]
    };
    let head =
        ["rule", "recall", "setting", "fixed n", "candidates", "reads", "by the rule", "by sharing", "both"];
    let mut out = table(&head, &document.saved.iter().map(row).collect::<Vec<_>>());
    for mean in &document.saved_mean {
        out += &format!(
            "{}: the rule saves {} at best (recall {}) and {} on the mean, shared blocks {} at best (recall {}) and {} \
             on the mean, both {} on the mean\n",
            mean.rule,
            percent(mean.best_by_rule),
            mean.best_at,
            percent(mean.mean_by_rule),
            percent(mean.best_by_sharing),
            mean.best_sharing_at,
            percent(mean.mean_by_sharing),
            percent(mean.mean)
        );
    }
    out
}

fn needed(document: &Document<'_>) -> String {
    let n = &document.needed;
    let complete: Vec<String> =
        n.complete.iter().map(|(candidates, share)| format!("{candidates} {}", percent(*share))).collect();
    format!(
        "\ncandidates that queries need, m {} (figure 5): mean {:.1}, standard deviation {:.1}; percentiles 5, 25, 50, \
         75, 95, 99: {}, {}, {}, {}, {}, {}; most {}\nqueries that need no more: {}\n",
        n.nprobe,
        n.mean,
        n.standard_deviation,
        n.p5,
        n.p25,
        n.p50,
        n.p75,
        n.p95,
        n.p99,
        n.max,
        complete.join(", ")
    )
}

fn sweep(document: &Document<'_>) -> String {
    let row = |swept: &super::Swept| {
        let setting = &swept.tried.setting;
        vec![
            setting.batch.map_or("-".into(), |batch| batch.to_string()),
            setting.epsilon.map_or("-".into(), |epsilon| epsilon.to_string()),
            setting.beta.map_or("-".into(), |beta| beta.to_string()),
            format!("{:.4}", swept.tried.recall),
            format!("{:.1}", swept.candidates),
            format!("{:.1}", swept.tried.reads),
        ]
    };
    let head = ["batch", "ε", "β", "recall", "candidates", "reads"];
    table(&head, &document.sweep.iter().map(row).collect::<Vec<_>>())
}

fn threads(all: &[Scaled]) -> String {
    let row = |scaled: &Scaled| {
        let stage = |of: fn(&super::timed::Stages) -> f64| {
            scaled.stage_us.as_ref().map_or("-".into(), |stages| format!("{:.0}", of(stages)))
        };
        vec![
            scaled.name.to_string(),
            scaled.threads.to_string(),
            if scaled.simulated { "simulated" } else { "measured" }.to_string(),
            count(scaled.qps as u64),
            format!("{:.0}", scaled.latency_us.mean),
            format!("{:.0}", scaled.latency_us.p50),
            format!("{:.0}", scaled.latency_us.p99),
            stage(|stages| stages.route),
            stage(|stages| stages.access),
            stage(|stages| stages.verify),
            scaled.bottleneck.unwrap_or("-").to_string(),
        ]
    };
    let head =
        ["", "threads", "", "QPS", "mean us", "p50 us", "p99 us", "route", "access", "verify", "busiest"];
    let mut out = table(&head, &all.iter().map(row).collect::<Vec<_>>());
    let most = |name: &str| {
        let own = all.iter().filter(|scaled| scaled.simulated && scaled.name == name);
        own.map(|scaled| scaled.qps).fold(0.0, f64::max)
    };
    let (own, spann) = (most(DEFAULT), most("spann"));
    if spann > 0.0 {
        out += &format!("most QPS of the default over that of spann, simulated: {:.2}\n", own / spann);
    }
    out
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
