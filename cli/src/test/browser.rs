//! A browser without a window, told what to do over a pipe (Chromium's DevTools protocol): for the
//! pages that this program writes.
//!
//! Why it is hard: the protocol's pipe is descriptors 3 and 4, which safe code cannot give to a
//! child; a shell moves them there. Answers come between events, which are kept: what a page says
//! on its console, and what it asks the network for. Neighbour: `pages.rs` says what is checked.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::Error;

/// Descriptors are moved; what the browser itself says goes nowhere. It ends by itself should
/// whoever started it wait for ever.
const START: &str = "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec timeout -k 5 180 chromium \
    --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --remote-debugging-pipe --user-data-dir=\"$0\" about:blank";
/// Events kept at most.
const EVENTS_MAX: usize = 10_000;

/// A browser with one page.
pub(super) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    calls: u64,
    session: Option<String>,
    events: Vec<Value>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.call("Browser.close", json!({}));
        let _ = self.child.wait();
    }
}

impl Browser {
    /// Starts it with a profile of its own.
    pub(super) fn start(profile: &Path) -> Result<Self, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", START]).arg(profile);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("no pipe to the browser")?;
        let from = BufReader::new(child.stdout.take().ok_or("no pipe from the browser")?);
        let mut browser = Self { child, to, from, calls: 0, session: None, events: vec![] };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// One call of the protocol, and its result.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value, Error> {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{call}\0").as_bytes())?;
        loop {
            let message = self.message()?;
            if message["id"] == self.calls {
                return match message.get("error") {
                    Some(error) => Err(format!("{method}: {error}").into()),
                    None => Ok(message["result"].clone()),
                };
            }
        }
    }

    fn message(&mut self) -> Result<Value, Error> {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes)?;
        if bytes.pop() != Some(0) {
            return Err("the browser has ended".into());
        }
        let message: Value = serde_json::from_slice(&bytes)?;
        if message["method"].is_string() && self.events.len() < EVENTS_MAX {
            self.events.push(message.clone());
        }
        Ok(message)
    }

    /// Loads a page in a window of this width, for a reader who likes it light or dark.
    pub(super) fn open(&mut self, page: &Path, width: u32, scheme: &str) -> Result<(), Error> {
        self.events.clear();
        let metrics =
            json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics)?;
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": feature }))?;
        self.call("Page.navigate", json!({ "url": format!("file://{}", page.display()) }))?;
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            self.message()?;
        }
        Ok(())
    }

    /// The value of an expression in the page.
    pub(super) fn value(&mut self, expression: &str) -> Result<Value, Error> {
        let params = json!({ "expression": expression, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params)?;
        match answer.get("exceptionDetails") {
            Some(wrong) => Err(format!("{expression}: {wrong}").into()),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Presses a key: its name, and the text that it types if it types any.
    pub(super) fn press(&mut self, key: &str) -> Result<(), Error> {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let mut down = json!({ "type": "keyDown", "key": key, "windowsVirtualKeyCode": code });
        match key {
            "Enter" => down["text"] = json!("\r"),
            key if key.len() == 1 => down["text"] = json!(key),
            _ => {}
        }
        self.call("Input.dispatchKeyEvent", down)?;
        let up = json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", up).map(|_| ())
    }

    /// What the page has said on its console and asked the network for, since it was opened.
    pub(super) fn complaints(&self) -> Vec<String> {
        let is_own = |url: &str| url.starts_with("file:") || url.starts_with("data:");
        let complaint = |event: &Value| match event["method"].as_str()? {
            "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded" => {
                Some(event["params"].to_string())
            }
            "Network.requestWillBeSent" => {
                let url = event["params"]["request"]["url"].as_str()?;
                (!is_own(url)).then(|| format!("asks for {url}"))
            }
            _ => None,
        };
        self.events.iter().filter_map(complaint).collect()
    }
}
