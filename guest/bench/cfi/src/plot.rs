//! The plot: core cycles over call sites, a line for each form of the call, as SVG.
//!
//! Neighbour: `report.rs` has the figures as a table and as an object.

use std::error::Error;

use plotters::prelude::*;

use crate::code::VARIANTS;
use crate::measure::Point;

/// Pixels.
const SIZE: (u32, u32) = (860, 420);
/// Room beside the lines for their names, pixels.
const LEGEND: u32 = 120;
const FONT: &str = "sans-serif";
const CAPTION_POINTS: u32 = 16;
const LABEL_POINTS: u32 = 12;
/// How much higher the picture is than the highest point.
const ROOM_ABOVE: f64 = 1.05;
const COLOURS: [RGBColor; 9] = [
    RGBColor(127, 127, 127),
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(227, 119, 194),
    RGBColor(140, 86, 75),
    RGBColor(188, 189, 34),
];
const _: () = assert!(COLOURS.len() == VARIANTS.len());

/// Medians over the number of sites, of the points with one target.
///
/// # Errors
/// What the plotting library says of the figures, such as one that is no number.
pub fn svg(points: &[Point]) -> Result<String, Box<dyn Error>> {
    let points: Vec<&Point> = points.iter().filter(|point| point.targets == 1).collect();
    let highest = points.iter().flat_map(|p| &p.cycles).map(|s| s.median).fold(1.0, f64::max);
    let most = points.iter().map(|p| p.sites).max().unwrap_or(1).max(2) as f64;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption("Core cycles per call and return", (FONT, CAPTION_POINTS))
            .margin(8)
            .margin_right(LEGEND)
            .x_label_area_size(40)
            .y_label_area_size(52)
            .build_cartesian_2d((1.0..most).log_scale().base(2.0), 0.0..highest * ROOM_ABOVE)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("call sites, each visited in turn")
            .y_desc("core cycles, median over layouts")
            .x_label_formatter(&|sites| format!("{sites:.0}"))
            .y_label_formatter(&|cycles| format!("{cycles}"))
            .label_style((FONT, LABEL_POINTS))
            .draw()?;
        for (index, (variant, colour)) in VARIANTS.iter().zip(COLOURS).enumerate() {
            let line = points.iter().map(|p| (p.sites as f64, p.cycles[index].median));
            chart.draw_series(LineSeries::new(line.clone(), colour))?;
            chart.draw_series(line.map(|point| Circle::new(point, 2, colour.filled())))?;
            let style = (FONT, LABEL_POINTS).into_font().color(&colour);
            let place = ((SIZE.0 - LEGEND + 10) as i32, 36 + 18 * index as i32);
            root.draw(&Text::new(variant.name, place, style))?;
        }
        root.present()?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    /// Cycles that grow with the sites, differently for each form.
    fn sample() -> Vec<Point> {
        let spread = |median| Spread { median, low: median, high: median };
        let point = |sites: usize| {
            let cycles = (1..=VARIANTS.len()).map(|n| spread(n as f64 + (sites as f64).log2()));
            Point {
                sites,
                targets: 1,
                cycles: cycles.collect(),
                ratios: vec![spread(1.0); VARIANTS.len()],
                work: 1,
            }
        };
        vec![point(1), point(16), point(256), point(4096)]
    }

    fn number(node: &roxmltree::Node<'_, '_>, name: &str) -> f64 {
        node.attribute(name).and_then(|text| text.parse().ok()).expect(name)
    }

    /// Labels of an axis: where, and which number.
    fn labels(document: &roxmltree::Document<'_>, along: &str, across: &str) -> Vec<(f64, f64)> {
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        let numbers = texts.filter_map(|node| {
            let value: f64 = node.text()?.trim().parse().ok()?;
            Some((number(&node, across), number(&node, along), value))
        });
        let all: Vec<_> = numbers.collect();
        // Those of one axis stand on one line.
        let on = |line: f64| all.iter().filter(move |label| label.0 == line);
        let line = all.iter().map(|label| label.0).max_by_key(|line| on(*line).count());
        on(line.expect("labels")).map(|label| (label.1, label.2)).collect()
    }

    #[test]
    fn axes_are_labelled_and_the_grid_is_where_the_labels_are() {
        let text = svg(&sample()).expect("drawn");
        let document = roxmltree::Document::parse(&text).expect("XML");
        for wanted in ["Core cycles", "call sites", "median over layouts"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        for variant in VARIANTS {
            let is_named = |node: roxmltree::Node<'_, '_>| {
                node.text().is_some_and(|text| text.trim() == variant.name)
            };
            assert!(document.descendants().any(is_named), "{}", variant.name);
        }
        let levels = labels(&document, "y", "x");
        assert!(levels.len() >= 3, "{levels:?}");
        let lines: Vec<_> = document.descendants().filter(|n| n.has_tag_name("line")).collect();
        for (y, cycles) in &levels {
            let is_level = |line: &&roxmltree::Node<'_, '_>| {
                let (from, to) = (number(line, "y1"), number(line, "y2"));
                let wide = (number(line, "x1") - number(line, "x2")).abs() > 300.0;
                wide && from == to && (from - y).abs() <= 1.0
            };
            assert!(lines.iter().any(|line| is_level(&line)), "no grid line at {cycles} cycles");
        }
        // Even steps of cycles are even steps of the picture.
        let scale = |a: &(f64, f64), b: &(f64, f64)| (a.0 - b.0) / (b.1 - a.1);
        let first = scale(&levels[0], &levels[1]);
        for pair in levels.windows(2) {
            assert!((scale(&pair[0], &pair[1]) / first - 1.0).abs() < 0.05, "{levels:?}");
        }
    }

    #[test]
    fn every_median_is_a_point_at_its_height() {
        let text = svg(&sample()).expect("drawn");
        let document = roxmltree::Document::parse(&text).expect("XML");
        let levels = labels(&document, "y", "x");
        let (a, b) = (levels[0], levels[levels.len() - 1]);
        let height = |cycles: f64| a.0 + (cycles - a.1) * (b.0 - a.0) / (b.1 - a.1);
        let circles: Vec<_> = document.descendants().filter(|n| n.has_tag_name("circle")).collect();
        assert_eq!(circles.len(), 4 * VARIANTS.len());
        for (circle, (n, sites)) in circles
            .iter()
            .zip((1..=VARIANTS.len()).flat_map(|n| [1.0_f64, 16.0, 256.0, 4096.0].map(|s| (n, s))))
        {
            let wanted = height(n as f64 + sites.log2());
            let is_there = (number(circle, "cy") - wanted).abs() < 3.0;
            assert!(is_there, "{n} of {sites}: {circle:?}, want {wanted}");
        }
    }
}
