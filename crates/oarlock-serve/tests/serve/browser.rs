//! The dashboard in a real Chromium, driven by the `DevTools` protocol over a pipe.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use oarlock_serve::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::{PATIENCE, Running, Store, TOKEN, eventually, is_long};
use super::tools;

/// A browser that ends with its test.
struct Browser {
    child: Child,
    input: ChildStdin,
    messages: mpsc::Receiver<Value>,
    session: String,
    last: u64,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page; `None`, with the reason, where there is no browser.
    async fn open(url: &str) -> Option<Self> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let folders = std::env::split_paths(&std::env::var_os("PATH")?).collect::<Vec<_>>();
        let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let Some(program) = found.into_iter().find(|path| path.is_file()) else {
            eprintln!("skipped: there is no chromium on this machine (Debian: apt-get install chromium)");
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
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", &attach)["sessionId"].as_str().unwrap().to_owned();
        browser.call("Page.enable", &json!({}));
        browser.call("Page.navigate", &json!({ "url": url }));
        browser.until("location.href !== 'about:blank' && document.readyState === 'complete'").await;
        Some(browser)
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
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
    fn eval(&mut self, expression: &str) -> Value {
        let evaluation = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", &evaluation);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    async fn until(&mut self, expression: &str) {
        let give_up = Instant::now() + PATIENCE;
        while self.eval(expression) != Value::Bool(true) {
            let page = self.eval("document.body.innerText");
            assert!(Instant::now() < give_up, "{expression} is not true; the page: {page}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    fn write(&mut self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    fn press(&mut self, key: &str) {
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

    fn scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// A picture of the page: kept for the documentation when that is written anew.
    fn picture(&mut self, name: &str) {
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        let png = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        assert!(png.len() > 10_000, "{name}: a page of {} bytes is empty", png.len());
        if std::env::var_os("OARLOCK_WRITE_DOCS").is_some() {
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

/// Runs `check` while two processes wait for each other.
async fn deadlock(server: &Running, check: impl Future<Output = ()>) {
    let take = async |name: &str, pid: u32, wait: u64| {
        let label = json!({ "host": "build-7", "pid": pid, "user": "ci" });
        let body = json!({ "wait_ms": wait, "label": label }).to_string();
        server.send("POST", &format!("/v1/locks/{name}"), &body).await.status
    };
    assert_eq!((take("circle%2Fa", 1, 0).await, take("circle%2Fb", 2, 0).await), (201, 201));
    tokio::select! {
        () = check => {}
        _ = async { tokio::join!(take("circle%2Fa", 2, 60_000), take("circle%2Fb", 1, 60_000)) } => {
            panic!("they wait for each other")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_works_by_keyboard_alone() {
    let store = Store::local();
    let (server, locks) = (Running::guarded(&store).await, store.connect().await);
    let hostile = "<img src=x onerror=\"window.hacked=1\">\u{202e}";
    let guard = locks.mutex("deploy/prod").reason("release 2.3").lock().await.unwrap();
    let other = locks.mutex(hostile).reason("<script>hacked=1</script>").lock().await.unwrap();
    let _third = locks.rwlock("report").read().await.unwrap();
    let mut waiting = Vec::new();
    for reason in ["first in line", "second in line"] {
        let wait = locks.mutex("deploy/prod").fair().reason(reason).wait(PATIENCE);
        waiting.push(tokio::spawn(async move { wait.lock().await }));
        let count = || async { locks.inspect("deploy/prod").await.unwrap().waiters.count() };
        eventually("it waits", || async { count().await == Some(waiting.len()) }).await;
    }
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };

    // The token: a wrong one, then the right one.
    for (token, next) in [("wrong", "!document.getElementById('token-wrong').hidden"), (TOKEN, "order.length === 3")] {
        browser.until("document.getElementById('token').open && document.activeElement.id === 'token-input'").await;
        browser.write(token);
        browser.press("Enter");
        browser.until(next).await;
    }
    assert_eq!(browser.eval("location.href.includes('token') || document.body.innerHTML.includes('a-token')"), false);

    // The list: the oldest waiter first, everything as text.
    assert_eq!(browser.eval("order[0]"), "deploy/prod");
    browser.until("document.querySelector('#space .row .holder').textContent.includes('release 2.3')").await;
    assert_eq!(
        browser.eval("window.hacked === undefined && !document.querySelector('#space img, #space script')"),
        true
    );
    browser.until("[...document.querySelectorAll('#space .name')].some((name) => name.textContent.startsWith('<img') && name.textContent.endsWith('\\\\u{202e}'))").await;

    // Live, within a second on a quiet machine.
    let begun = Instant::now();
    let fresh = locks.mutex("fresh").lock().await.unwrap();
    browser.until("order.includes('fresh')").await;
    let took = begun.elapsed();
    println!("a change is drawn after {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    fresh.release().await.unwrap();
    browser.until("!order.includes('fresh')").await;

    // What a picture should show.
    other.release().await.unwrap();
    let _more = (
        locks.mutex("billing/invoices").reason("nightly run").lock().await.unwrap(),
        locks.semaphore("encoders", 3).reason("holiday.mov").acquire(2).await.unwrap(),
        locks.election("scheduler").campaign("node-3:8080").await.unwrap(),
    );
    browser.until("order.length === 5").await;

    // Filter, select and open, by keys.
    browser.press("/");
    browser.write("deploy/*");
    browser.until("order.length === 1").await;
    for (scheme, name) in [("light", "serve-light.png"), ("dark", "serve-dark.png")] {
        browser.scheme(scheme);
        browser.eval("document.getElementById('filter').value = ''; arrange()");
        browser.until("order.length === 5").await;
        browser.picture(name);
        browser.eval("document.getElementById('filter').value = 'deploy/*'; arrange()");
    }
    browser.press("Enter");
    browser.until("location.hash === '#/lock/deploy%2Fprod' && !document.getElementById('lock').hidden").await;
    browser.until("document.getElementById('lock').innerText.includes('Queue, in order: 2')").await;
    let page = browser.eval("document.getElementById('lock').innerText").as_str().unwrap().to_owned();
    let (first, second) = (page.find("first in line").unwrap(), page.find("second in line").unwrap());
    assert!(first < second && page.contains("oarlock show deploy/prod"), "{page}");
    browser.until("document.querySelectorAll('#lock svg rect').length > 0").await;
    browser.picture("serve-lock.png");

    // Break: not without the name, then with it.
    browser.eval("document.querySelector('#lock button.danger').focus()");
    browser.press("Enter");
    browser.until("document.getElementById('break').open").await;
    assert_eq!(browser.eval("document.activeElement.id"), "break-name");
    browser.write("deploy/pro");
    assert_eq!(browser.eval("document.getElementById('break-do').disabled"), true);
    browser.write("d");
    browser.until("!document.getElementById('break-do').disabled").await;
    for _ in 0..3 {
        browser.press("Tab");
    }
    assert_eq!(browser.eval("document.activeElement.id"), "break-do");
    browser.press("Enter");
    browser.until("document.getElementById('break-answer').textContent.startsWith('asked ')").await;
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder is told");
    let next = waiting.into_iter().next().unwrap().await.unwrap().unwrap();
    assert!(next.is_held());
    browser.press("Escape");
    browser.press("Escape");
    browser.until("!document.getElementById('list').hidden").await;

    // An address that is no name shows the list; a name is no option of a command.
    browser.eval("location.hash = '#/lock/%'");
    browser.until("location.hash === '#/lock/%' && !document.getElementById('list').hidden").await;
    let _option = locks.mutex("--help").lock().await.unwrap();
    browser.eval("location.hash = '#/lock/--help'");
    browser.until("document.getElementById('lock').innerText.includes(' -- --help')").await;
    assert_eq!(browser.eval("document.getElementById('lock').innerText.includes('show --help')"), false);
    browser.eval("location.hash = '#/'");
    browser.until("!document.getElementById('list').hidden").await;

    // The graph.
    browser.press("g");
    browser.until("document.getElementById('graph').innerText.includes('Who waits for whom')").await;
    deadlock(&server, async {
        browser.until("document.querySelectorAll('svg.graph g.cycle').length === 2").await;
        let marked = "[...document.querySelectorAll('svg.graph path.cycle:not(.head)')].length === 2";
        browser.until(marked).await;
        browser.picture("serve-graph.png");
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_scroll_without_stutter_and_fit_a_phone() {
    let locks = oarlock::connect("mem:").await.unwrap();
    let mut guards = Vec::new();
    for number in 0..10_000 {
        guards.push(locks.mutex(format!("job/{number}")).lock().await.unwrap());
    }
    let mut config = Config::default();
    config.listen = "127.0.0.1:0".parse().unwrap();
    let server = oarlock_serve::Server::bind(locks, config).await.unwrap();
    let address = server.address();
    let running = tokio::spawn(server.run(std::future::pending()));
    let Some(mut browser) = Browser::open(&format!("http://{address}/")).await else { return };
    browser.until("typeof order !== 'undefined' && order.length === 10000").await;
    assert!(
        browser.eval("document.querySelectorAll('#space .row').length").as_u64().unwrap() < 60,
        "only what is seen"
    );
    // The work of a frame: drawing while it scrolls from end to end.
    let frames = browser.eval(
        "(async () => { const box = document.getElementById('rows'), took = []; \
         for (let at = 0; at < 120; at++) { box.scrollTop = at * box.scrollHeight / 120; \
         await new Promise(requestAnimationFrame); const begun = performance.now(); draw(); took.push(performance.now() - begun); } \
         took.sort((a, b) => a - b); return [took[60], took[114], took[119]]; })()",
    );
    let arranged =
        browser.eval("(() => { const begun = performance.now(); arrange(); return performance.now() - begun; })()");
    println!("10,000 locks: a frame is drawn in {frames} ms (p50, p95, longest); sorted in {arranged} ms");
    assert!(frames[1].as_f64().unwrap() < 160.0, "{frames}: 16 ms is a frame, and this machine may be busy");
    browser.press("End");
    browser.until("selected === order[9999] && document.querySelector('#space .selected') !== null").await;
    // A phone.
    let phone = json!({ "width": 360, "height": 720, "deviceScaleFactor": 2, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", &phone);
    browser.until("innerWidth === 360 && document.documentElement.scrollWidth <= 360").await;
    browser.until("document.querySelector('#space .row .name').getBoundingClientRect().width > 150").await;
    browser.picture("serve-phone.png");
    drop(browser);
    running.abort();
}

/// The rules of axe-core: names of controls, contrast, order of headings, roles.
#[tokio::test(flavor = "multi_thread")]
async fn every_view_is_accessible() {
    if !is_long() {
        eprintln!("skipped: axe-core is installed in a long run only (OARLOCK_LONG=1)");
        return;
    }
    let Some(axe) = tools::axe().await else { return };
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let mut guards = Vec::new();
    for name in ["deploy/prod", "import"] {
        guards.push(locks.mutex(name).reason("release 2.3").lock().await.unwrap());
    }
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    browser.until("document.body.innerText.includes('deploy/prod')").await;
    browser.eval(&axe);
    deadlock(&server, async {
        for scheme in ["light", "dark"] {
            browser.scheme(scheme);
            for (view, ready) in [
                ("#/", "document.body.innerText.includes('deploy/prod')"),
                ("#/lock/import", "document.getElementById('lock').innerText.includes('release 2.3')"),
                ("#/graph", "document.querySelectorAll('svg.graph g.cycle').length === 2"),
            ] {
                browser.eval(&format!("location.hash = '{view}'"));
                browser.until(ready).await;
                let found = browser.eval(
                    "axe.run().then(({ violations }) => violations.map(({ id, impact, nodes }) =>
                        `${id} (${impact}): ${nodes.map((node) => node.html).join(' | ')}`).join('\\n'))",
                );
                assert_eq!(found, "", "{view}, {scheme}");
            }
        }
    })
    .await;
    drop(guards);
    server.stop().await;
}
