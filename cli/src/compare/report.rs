//! What a comparison gave, as a table and as JSON.

use serde_json::{Value, json};

use super::Column;

/// Of the JSON object: it grows when a name's meaning changes or a name goes.
const SCHEMA_VERSION: u32 = 2;
/// Narrowest column of a table.
const WIDTH_MIN: usize = 14;

/// Counters that are rows, in this order, with their names for people. Others that begin with a
/// prefix of [`FAMILIES`] follow.
const ROWS: [(&str, &str); 8] = [
    ("exits-sysret", "system calls left by SYSRET"),
    ("exits-iret", "system calls left by IRET"),
    ("exceptions", "exceptions (page faults)"),
    ("page-faults", "page faults"),
    ("context-switches", "context switches"),
    ("interrupts-timer", "interrupts: timer"),
    ("interrupts-device", "interrupts: devices"),
    ("peak-memory-bytes", "peak memory, bytes"),
];
/// Prefixes of counters that are rows where they are not 0 everywhere.
const FAMILIES: [(&str, &str); 1] = [("ipis-", "interrupts between CPUs: ")];

/// A row of the table: its name and a value for each column.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) values: Vec<Option<u64>>,
}

/// A column's instructions as a share of the first one's.
pub(super) fn ratio(column: &Column, columns: &[Column]) -> f64 {
    column.instructions as f64 / columns[0].instructions.max(1) as f64
}

/// The same of the time.
pub(super) fn time_ratio(column: &Column, columns: &[Column]) -> Option<f64> {
    Some(column.time_ns? as f64 / columns[0].time_ns?.max(1) as f64)
}

/// The rows below the instructions that at least one column has.
pub(super) fn rows(columns: &[Column]) -> Vec<Row> {
    let of = |counter: &str, name: String| {
        let value = |column: &Column| column.counters.get(counter).copied();
        Row { name, values: columns.iter().map(value).collect() }
    };
    let mut rows: Vec<Row> = ROWS.iter().map(|(id, name)| of(id, (*name).to_owned())).collect();
    let mut others: Vec<&String> =
        columns.iter().flat_map(|column| column.counters.keys()).collect();
    others.sort();
    others.dedup();
    for id in others {
        for (prefix, name) in FAMILIES {
            let Some(rest) = id.strip_prefix(prefix) else { continue };
            let row = of(id, format!("{name}{rest}"));
            if row.values.iter().flatten().any(|value| *value > 0) {
                rows.push(row);
            }
        }
    }
    rows.retain(|row| row.values.iter().any(Option::is_some));
    rows
}

pub(super) fn as_text(columns: &[Column]) -> String {
    let short = |column: &Column| {
        let end = column.kernel.find('-').unwrap_or(column.kernel.len());
        column.kernel[..end].to_owned()
    };
    let width = |column: &Column| {
        let of_words = [&column.set, &short(column)].map(|word| word.chars().count());
        of_words.into_iter().fold(WIDTH_MIN, usize::max)
    };
    let widths: Vec<usize> = columns.iter().map(width).collect();
    let rows = rows(columns);
    let names = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(28);
    let mut text = String::new();
    let mut line = |name: &str, cells: Vec<String>| {
        text += &format!("{name:<names$}");
        for (cell, width) in cells.iter().zip(&widths) {
            text += &format!("  {cell:>width$}");
        }
        text += "\n";
    };
    line("", columns.iter().map(|column| column.set.clone()).collect());
    if columns.iter().any(|column| column.kernel != columns[0].kernel) {
        line("kernel", columns.iter().map(short).collect());
    }
    line("instructions", columns.iter().map(|column| grouped(column.instructions)).collect());
    let share = |column: &Column| format!("{:.4}", ratio(column, columns));
    line("  of the first", columns.iter().map(share).collect());
    if columns.iter().any(|column| column.time_ns.is_some()) {
        let ms = |column: &Column| {
            column.time_ns.map_or("-".to_owned(), |ns| format!("{:.3} ms", ns as f64 / 1e6))
        };
        line("time, median of 5", columns.iter().map(ms).collect());
        let share = |column: &Column| {
            time_ratio(column, columns).map_or("-".to_owned(), |ratio| format!("{ratio:.4}"))
        };
        line("  of the first", columns.iter().map(share).collect());
    }
    for row in rows {
        let cell = |value: &Option<u64>| value.map_or("-".to_owned(), grouped);
        line(&row.name, row.values.iter().map(cell).collect());
    }
    text += "Instructions and time: from the program's first instruction to its end, user and\n\
             kernel together. Limen's counters begin at its boot, Linux's with the program.\n";
    text
}

pub(super) fn as_json(columns: &[Column], cpus: u8) -> Value {
    let of = |column: &Column| {
        json!({
            "parameters": column.set,
            "kernel": column.kernel,
            "status": column.outcome.word(),
            "exit_code": column.outcome.status(),
            "instructions": column.instructions,
            "ratio": ratio(column, columns),
            "time_ns": column.time_ns,
            "counters": column.counters,
        })
    };
    json!({
        "schema_version": SCHEMA_VERSION,
        "cpus": cpus,
        "sets": columns.iter().map(of).collect::<Vec<_>>(),
    })
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::run::outcome::Outcome;
    use std::collections::BTreeMap;

    pub(in crate::compare) fn columns() -> Vec<Column> {
        let column = |set: &str, kernel: &str, instructions, counter: &str| Column {
            set: set.to_owned(),
            kernel: kernel.to_owned(),
            outcome: Outcome::Exit(0),
            instructions,
            time_ns: Some(instructions * 2),
            counters: BTreeMap::from([(counter.to_owned(), 7)]),
            stdout: vec![],
        };
        vec![
            column("pti=off", "Limen", 1_234_000, "exits-sysret"),
            column("linux <b>", "Linux 6.12", 1_357_400, "page-faults"),
        ]
    }

    #[test]
    fn tables_are_relative_to_the_first() {
        let columns = columns();
        let text = as_text(&columns);
        assert!(text.contains("1.1000") && text.contains("1,357,400"), "{text}");
        let line = text.lines().find(|line| line.starts_with("page faults")).expect("a row");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["page", "faults", "-", "7"]);
        // A long name of a kernel makes its column wider, and no line sticks out.
        let mut columns = columns;
        columns[1].kernel = "Linux 6.12.117+deb12u1-amd64".to_owned();
        let text = as_text(&columns);
        let of_table = text.lines().take_while(|line| !line.starts_with("Instructions and"));
        let widths: Vec<usize> = of_table.map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
        let json = as_json(&columns, 2);
        assert_eq!((&json["sets"][1]["ratio"], &json["cpus"]), (&json!(1.1), &json!(2)));
        assert_eq!(json["sets"][0]["counters"]["exits-sysret"], 7);
    }
}
