//! Plots of benches, as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::Error;

/// One row of a bench: points of two kernels over a size.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) lines: [Vec<(f64, f64)>; 2],
}

const COLUMNS: usize = 5;
const PANEL: (u32, u32) = (300, 220);
const HEADER: u32 = 40;
const COLOURS: [RGBColor; 2] = [RGBColor(214, 39, 40), RGBColor(31, 119, 180)];
const TITLE_POINTS: u32 = 13;
const LABEL_POINTS: u32 = 10;

/// A panel for each row, both axes logarithmic: a cost that does not grow is a level line.
pub(super) fn growth(file: &Path, panels: &[Panel], ours: &str, theirs: &str) -> Result<(), Error> {
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32 + HEADER);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (header, body) = root.split_vertically(HEADER);
        for (index, name) in [ours, theirs].into_iter().enumerate() {
            let style = ("sans-serif", 18).into_font().color(&COLOURS[index]);
            header.draw(&Text::new(name, (20 + index as i32 * 120, 12), style))?;
        }
        let what = ("sans-serif", 14).into_font();
        header.draw(&Text::new(
            "instructions per operation over size, both log",
            (600, 14),
            what,
        ))?;
        for (area, panel) in body.split_evenly((rows, COLUMNS)).iter().zip(panels) {
            draw(area, panel)?;
        }
        root.present()?;
    }
    std::fs::write(file, svg).map_err(|error| format!("{}: {error}", file.display()).into())
}

/// The decades that the values lie in: both ends are lines of the grid.
fn decades(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min).max(1.0);
    let high = values.fold(1.0, f64::max).max(low);
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    10f64.powf(low)..10f64.powf(high.max(low + 1.0))
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    panel: &Panel,
) -> Result<(), Error> {
    let points = || panel.lines.iter().flatten();
    if points().next().is_none() {
        return Ok(());
    }
    let (x, y) = (decades(points().map(|point| point.0)), decades(points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", TITLE_POINTS))
        .margin(6)
        .x_label_area_size(32)
        .y_label_area_size(54)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("size")
        .y_desc("instructions")
        .x_labels(4)
        .y_labels(4)
        .label_style(("sans-serif", LABEL_POINTS))
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for (line, colour) in panel.lines.iter().zip(COLOURS) {
        chart.draw_series(LineSeries::new(line.iter().copied(), colour))?;
        chart.draw_series(line.iter().map(|&point| Circle::new(point, 2, colour.filled())))?;
    }
    Ok(())
}

/// 12k for 12,345.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.0}G", v / 1e9),
        v if v >= 1e6 => format!("{:.0}M", v / 1e6),
        v if v >= 1e3 => format!("{:.0}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_panel_with_its_points() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("plot.svg");
        let line = vec![(10.0, 500.0), (100.0, 900.0)];
        let panel = |title: &str| Panel { title: title.to_owned(), lines: [line.clone(), vec![]] };
        let drawn = growth(&file, &[panel("first"), panel("second")], "Limen", "Linux");
        let svg = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(drawn.is_ok());
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let texts: Vec<&str> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .filter_map(|node| node.text())
            .map(str::trim)
            .collect();
        for title in ["first", "second", "Limen", "Linux"] {
            assert!(texts.contains(&title), "{title}: {texts:?}");
        }
        for axis in ["size", "instructions"] {
            assert_eq!(texts.iter().filter(|text| **text == axis).count(), 2, "{texts:?}");
        }
        // Both ends of each axis are named: 10 and 100, 100 and 1000.
        for (label, panels) in [("10", 2), ("100", 4), ("1k", 2)] {
            assert_eq!(texts.iter().filter(|text| **text == label).count(), panels, "{texts:?}");
        }
        let number = |node: &roxmltree::Node<'_, '_>, name: &str| -> f64 {
            node.attribute(name).and_then(|text| text.parse().ok()).expect("a number")
        };
        let points = document.descendants().filter(|node| node.has_tag_name("circle"));
        let points: Vec<_> = points.map(|n| (number(&n, "cx"), number(&n, "cy"))).collect();
        assert_eq!(points.len(), 4);
        // What is larger is further to the right, and what costs more is higher.
        for pair in points.chunks(2) {
            assert!(pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1, "{pair:?}");
        }
    }
}
