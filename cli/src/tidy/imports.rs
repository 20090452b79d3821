//! Which file of a crate takes what from which other file: the crate's own import graph.
//!
//! Read from `use` lines and from paths in the code that begin with `crate`, `self`, `super`, a
//! child of the module or a module that a `use` line names. What a module hands on (`pub use`) is
//! followed to where it stands: who takes a name from a module depends on the file that has it, and
//! a module that only hands on its child's name does not depend on the child. Not a compiler: what
//! a macro makes is not seen, nor are methods and fields of values that somebody else handed over.
//! Neighbours: `lex.rs`, `floors.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Source;
use super::lex::code_only;

/// A module's path from the crate's root: `["vfs", "file"]`.
pub(super) type Module = Vec<String>;

/// One file takes one name from another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) from: Module,
    pub(super) to: Module,
    /// What it takes, from the module `to` on; empty for the module itself.
    pub(super) name: String,
}

/// The import graph of the crate whose sources lie below `root`.
pub(super) struct Graph {
    /// Each module's file and its number of lines.
    pub(super) files: BTreeMap<Module, (PathBuf, usize)>,
    pub(super) imports: BTreeSet<Import>,
}

impl Graph {
    pub(super) fn of(root: &Path, sources: &[&Source]) -> Graph {
        let own = sources.iter().filter_map(|source| {
            let below = source.path.strip_prefix(root).ok()?;
            Some((module_of(below), *source))
        });
        let own: BTreeMap<Module, &Source> = own.collect();
        let known: BTreeSet<Module> = own.keys().cloned().collect();
        let mut known = Known { modules: known, handed_on: BTreeMap::new() };
        let names: Vec<_> = own
            .iter()
            .flat_map(|(module, source)| names_handed_on(module, &source.text, &known.modules))
            .collect();
        known.handed_on.extend(names);
        let mut imports = BTreeSet::new();
        for (module, source) in &own {
            imports_of(module, &source.text, &known, &mut imports);
        }
        let files = own
            .into_iter()
            .map(|(module, source)| (module, (source.path.clone(), source.text.lines().count())));
        Graph { files: files.collect(), imports }
    }

    /// Groups of files each of which leads to each other one, along imports that `keep` accepts;
    /// groups of one file are left out.
    pub(super) fn circles(&self, keep: impl Fn(&Import) -> bool) -> Vec<Vec<&Module>> {
        let mut next: BTreeMap<&Module, Vec<&Module>> = BTreeMap::new();
        let mut back: BTreeMap<&Module, Vec<&Module>> = BTreeMap::new();
        for import in self.imports.iter().filter(|import| keep(import)) {
            next.entry(&import.from).or_default().push(&import.to);
            back.entry(&import.to).or_default().push(&import.from);
        }
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for start in self.files.keys() {
            visit(start, &next, &mut seen, &mut order);
        }
        // Backwards from the last one left: what it reaches is its circle.
        let mut taken = BTreeSet::new();
        let mut circles = Vec::new();
        for start in order.iter().rev() {
            let mut circle = Vec::new();
            visit(start, &back, &mut taken, &mut circle);
            if circle.len() > 1 {
                circle.sort();
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// Appends what can be reached from `start` and was not `seen`, each after all that it leads to.
fn visit<'a>(
    start: &'a Module,
    next: &BTreeMap<&'a Module, Vec<&'a Module>>,
    seen: &mut BTreeSet<&'a Module>,
    order: &mut Vec<&'a Module>,
) {
    if !seen.insert(start) {
        return;
    }
    for other in next.get(start).into_iter().flatten() {
        visit(other, next, seen, order);
    }
    order.push(start);
}

/// `vfs/mod.rs` and `vfs.rs` are `["vfs"]`; the root itself is empty.
fn module_of(below: &Path) -> Module {
    let parts = below.with_extension("");
    let mut parts: Module =
        parts.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib" || last == "main") {
        parts.pop();
    }
    parts
}

/// What paths can lead to.
struct Known {
    modules: BTreeSet<Module>,
    /// Names, by their path, that a module hands on from elsewhere: the path there.
    handed_on: BTreeMap<Module, Module>,
}

/// Most times that a name is handed on.
const HANDS_MAX: usize = 8;

impl Known {
    /// The real path of one that leads through names that are handed on.
    fn resolve(&self, mut path: Module) -> Module {
        for _ in 0..HANDS_MAX {
            let step = (1..=path.len())
                .find_map(|length| Some((self.handed_on.get(&path[..length])?, length)));
            let Some((real, length)) = step else { break };
            path = [&real[..], &path[length..]].concat();
        }
        path
    }
}

/// The names that `module` hands on from elsewhere, with their real paths; all `use` lines of the
/// root, since what stands there is named from everywhere.
fn names_handed_on(module: &Module, text: &str, known: &BTreeSet<Module>) -> Vec<(Module, Module)> {
    let code = code_only(text);
    let tokens = tokens(&code);
    let mut names = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] != "use" {
            at += 1;
            continue;
        }
        let is_handed_on = module.is_empty() || is_public(&tokens, at);
        let mut leaves = Vec::new();
        at = use_tree(&tokens, at + 1, &[], &mut leaves);
        for (path, local) in leaves.into_iter().filter(|_| is_handed_on) {
            let name = [&module[..], &owned(&[local])].concat();
            let path = absolute(&path, module, known).filter(|path| *path != name);
            if !known.contains(&name) && local != "*" {
                names.extend(path.map(|path| (name, path)));
            }
        }
    }
    names
}

/// Whether `pub` or `pub(...)` stands before the token at `at`.
fn is_public(tokens: &[&str], at: usize) -> bool {
    let before = &tokens[..at];
    match before.last() {
        Some(&"pub") => true,
        Some(&")") => {
            let open = before.iter().rposition(|token| *token == "(");
            open.and_then(|open| open.checked_sub(1)).is_some_and(|pub_at| before[pub_at] == "pub")
        }
        _ => false,
    }
}

fn imports_of(module: &Module, text: &str, known: &Known, imports: &mut BTreeSet<Import>) {
    let code = code_only(text);
    let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let tokens = tokens(code);
    // What a local name means, where a `use` line brings a module in.
    let mut modules: BTreeMap<&str, Module> = BTreeMap::new();
    let mut paths: Vec<Module> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            let is_public = is_public(&tokens, at);
            let mut leaves = Vec::new();
            at = use_tree(&tokens, at + 1, &[], &mut leaves);
            for (path, local) in leaves {
                let Some(path) = absolute(&path, module, &known.modules) else { continue };
                let path = known.resolve(path);
                if known.modules.contains(&path) {
                    modules.insert(local, path.clone());
                }
                if !(is_public && path.starts_with(module)) {
                    paths.push(path);
                }
            }
            continue;
        }
        let (words, after) = path_at(&tokens, at);
        if words.len() > 1 {
            let first = modules.get(words[0]).cloned();
            let path = match first {
                Some(first) => Some([&first[..], &owned(&words[1..])].concat()),
                None => absolute(&words, module, &known.modules),
            };
            paths.extend(path.map(|path| known.resolve(path)));
        }
        at = after.max(at + 1);
    }
    for path in paths {
        let length = (0..=path.len()).rev().find(|&length| known.modules.contains(&path[..length]));
        let to = path[..length.unwrap_or(0)].to_vec();
        if to != *module && !to.is_empty() {
            let name = path[to.len()..].first().cloned().unwrap_or_default();
            imports.insert(Import { from: module.clone(), to, name });
        }
    }
}

fn owned(words: &[&str]) -> Module {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A path of the crate's own from its root; `None` for one that leads elsewhere.
fn absolute(words: &[&str], module: &Module, known: &BTreeSet<Module>) -> Option<Module> {
    match *words.first()? {
        "crate" => Some(owned(&words[1..])),
        "self" => Some([&module[..], &owned(&words[1..])].concat()),
        "super" => {
            let ups = words.iter().take_while(|word| **word == "super").count();
            let kept = module.len().checked_sub(ups)?;
            Some([&module[..kept], &owned(&words[ups..])].concat())
        }
        child => {
            let child = [&module[..], &owned(&[child])].concat();
            known.contains(&child).then(|| [&child[..], &owned(&words[1..])].concat())
        }
    }
}

/// Words and the signs that paths are made of; everything else is one sign as well.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while !rest.is_empty() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let length = match word {
            0 if rest.starts_with("::") => 2,
            0 => first,
            length => length,
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The path that begins at `at`, and where it ends.
fn path_at<'a>(tokens: &[&'a str], mut at: usize) -> (Vec<&'a str>, usize) {
    let mut words = Vec::new();
    while at < tokens.len() && is_word(tokens[at]) {
        words.push(tokens[at]);
        at += 1;
        if tokens.get(at) != Some(&"::") || !tokens.get(at + 1).is_some_and(|next| is_word(next)) {
            break;
        }
        at += 1;
    }
    (words, at)
}

/// A path that a `use` line brings in, and the name it has in the file.
type Leaf<'a> = (Vec<&'a str>, &'a str);

/// Reads one tree of a `use` line from `at` on; returns where it ends.
fn use_tree<'a>(
    tokens: &[&'a str],
    mut at: usize,
    before: &[&'a str],
    leaves: &mut Vec<Leaf<'a>>,
) -> usize {
    let mut path = before.to_vec();
    while at < tokens.len() {
        match tokens[at] {
            "::" => {
                at += 1;
                continue;
            }
            "{" => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    // In a macro signs stand where names would.
                    at = use_tree(tokens, at, &path, leaves).max(at + 1);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "as" => {
                let local = tokens.get(at + 1).copied().unwrap_or_default();
                leaves.push((path, local));
                return at + 2;
            }
            "self" if !path.is_empty() => at += 1,
            word if is_word(word) => {
                path.push(word);
                at += 1;
            }
            "*" => at += 1,
            _ => break,
        }
        if tokens.get(at).is_none_or(|next| !matches!(*next, "::" | "as")) {
            break;
        }
    }
    let local = path.last().copied().unwrap_or_default();
    leaves.push((path, local));
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source {
                path: Path::new("k/src").join(path),
                text: (*text).to_owned(),
            })
            .collect();
        Graph::of(Path::new("k/src"), &sources.iter().collect::<Vec<_>>())
    }

    fn shown(graph: &Graph) -> Vec<String> {
        let show = |i: &Import| format!("{} > {}: {}", i.from.join("."), i.to.join("."), i.name);
        graph.imports.iter().map(show).collect()
    }

    #[test]
    fn use_lines_of_all_forms() {
        let found = graph(&[
            ("a/mod.rs", "use crate::b::{self, c::{D, E as F}, G};\npub use super::b::c;\n"),
            ("b/mod.rs", "mod c;"),
            ("b/c.rs", "use super::super::a::Thing; use core::fmt; use self::x::Y;"),
        ]);
        let expected =
            ["a > b: ", "a > b: G", "a > b.c: ", "a > b.c: D", "a > b.c: E", "b.c > a: Thing"];
        assert_eq!(shown(&found), expected);
    }

    #[test]
    fn use_lines_of_macros_end() {
        let found = graph(&[
            ("a.rs", "macro_rules! m { () => { use x::{$($name),+}; } }\nuse crate::b::X;"),
            ("b.rs", ""),
        ]);
        assert_eq!(shown(&found), ["a > b: X"]);
    }

    #[test]
    fn paths_in_code_and_through_modules() {
        let found = graph(&[
            ("a.rs", "use crate::b;\nfn f() { b::g(); crate::b::c::h(); // crate::b::no()\n }"),
            ("b/mod.rs", "fn g() { \"crate::a::text\"; }"),
            ("b/c.rs", "#[cfg(test)]\nmod tests { use crate::a::X; }"),
        ]);
        assert_eq!(shown(&found), ["a > b: ", "a > b: g", "a > b.c: h"]);
    }

    #[test]
    fn names_that_modules_hand_on() {
        let found = graph(&[
            ("lib.rs", "pub mod a; mod b; pub use b::c as short; pub use self::a::X;"),
            ("a.rs", "use crate::short; fn f() { short::g(); crate::short::h(); crate::X; }"),
            ("b/mod.rs", ""),
            ("b/c.rs", "use crate::X;"),
        ]);
        let expected = ["a > b.c: ", "a > b.c: g", "a > b.c: h", "b.c > a: X"];
        assert_eq!(shown(&found), expected);
        let found = graph(&[
            ("a/mod.rs", "mod b; pub mod c; pub use b::X; pub(super) use c::{self as d, Y};"),
            ("a/b.rs", "use super::Y;"),
            ("a/c.rs", ""),
            ("e.rs", "use crate::a::{X, d::Z};"),
        ]);
        assert_eq!(shown(&found), ["a.b > a.c: Y", "e > a.b: X", "e > a.c: Z"]);
    }

    #[test]
    fn a_module_and_its_children_can_be_a_circle() {
        let found = graph(&[
            ("a/mod.rs", "mod b; mod c; use b::X; fn f() { c::g(); core::mem::drop(1); }"),
            ("a/b.rs", "use super::Thing;"),
            ("a/c.rs", ""),
        ]);
        assert_eq!(shown(&found), ["a > a.b: X", "a > a.c: g", "a.b > a: Thing"]);
        assert_eq!(found.circles(|_| true).len(), 1);
    }

    #[test]
    fn circles_and_how_they_end() {
        let found = graph(&[
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "use crate::c::X;"),
            ("c.rs", "use crate::a::X; use crate::d::X;"),
            ("d.rs", ""),
        ]);
        let names = |circles: Vec<Vec<&Module>>| -> Vec<String> {
            circles
                .iter()
                .map(|circle| circle.iter().map(|module| module.concat()).collect())
                .collect()
        };
        assert_eq!(names(found.circles(|_| true)), ["abc"]);
        assert_eq!(names(found.circles(|import| import.from != ["c"])), [""; 0]);
    }
}
