//! The pages level: what `limen trace` and `limen compare` write, looked at in Debian's Chromium
//! without a window: no word on the console, nothing asked of a network, readable at 360 and at
//! 1440 pixels, light and dark, and usable from the keyboard alone.
//!
//! Neighbours: `browser.rs` drives the browser, `packages.rs` installs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::browser::Browser;
use super::run::{Test, each, ensure};
use super::{Context, Summary, packages};
use crate::Error;

const TESTS: [(&str, Test); 2] = [("pages::timeline", timeline), ("pages::compare", compare)];
/// Windows: a telephone's and a desk's.
const WIDTHS: [u32; 2] = [360, 1440];
/// Least contrast of text with what is behind it (WCAG 2.2, 1.4.3).
const CONTRAST: f64 = 4.5;
/// Tab is pressed at most so often to get somewhere.
const TABS_MAX: usize = 20;

/// The test of this name.
pub(super) fn find(name: &str) -> Option<Test> {
    TESTS.iter().find(|(other, _)| *other == name).map(|(_, test)| *test)
}

pub(super) fn names() -> Vec<String> {
    TESTS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    if !Path::new("/usr/bin/chromium").exists() {
        packages::install(&["chromium"])?;
    }
    each(context, TESTS.iter().filter(|(name, _)| context.wants(name)))
}

fn limen(context: &Context, folder: &Path, words: &[&str]) -> Result<(), Error> {
    let mut command = Command::new(&context.limen);
    command.args(words).current_dir(folder).stdin(Stdio::null());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), || format!("{words:?}: {}: {said}", output.status))
}

/// What holds for every page, in each window and scheme.
fn look(browser: &mut Browser, page: &Path) -> Result<(), Error> {
    for scheme in ["light", "dark"] {
        for width in WIDTHS {
            browser.open(page, width, scheme)?;
            let at = |what: &str| format!("{}: {width} px, {scheme}: {what}", page.display());
            let complaints = browser.complaints();
            ensure(complaints.is_empty(), || at(&complaints.join("; ")))?;
            let fits = "document.documentElement.scrollWidth <= window.innerWidth";
            ensure(browser.value(fits)? == true, || at("wider than the window"))?;
            let (paper, least) = (browser.value(PAPER)?, browser.value(LEAST_CONTRAST)?);
            let is_dark = paper.as_f64().is_some_and(|light| light < 0.2);
            ensure(is_dark == (scheme == "dark"), || at(&format!("the paper is {paper}")))?;
            let readable = least["ratio"].as_f64().is_some_and(|ratio| ratio >= CONTRAST);
            ensure(readable, || at(&format!("contrast: {least}")))?;
            let unlabelled = browser.value(UNLABELLED)?;
            ensure(unlabelled == 0, || at(&format!("{unlabelled} things without a label")))?;
        }
    }
    Ok(())
}

/// Relative luminance of the page's background (WCAG 2.2).
const PAPER: &str = "(() => { const light = c => { const [r, g, b] = \
    c.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : \
    ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; }; \
    window.light = light; \
    return light(getComputedStyle(document.body).backgroundColor); })()";
/// The worst contrast of any text with the first background behind it.
const LEAST_CONTRAST: &str = "(() => { let least = { ratio: 21 }; \
    for (const e of document.body.querySelectorAll('*')) { \
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()); \
    if (!own || ['SCRIPT', 'STYLE'].includes(e.tagName)) continue; \
    let back = e; const clear = c => c === 'rgba(0, 0, 0, 0)' || c === 'transparent'; \
    while (back.parentElement && clear(getComputedStyle(back).backgroundColor)) \
    back = back.parentElement; \
    const a = light(getComputedStyle(e).color), b = light(getComputedStyle(back).backgroundColor); \
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); \
    if (ratio < least.ratio) least = { ratio, text: e.textContent.slice(0, 40) }; } \
    return least; })()";
/// What one can get to, and is told nothing about; and a page without a title or language.
const UNLABELLED: &str = "[...document.querySelectorAll('button, canvas, [tabindex], a, input')]\
    .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).length + \
    (document.title ? 0 : 1) + (document.documentElement.lang ? 0 : 1) + \
    (document.querySelectorAll('h1').length === 1 ? 0 : 1)";

/// Presses Tab until this element has the focus.
fn tab_to(browser: &mut Browser, id: &str) -> Result<(), Error> {
    for _ in 0..TABS_MAX {
        browser.press("Tab")?;
        if browser.value("document.activeElement.id")? == id {
            return Ok(());
        }
    }
    Err(format!("Tab does not lead to {id}").into())
}

/// The timeline of a run: drawn, moved and read out by keys.
fn timeline(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "echo a | cat >/dev/null; ls /usr >/dev/null";
    let run = ["run", "--smp", "2", "--trace", "t.html", "--", "sh", "-c", script];
    limen(context, folder, &run)?;
    let page = folder.join("t.html");
    let mut browser = Browser::start(&folder.join("profile"))?;
    look(&mut browser, &page)?;
    tab_to(&mut browser, "timeline")?;
    let picture = "document.getElementById('timeline').toDataURL()";
    let whole = browser.value(picture)?;
    ensure(browser.value(COLOURS)?.as_u64() >= Some(4), || "hardly anything is drawn".to_owned())?;
    browser.press("+")?;
    browser.press("+")?;
    ensure(browser.value(picture)? != whole, || "plus does not zoom".to_owned())?;
    let zoomed = browser.value(picture)?;
    browser.press("ArrowRight")?;
    ensure(browser.value(picture)? != zoomed, || "right does not move".to_owned())?;
    browser.press("0")?;
    ensure(browser.value(picture)? == whole, || "0 does not show all".to_owned())?;
    // Down to a thread's track, and its first call: told in words, with arguments and result.
    let mut told = String::new();
    for _ in 0..TABS_MAX {
        browser.press("ArrowDown")?;
        for _ in 0..3 {
            browser.press("n")?;
            let text = browser.value("document.getElementById('chosen').textContent")?;
            told = text.as_str().unwrap_or_default().to_owned();
            if told.contains("(call)") && told.contains("result: ") {
                break;
            }
        }
        if told.contains("result: ") {
            break;
        }
    }
    ensure(told.contains("(call)") && told.contains("result: "), || format!("told: {told:?}"))?;
    let complaints = browser.complaints();
    ensure(complaints.is_empty(), || complaints.join("; "))?;
    of_a_file(context, folder, &mut browser)
}

/// Colours in the drawing.
const COLOURS: &str = "(() => { const c = document.getElementById('timeline'); \
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, s = new Set(); \
    for (let i = 0; i < d.length; i += 4) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); \
    return s.size; })()";

/// The same page from a file of events.
fn of_a_file(context: &Context, folder: &Path, browser: &mut Browser) -> Result<(), Error> {
    limen(context, folder, &["run", "--trace", "t.json", "--", "true"])?;
    limen(context, folder, &["trace", "t.json", "--html", "again.html"])?;
    browser.open(&folder.join("again.html"), WIDTHS[1], "light")?;
    let complaints = browser.complaints();
    ensure(complaints.is_empty(), || complaints.join("; "))?;
    let tracks = browser.value("data.tracks.length")?;
    ensure(tracks.as_u64() >= Some(2), || format!("{tracks} tracks"))
}

fn compare(context: &Context, folder: &Path) -> Result<(), Error> {
    let words = ["compare", "--with", "pti=off", "--with", "pti=on", "--html", "c.html", "--"];
    limen(context, folder, &[&words[..], &["/bin/true"]].concat())?;
    let page: PathBuf = folder.join("c.html");
    let mut browser = Browser::start(&folder.join("profile"))?;
    look(&mut browser, &page)?;
    let text = browser.value("document.body.innerText")?;
    let has = |part: &str| text.as_str().is_some_and(|text| text.contains(part));
    ensure(has("pti=on") && has("Instructions"), || text.to_string())
}
