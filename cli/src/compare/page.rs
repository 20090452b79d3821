//! A comparison as a page: bars for the instructions (and the time), the table below.

use super::Column;
use super::report::{grouped, ratio, rows, time_ratio};
use crate::page::{escape, page};

const STYLE: &str = "\
.bars { display: grid; gap: .75rem; margin: 0; max-width: 60rem; }
.bars div { display: grid; gap: .15rem; }
.bars dt { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; }
.bars dt code { overflow-wrap: anywhere; }
.bars dd { margin: 0; background: var(--shade); height: 1.1rem; }
.bars dd span { display: block; height: 100%; background: var(--bar); }
.bars div:first-child dd span { background: var(--first); }
";

pub(super) fn html(program: &str, columns: &[Column]) -> String {
    let mut body = format!(
        "<h1>What it costs: <code>{}</code></h1>\n<p class=\"soft\">From the program's first \
         instruction to its end, user and kernel together, in the same emulated machine. \
         Instructions are the same every time; an instruction is not a cycle.</p>\n",
        escape(program)
    );
    body += "<h2>Instructions</h2>\n";
    let all: Vec<f64> = columns.iter().map(|column| column.instructions as f64).collect();
    body += &bars(columns, &all, |column| {
        format!("{} ({:.4} of the first)", grouped(column.instructions), ratio(column, columns))
    });
    if columns.iter().all(|column| column.time_ns.is_some()) {
        body += "<h2>Time, the median of five runs</h2>\n";
        let all: Vec<f64> =
            columns.iter().map(|column| column.time_ns.unwrap_or(0) as f64).collect();
        body += &bars(columns, &all, |column| {
            let ms = column.time_ns.unwrap_or(0) as f64 / 1e6;
            format!("{ms:.3} ms ({:.4} of the first)", time_ratio(column, columns).unwrap_or(1.0))
        });
    }
    body += "<h2>What the kernel counted</h2>\n<p class=\"soft\">Limen's counters begin at its \
             boot, Linux's with the program.</p>\n";
    body += &table(columns);
    page(&format!("limen compare: {program}"), STYLE, &body)
}

/// A bar for each column, its length relative to the longest.
fn bars(columns: &[Column], values: &[f64], text: impl Fn(&Column) -> String) -> String {
    let most = values.iter().copied().fold(1.0, f64::max);
    let mut html = "<dl class=\"bars\">\n".to_owned();
    for (column, value) in columns.iter().zip(values) {
        let width = value / most * 100.0;
        html += &format!(
            "<div><dt><code>{}</code> <span>{}</span></dt>\
             <dd aria-hidden=\"true\"><span style=\"width:{width:.3}%\"></span></dd></div>\n",
            escape(&column.set),
            escape(&text(column))
        );
    }
    html + "</dl>\n"
}

fn table(columns: &[Column]) -> String {
    let mut html = "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Counters\">\n\
                    <table>\n<thead><tr><th scope=\"col\">Counter</th>"
        .to_owned();
    for column in columns {
        html += &format!("<th scope=\"col\"><code>{}</code></th>", escape(&column.set));
    }
    html += "</tr></thead>\n<tbody>\n<tr><th scope=\"row\">kernel</th>";
    for column in columns {
        html += &format!("<td>{}</td>", escape(&column.kernel));
    }
    html += "</tr>\n";
    for row in rows(columns) {
        html += &format!("<tr><th scope=\"row\">{}</th>", escape(&row.name));
        for value in row.values {
            html += &format!("<td>{}</td>", value.map_or("–".to_owned(), grouped));
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table>\n</div>\n"
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::columns;
    use super::*;

    #[test]
    fn sets_and_programs_are_text() {
        let html = html("ls <&>", &columns());
        assert!(html.contains("linux &lt;b&gt;") && !html.contains("<b>"));
        assert!(html.contains("<code>ls &lt;&amp;&gt;</code>"));
        assert!(html.contains("width:100.000%") && html.contains("width:90.909%"));
        assert!(html.contains("1.1000 of the first"));
    }
}
