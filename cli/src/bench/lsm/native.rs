//! What `guest/bench/hooks` measured in ring 3: the table, and what a hook saves there.
//!
//! Neighbour: `unix.rs`, whose instructions cannot show what an indirect branch waits for.

use std::fmt::Write as _;

use serde_json::Value;

/// The forms that are compared, by the names that the program gives them.
const OLD: &str = "list+thunk";
const NEW: &str = "site";

/// Core cycles per asking of a form at a point.
fn cycles(point: &Value, form: &str) -> Option<f64> {
    point["forms"][form]["cycles"]["median"].as_f64()
}

/// Core cycles that a hook with so many policies takes less as a patched site than as a list with
/// thunks, while few sites are hot: the least that it saves.
pub(super) fn saved_cycles(native: &Value, policies: usize) -> Option<f64> {
    let points = native["points"].as_array()?;
    let of = |point: &&Value| point["policies"].as_u64() == Some(policies as u64);
    let hot = points.iter().filter(of).min_by_key(|point| point["sites"].as_u64())?;
    Some(cycles(hot, OLD)? - cycles(hot, NEW)?)
}

/// The program's own table, and what it claims.
pub(super) fn text(native: &Value) -> String {
    let points = native["points"].as_array().map_or(&[][..], Vec::as_slice);
    let forms: Vec<&String> = points
        .first()
        .and_then(|point| point["forms"].as_object())
        .map_or(vec![], |forms| forms.keys().collect());
    let mut out = format!("{:<44}", "core cycles per asking, median over layouts");
    forms.iter().for_each(|form| _ = write!(out, "{form:>12}"));
    out.push('\n');
    for point in points {
        let hooks = if point["own_hooks"] == true { "own hooks" } else { "one hook" };
        let name = format!("{} sites, {hooks}, {} policies", point["sites"], point["policies"]);
        _ = write!(out, "{name:<44}");
        for form in &forms {
            _ = write!(out, "{:>12.1}", cycles(point, form).unwrap_or(f64::NAN));
        }
        out.push('\n');
    }
    for claim in native["reach"].as_array().into_iter().flatten() {
        let met = if claim["met"] == true { "met" } else { "NOT MET" };
        _ = writeln!(out, "reach: {} ... {met}", claim["claim"].as_str().unwrap_or_default());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_saved_is_of_the_hot_point_with_as_many_policies() {
        let point = |sites: u64, policies: u64, list: f64, site: f64| {
            let form = |cycles: f64| json!({ "cycles": { "median": cycles } });
            json!({ "sites": sites, "policies": policies, "own_hooks": false,
                    "forms": { OLD: form(list), NEW: form(site) } })
        };
        let points = [point(9000, 2, 90.0, 9.0), point(64, 2, 60.0, 9.0), point(64, 1, 30.0, 3.0)];
        let native = json!({ "points": points, "reach": [{ "claim": "c", "met": false }] });
        assert_eq!(saved_cycles(&native, 2), Some(51.0));
        assert_eq!(saved_cycles(&native, 3), None);
        let text = text(&native);
        assert!(text.contains("60.0") && text.contains("c ... NOT MET"), "{text}");
    }
}
