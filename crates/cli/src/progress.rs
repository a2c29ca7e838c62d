//! Progress on stderr, as bars on a terminal and as lines otherwise, and the stop flag of Ctrl-C.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stratann_storage::{Expected, Progress, Result};

use crate::output::{Output, count, duration, eprint_line};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Delay before the first line of a stage, and between lines.
const FIRST_LINE: Duration = Duration::from_secs(2);
const NEXT_LINE: Duration = Duration::from_secs(5);
/// Shortest stage that gets a line when it ends.
const WORTH_A_LINE: Duration = Duration::from_millis(500);

/// Sets a flag at the first Ctrl-C (or SIGTERM) that stops running work; the second one ends the program at once.
pub fn heed_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let heeded = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            eprint_line("stopping; press Ctrl-C again to end at once");
        });
        if let Err(e) = heeded {
            eprint_line(&format!("note: Ctrl-C will end this at once ({e})"));
        }
    });
}

/// Reports progress to a person.
pub struct ProgressPrinter {
    quiet: bool,
    bars: bool,
    done: AtomicU64,
    stage: Mutex<Option<Stage>>,
    expected: Mutex<Option<(Instant, Expected)>>,
}

/// Seconds until everything is done, `elapsed_s` after the forecast was given. This share of the present stage is done,
/// and the rest takes `stage_s` at its rate.
///
/// The rate counts for more the longer it was observed: half-way through a stage for seven eighths.
fn left_s(expected: &Expected, elapsed_s: f64, share: f64, stage_s: f64) -> f64 {
    let forecast_s = expected.now_s - elapsed_s;
    let weight = if expected.in_parts { 1.0 } else { (1.0 - share).powi(3) };
    let now_s = weight * forecast_s + (1.0 - weight) * stage_s;
    now_s.max(stage_s) + expected.later_s
}

struct Stage {
    name: String,
    unit: String,
    total: u64,
    started: Instant,
    next_line: Instant,
    bar: Option<ProgressBar>,
    /// Whether its work waits.
    waits: bool,
}

/// Pause between two looks for an interruption while work waits.
const PAUSE: Duration = Duration::from_millis(100);

impl ProgressPrinter {
    /// Creates a reporter within the limits of `output` that handles Ctrl-C.
    pub fn new(output: Output) -> ProgressPrinter {
        heed_interrupts();
        ProgressPrinter {
            quiet: output.quiet,
            bars: std::io::stderr().is_terminal(),
            done: AtomicU64::new(0),
            stage: Mutex::new(None),
            expected: Mutex::new(None),
        }
    }

    /// Waits, and shows that the work of the stage does.
    ///
    /// # Errors
    /// `Interrupted`, soon after it is.
    pub fn wait(&self, seconds: u64) -> Result<()> {
        self.show_wait(true);
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            self.check_interrupted()?;
            std::thread::sleep(PAUSE);
        }
        self.advance(0);
        self.check_interrupted()
    }

    /// Shows that work goes on that waited.
    pub fn goes_on(&self) {
        self.show_wait(false);
    }

    fn show_wait(&self, waits: bool) {
        let mut stage = self.stage.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(stage) = stage.as_mut().filter(|stage| stage.waits != waits) {
            stage.waits = waits;
            if let Some(bar) = &stage.bar {
                bar.set_message(if waits { format!("{}, waiting", stage.name) } else { stage.name.clone() });
            }
        }
    }

    /// Ends the last stage.
    pub fn finish(&self) {
        let ended = self.stage.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(stage) = ended {
            stage.end(self.done.load(Ordering::Relaxed));
        }
    }
}

impl Progress for ProgressPrinter {
    fn stage(&self, name: &str, total: u64, unit: &str) {
        if self.quiet {
            return;
        }
        let mut stage = self.stage.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(last) = stage.take() {
            last.end(self.done.load(Ordering::Relaxed));
        }
        self.done.store(0, Ordering::Relaxed);
        let now = Instant::now();
        let bar = self.bars.then(|| bar(name, total, unit));
        *stage = Some(Stage {
            name: name.into(),
            unit: unit.into(),
            total,
            started: now,
            next_line: now + FIRST_LINE,
            bar,
            waits: false,
        });
    }

    fn expect(&self, work: Expected) {
        let expected = (work.now_s + work.later_s > 0.0).then(|| (Instant::now(), work));
        *self.expected.lock().unwrap_or_else(|e| e.into_inner()) = expected;
    }

    fn advance(&self, count: u64) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        // A thread that finds the stage locked leaves the report to the thread that holds it.
        if let Ok(mut stage) = self.stage.try_lock()
            && let Some(stage) = stage.as_mut()
        {
            stage.show(done, &self.expected);
        }
    }

    fn note(&self, line: &str) {
        if self.quiet {
            return;
        }
        let stage = self.stage.lock().unwrap_or_else(|e| e.into_inner());
        match stage.as_ref().and_then(|s| s.bar.as_ref()) {
            Some(bar) => bar.suspend(|| eprint_line(line)),
            None => eprint_line(line),
        }
    }

    fn interrupted(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
    }
}

impl Drop for ProgressPrinter {
    fn drop(&mut self) {
        self.finish();
    }
}

fn bar(name: &str, total: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(8));
    let style = format!(
        "{{msg:24}} [{{bar:30}}] {{percent:>3}} %  {{human_pos}}/{{human_len}} {unit}, {{per_sec}}, \
         {{eta}} left{{prefix}}"
    );
    if let Ok(style) = ProgressStyle::with_template(&style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(name.to_string());
    bar
}

impl Stage {
    fn show(&mut self, done: u64, expected: &Mutex<Option<(Instant, Expected)>>) {
        if let Some(bar) = &self.bar {
            bar.set_position(done.min(self.total));
        }
        let now = Instant::now();
        if now < self.next_line {
            return;
        }
        self.next_line = now + NEXT_LINE;
        let seconds = (now - self.started).as_secs_f64();
        let name = if self.waits { format!("{}, waiting", self.name) } else { self.name.clone() };
        let (line, stage_s) = line(&name, done, self.total, &self.unit, seconds);
        let stage_s = stage_s.unwrap_or(0.0);
        let expected = *expected.lock().unwrap_or_else(|e| e.into_inner());
        let share = done.min(self.total) as f64 / self.total.max(1) as f64;
        let all_s = expected.map(|(from, work)| left_s(&work, (now - from).as_secs_f64(), share, stage_s));
        let all_s = all_s.filter(|all_s| *all_s > 1.05 * stage_s + 0.1);
        let all = all_s.map(|all_s| format!(", about {} in all", duration(all_s)));
        match &self.bar {
            Some(bar) => bar.set_prefix(all.unwrap_or_default()),
            None => eprint_line(&(line + &all.unwrap_or_default())),
        }
    }

    fn end(self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let took = self.started.elapsed();
        if took >= WORTH_A_LINE {
            let what =
                if self.unit == "%" { String::new() } else { format!("{} {} in ", count(done), self.unit) };
            eprint_line(&format!("{}: {what}{}", self.name, duration(took.as_secs_f64())));
        }
    }
}

/// Formats one line: share, rate, time left. The time left is returned as well, once something is done.
fn line(name: &str, done: u64, total: u64, unit: &str, seconds: f64) -> (String, Option<f64>) {
    let done = done.min(total);
    let rate = done as f64 / seconds.max(1e-9);
    let left_s = (rate > 0.0).then(|| (total - done) as f64 / rate);
    let left = left_s.map_or_else(|| "starting".into(), |left_s| duration(left_s) + " left");
    let percent = done * 100 / total.max(1);
    let line = match unit {
        "%" => format!("{name}: {percent} %, {left}"),
        _ => format!("{name}: {percent} %, {} {unit}/s, {left}", count(rate as u64)),
    };
    (line, left_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let graph = line("graph", 400, 1000, "points", 2.0);
        assert_eq!(graph, ("graph: 40 %, 200 points/s, 3.0 s left".into(), Some(3.0)));
        assert_eq!(line("training", 0, 100, "%", 2.0), ("training: 0 %, starting".into(), None));
        let done = line("done", 12, 10, "rows", 0.0);
        assert_eq!(done, ("done: 100 %, 10,000,000,000 rows/s, 0.0 s left".into(), Some(0.0)));
    }

    #[test]
    fn the_rate_replaces_the_forecast_as_a_stage_goes_on() {
        let graph = Expected { now_s: 200.0, in_parts: false, later_s: 5.0 };
        assert_eq!(left_s(&graph, 0.0, 0.0, 0.0), 205.0);
        // Twice as fast as was expected: 30 s are left at 70 %.
        assert!((35.0..40.0).contains(&left_s(&graph, 70.0, 0.7, 30.0)));
        // Slower than expected: never less than at its rate.
        assert_eq!(left_s(&graph, 199.0, 0.5, 199.0), 204.0);
        let parts = Expected { in_parts: true, ..graph };
        assert_eq!(left_s(&parts, 70.0, 0.7, 30.0), 135.0);
    }
}
