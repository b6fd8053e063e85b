//! A real Chromium, driven by the `DevTools` protocol over a pipe.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::PATIENCE;
use super::tools;

/// Whether the pictures of the documentation are written anew.
pub(super) fn writes_pictures() -> bool {
    std::env::var_os("OARLOCK_WRITE_DOCS").is_some()
}

/// A browser that ends with its test.
pub(super) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: mpsc::Receiver<Value>,
    session: String,
    last: u64,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page; `None`, with the reason, where there is no browser.
    pub(super) async fn open(url: &str) -> Option<Self> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let folders = std::env::split_paths(&std::env::var_os("PATH")?).collect::<Vec<_>>();
        let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let Some(program) = found.into_iter().find(|path| path.is_file()) else {
            tools::skip("there is no chromium on this machine (Debian: apt-get install chromium)");
            return None;
        };
        let profile = TempDir::new().unwrap();
        // The protocol is spoken on the descriptors 3 and 4.
        let script = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null"#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(program).arg(format!("--user-data-dir={}", profile.path().display()));
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--remote-debugging-pipe", "--window-size=1280,800", "--disable-background-networking"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                if let Ok(message) = serde_json::from_slice(&message)
                    && sender.send(message).is_err()
                {
                    return;
                }
            }
        });
        let mut browser = Self { child, input, messages, session: String::new(), last: 0, _profile: profile };
        browser.tab(url).await;
        Some(browser)
    }

    /// Opens one more tab, in front of the others, and returns it: what follows is done there.
    pub(super) async fn tab(&mut self, url: &str) -> String {
        self.session.clear();
        let target = self.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        self.session = self.call("Target.attachToTarget", &attach)["sessionId"].as_str().unwrap().to_owned();
        self.call("Page.enable", &json!({}));
        self.call("Page.bringToFront", &json!({}));
        self.call("Page.navigate", &json!({ "url": url }));
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'").await;
        self.session.clone()
    }

    /// Does what follows in this tab, without bringing it to the front.
    pub(super) fn use_tab(&mut self, tab: &str) {
        tab.clone_into(&mut self.session);
    }

    pub(super) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.input.write_all(format!("{message}\0").as_bytes()).unwrap();
        let give_up = Instant::now() + 2 * PATIENCE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let answer = self.messages.recv_timeout(left).unwrap_or_else(|_| panic!("no answer to {method}"));
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// What an expression is on the page.
    pub(super) fn eval(&mut self, expression: &str) -> Value {
        let evaluation = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", &evaluation);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(super) async fn until(&mut self, expression: &str) {
        let give_up = Instant::now() + PATIENCE;
        while self.eval(expression) != Value::Bool(true) {
            let page = self.eval("document.body.innerText");
            assert!(Instant::now() < give_up, "{expression} is not true; the page: {page}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    pub(super) fn write(&mut self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Presses Tab until what is meant has the focus.
    pub(super) async fn tab_to(&mut self, selector: &str) {
        let wanted = format!("document.activeElement.matches({})", json!(selector));
        for _ in 0..80 {
            if self.eval(&wanted) == Value::Bool(true) {
                return;
            }
            self.press("Tab");
        }
        panic!("no Tab reaches {selector}: {}", self.eval("document.activeElement.outerHTML"));
    }

    /// As on this screen.
    pub(super) fn screen(&mut self, width: u32, height: u32, scale: u32, mobile: bool) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile });
        self.call("Emulation.setDeviceMetricsOverride", &screen);
    }

    pub(super) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "ArrowDown" => 40,
            "End" => 35,
            other => other.to_ascii_uppercase().bytes().next().unwrap_or_default(),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && (key.len() == 1 || key == "Enter") {
                event["text"] = json!(if key == "Enter" { "\r" } else { key });
            }
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    pub(super) fn scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// A picture of the page: kept for the documentation when that is written anew.
    pub(super) fn picture(&mut self, name: &str) {
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        let png = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        assert!(png.len() > 10_000, "{name}: a page of {} bytes is empty", png.len());
        if writes_pictures() {
            let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/img"].iter().collect();
            std::fs::write(Path::new(&folder).join(name), png).unwrap();
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
