//! A run as a picture: what each ended pod got from each source, second by second, beside what the API said, the hold
//! and SIGTERM.

use std::io;
use std::path::Path;

use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

use super::draw::SOURCES;
use super::ledger::Record;
use super::outcome::Observed;
use super::statistics::seconds_between;

/// Left of it are names.
const LEFT: f64 = 190.0;
/// Width of what has a time.
const WIDTH: f64 = 900.0;
/// Height of one line.
const LINE: f64 = 16.0;
/// Height of the head, with the title and the legend.
const HEAD: f64 = 52.0;

const DRAINING: &str = "#f2c14e";
const HOLD: &str = "#9fc5e8";
const SIGTERM: &str = "#c0392b";
const REQUESTS: &str = "#2e7d32";
const DROPPED: &str = "#555555";
const FAILED: &str = "#c0392b";

/// Draws it into a file.
pub fn write(path: &Path, observed: &Observed<'_>) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    svg::save(path, &draw(observed))
}

/// Where a time lies.
#[derive(Debug, Clone, Copy)]
struct Scale {
    begin: u64,
    end: u64,
}

impl Scale {
    fn x(self, at: u64) -> f64 {
        let whole = seconds_between(self.begin, self.end).max(1.0);
        let share = seconds_between(self.begin, at) / whole;
        LEFT + WIDTH * share.clamp(0.0, 1.0)
    }
}

fn draw(observed: &Observed<'_>) -> Document {
    let pods = observed.ledger.terminations();
    let scale = scale(observed, pods.values());
    let sources = observed.lags.concat();
    let mut top = HEAD;
    let mut drawing = Group::new();
    let judged = observed.tally.judge(|pod| observed.ledger.sigterm(pod));
    drawing = drawing.add(label(8.0, top + 12.0, "failed requests"));
    let most = judged.seconds.values().max().copied().unwrap_or(1);
    for (second, count) in &judged.seconds {
        let hint = format!("{count} failed");
        drawing = drawing.add(tick(
            scale,
            *second,
            top,
            share(*count, most),
            FAILED,
            &hint,
        ));
    }
    top += LINE * 1.5;
    for (name, record) in &pods {
        drawing = drawing.add(pod_line(scale, top, name, record, observed));
        top += LINE;
        for source in 0..sources.len() {
            drawing = drawing.add(source_line(scale, top, name, record, source, observed));
            top += LINE;
        }
        top += LINE / 2.0;
    }
    let height = top + LINE * 2.0;
    Document::new()
        .set("viewBox", (0.0, 0.0, LEFT + WIDTH + 20.0, height))
        .set("font-family", "sans-serif")
        .set("font-size", 11)
        .add(rectangle(0.0, 0.0, LEFT + WIDTH + 20.0, height, "#ffffff"))
        .add(head(observed))
        .add(axis(scale, top))
        .add(drawing)
}

/// From a little before the first deletion until the last thing that happened to an ended pod.
fn scale<'a>(observed: &Observed<'_>, pods: impl Iterator<Item = &'a Record> + Clone) -> Scale {
    let begin = pods.clone().filter_map(|record| record.terminating).min();
    let begin = begin.unwrap_or_default().saturating_sub(5_000);
    let ends = pods.flat_map(|record| {
        let sigterm = record.sigterm.as_ref().map(|event| event.unix_ms);
        record.dropped.values().copied().chain(sigterm)
    });
    let failed = observed.tally.misses.iter().map(|miss| miss.at);
    let end = ends.chain(failed).max().unwrap_or(begin) + 3_000;
    Scale { begin, end }
}

fn head(observed: &Observed<'_>) -> Group {
    let cell = observed.cell;
    let title = format!(
        "{cell}: {:?}, the app {}",
        cell.operation(),
        if cell.drains() {
            "drains"
        } else {
            "ends at once"
        }
    );
    let mut head = Group::new().add(label(8.0, 18.0, &title).set("font-size", 14));
    let legend = [
        ("hold: deletion to SIGTERM", HOLD),
        ("API: draining", DRAINING),
        ("SIGTERM", SIGTERM),
        ("answers, by second and source", REQUESTS),
        ("the source drops the pod", DROPPED),
    ];
    for ((text, colour), x) in
        legend
            .into_iter()
            .zip([LEFT, LEFT + 190.0, LEFT + 310.0, LEFT + 400.0, LEFT + 610.0])
    {
        head = head
            .add(rectangle(x, 30.0, 10.0, 10.0, colour))
            .add(label(x + 14.0, 39.0, text));
    }
    head
}

/// The pod's name, its hold, since when the API says that it is draining, and SIGTERM.
fn pod_line(scale: Scale, top: f64, name: &str, record: &Record, observed: &Observed<'_>) -> Group {
    let mut line = Group::new().add(label(8.0, top + 12.0, name).set("font-weight", "bold"));
    let sigterm = record.sigterm.as_ref().map(|event| event.unix_ms);
    let reason = observed
        .released
        .get(name)
        .map_or("", |released| released.reason.as_str());
    if let (Some(start), Some(end)) = (record.terminating, sigterm) {
        let hint = format!("held for {:.1} s {reason}", seconds_between(start, end));
        let bar = rectangle(
            scale.x(start),
            top + 2.0,
            scale.x(end) - scale.x(start),
            6.0,
            HOLD,
        );
        line = line.add(hinted(bar, &hint));
    }
    if let Some(accepted) = record.deregistered.values().min() {
        let x = scale.x(*accepted);
        let bar = rectangle(x, top + 9.0, scale.x(scale.end) - x, 4.0, DRAINING);
        line = line.add(hinted(bar, "draining"));
    }
    if let Some(at) = sigterm {
        let bar = rectangle(scale.x(at) - 1.0, top, 2.0, LINE, SIGTERM);
        line = line.add(hinted(bar, "SIGTERM"));
    }
    line
}

/// What the pod answered through one source, and when that source dropped it.
fn source_line(
    scale: Scale,
    top: f64,
    name: &str,
    record: &Record,
    source: usize,
    observed: &Observed<'_>,
) -> Group {
    let seconds = observed.lags.concat()[source].as_secs_f64();
    let text = format!("source {source}, {seconds:.1} s late");
    let mut line = Group::new().add(label(24.0, top + 12.0, &text));
    let served = &observed.tally.served;
    let most = served.values().flat_map(|seconds| seconds.values()).max();
    let most = most.copied().unwrap_or(1);
    for ((by, second), count) in served.get(name).into_iter().flatten() {
        if *by == source {
            let hint = format!("{count} answers through source {by}");
            let share = share(u64::from(*count), u64::from(most));
            line = line.add(tick(scale, *second, top, share, REQUESTS, &hint));
        }
    }
    if let Some(at) = record.dropped.get(&(source / SOURCES, source % SOURCES)) {
        let bar = rectangle(scale.x(*at), top, 1.0, LINE, DROPPED);
        line = line.add(hinted(bar, "the source drops the pod"));
    }
    line
}

fn share(count: u64, most: u64) -> f64 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
    f64::from(count) / f64::from(most)
}

fn axis(scale: Scale, bottom: f64) -> Group {
    let mut axis = Group::new();
    let whole = (scale.end - scale.begin) / 1000;
    let step = match whole {
        0..=60 => 5,
        61..=150 => 10,
        _ => 30,
    };
    for second in (0..=whole).step_by(step) {
        let x = scale.x(scale.begin + second * 1000);
        let line = Line::new()
            .set("x1", x)
            .set("x2", x)
            .set("y1", HEAD)
            .set("y2", bottom)
            .set("stroke", "#dddddd");
        axis = axis
            .add(line)
            .add(label(x - 6.0, bottom + LINE, &format!("{second} s")));
    }
    axis
}

/// A bar for one second, as high as `share` of a line, from 0 to 1.
fn tick(scale: Scale, second: u64, top: f64, share: f64, colour: &str, hint: &str) -> Group {
    let x = scale.x(second * 1000);
    let width = (scale.x(second * 1000 + 1000) - x - 0.3).max(0.5);
    let height = (LINE - 4.0) * share.clamp(0.1, 1.0);
    let bar = rectangle(x, top + LINE - 2.0 - height, width, height, colour);
    hinted(bar, hint)
}

fn hinted(rectangle: Rectangle, hint: &str) -> Group {
    Group::new().add(Title::new(hint)).add(rectangle)
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, colour: &str) -> Rectangle {
    Rectangle::new()
        .set("x", x)
        .set("y", y)
        .set("width", width.max(0.0))
        .set("height", height)
        .set("fill", colour)
}

fn label(x: f64, y: f64, text: &str) -> Text {
    Text::new(text).set("x", x).set("y", y)
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::mk_run;
    use super::super::variant::Variant;
    use super::*;

    #[test]
    fn picture_names_every_ended_pod_its_hold_and_its_sources() {
        let run = mk_run(29_000);
        let text = draw(&run.observed(Variant::Gate)).to_string();
        for word in [
            "alb-gate-short-1",
            "held for 29.0 s confirmed",
            "draining",
            "SIGTERM",
            "7.0 s late",
        ] {
            assert!(text.contains(word), "{word}");
        }
        assert_eq!(text.matches("held for").count(), 3);
        assert_eq!(text.matches("40 answers through source 1").count(), 1);
    }

    #[test]
    fn times_lie_between_the_margins() {
        let scale = Scale {
            begin: 1_000,
            end: 11_000,
        };
        let close = |at, expected: f64| assert!((scale.x(at) - expected).abs() < 1e-6);
        close(1_000, LEFT);
        close(6_000, LEFT + WIDTH / 2.0);
        close(90_000, LEFT + WIDTH);
    }
}
