//! Tools of others, in a long run: schemathesis, axe-core, promtool, the compiler of TypeScript. Each is installed below
//! the target folder when it is first needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use oarlock_serve::{Access, Config};
use serde_json::{Value, json};
use tokio::process::Command;

use super::support::{Running, Store, TOKEN, eventually, is_long};

/// Longer than an installation takes.
const PATIENCE: Duration = Duration::from_secs(600);

const SCHEMATHESIS: &str = "schemathesis==4.32.5";
const AXE: &str = "axe-core@4.14.0";
const TYPESCRIPT: &str = "typescript@5.9.3";

/// The folder of a tool.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tools").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

async fn output(command: &mut Command) -> Option<Output> {
    let output = command.kill_on_drop(true).output();
    tokio::time::timeout(PATIENCE, output).await.expect("it ends").ok()
}

/// Runs a command that installs a tool; `None`, with the reason, if that fails: there may be no network.
async fn install(command: &mut Command) -> Option<()> {
    let done = output(command).await;
    if done.as_ref().is_some_and(|done| done.status.success()) {
        return Some(());
    }
    skip(&format!("cannot install it: {command:?}: {done:?}"));
    None
}

/// Says why a test is skipped. Where everything must be there, it fails.
pub(super) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("skipped: {why}");
}

/// A package of npm: its folder.
async fn npm(package: &str) -> Option<PathBuf> {
    let (name, folder) = (package.split('@').next().unwrap_or_default(), folder("npm"));
    let installed = folder.join("node_modules").join(name);
    if !installed.join("package.json").is_file() {
        let mut npm = Command::new("npm");
        install(npm.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg(package)).await?;
    }
    Some(installed)
}

/// The program of axe-core.
pub(super) async fn axe() -> Option<String> {
    Some(std::fs::read_to_string(npm(AXE).await?.join("axe.min.js")).unwrap())
}

/// Compiles a file of TypeScript into `to`, with strict rules.
pub(super) async fn compile_typescript(file: &Path, to: &Path) -> Option<()> {
    let compiler = npm(TYPESCRIPT).await?.join("bin/tsc");
    let mut node = Command::new("node");
    node.arg(compiler).args([
        "--strict",
        "--target",
        "es2022",
        "--module",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
    ]);
    node.args(["--moduleResolution", "bundler", "--erasableSyntaxOnly", "--skipLibCheck", "--outDir"])
        .arg(to)
        .arg(file);
    let done = output(&mut node).await?;
    assert!(done.status.success(), "{done:?}");
    Some(())
}

/// Requests that the document of the API describes, and some that it does not: each has an answer that it describes.
#[tokio::test]
async fn schemathesis_finds_no_answer_that_is_not_described() {
    if !is_long() {
        eprintln!("skipped: schemathesis runs in a long run only (OARLOCK_LONG=1)");
        return;
    }
    let folder = folder("schemathesis");
    let program = folder.join("bin/st");
    if !program.is_file() {
        let installed = async {
            install(Command::new("python3").args(["-m", "venv"]).arg(&folder)).await?;
            install(Command::new(folder.join("bin/pip")).args(["install", "--quiet", SCHEMATHESIS])).await
        };
        if installed.await.is_none() {
            return;
        }
    }
    // Without tokens, and with one that may do everything.
    for token in [None, Some(TOKEN)] {
        let store = Store::local();
        let mut config = Config::default();
        config.rate = 1_000_000;
        if let Some(token) = token {
            config.access = Access::token(token).unwrap().allow_break(true);
        }
        let server = Running::with(&store, config).await;
        run_schemathesis(&program, &server, token).await;
        assert_eq!(server.send("GET", "/healthz", "").await.status, 200);
        server.stop().await;
    }
}

async fn run_schemathesis(program: &Path, server: &Running, token: Option<&str>) {
    let document = format!("http://{}/v1/openapi.json", server.address);
    // A stream does not end. A request to lock may be refused although the document describes it: its key stands for
    // another, or takes more permits than there are. A lease is made by the server, and what looks like one is refused.
    for choice in [
        &["--exclude-path-regex", "watch$", "--exclude-method", "POST"][..],
        &["--include-method", "POST", "--exclude-checks", "positive_data_acceptance"],
    ] {
        let mut st = Command::new(program);
        let header = token.map(|token| format!("Authorization: Bearer {token}"));
        st.arg("run").arg(&document).args(["-n", "30", "--seed", "1", "--no-color", "--request-timeout", "90"]);
        st.args(["--phases", "examples,coverage,fuzzing"]).args(choice);
        st.args(header.iter().flat_map(|header| ["-H", header.as_str()])).current_dir(folder("schemathesis"));
        let done = output(&mut st).await.expect("it starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
}

/// The rules, and the metrics themselves.
#[tokio::test]
async fn promtool_accepts_the_rules_and_the_metrics() {
    let Some(promtool) = promtool().await else { return };
    let check = async |arguments: &[&str], input: Option<&Path>| {
        let mut command = Command::new(&promtool);
        command.arg("check").args(arguments);
        if let Some(input) = input {
            command.stdin(std::fs::File::open(input).unwrap());
        }
        let done = output(&mut command).await.expect("it starts");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    };
    let pages: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/observability"].iter().collect();
    check(&["rules", pages.join("alerts.yml").to_str().unwrap()], None).await;
    let dir = tempfile::TempDir::new().unwrap();
    let store = Store::local();
    let server = Running::start(&store).await;
    let granted = server.send("POST", "/v1/locks/x", "").await.json();
    let lease = json!({ "lease": granted["lease"] }).to_string();
    for path in ["/v1/locks/x/renew", "/v1/locks/x/release"] {
        assert_eq!(server.send("POST", path, &lease).await.status, 200);
    }
    let metrics = dir.path().join("metrics");
    std::fs::write(&metrics, server.send("GET", "/metrics", "").await.text).unwrap();
    check(&["metrics"], Some(&metrics)).await;
    server.stop().await;
}

/// Each query of the board, on what a server says before and after its clients have done something: it finds numbers.
#[tokio::test]
async fn promtool_finds_numbers_for_each_query_of_the_board_in_what_a_server_says() {
    let Some(promtool) = promtool().await else { return };
    let (store, mut config) = (Store::local(), Config::default());
    config.sample = Duration::from_millis(100);
    let (server, locks) = (Running::with(&store, config).await, store.connect().await);
    let _held = locks.mutex("held").lock().await.unwrap();
    let metrics = async || server.send("GET", "/metrics", "").await.text;
    let mut said = Vec::new();
    for _ in 0..2 {
        let granted = server.send("POST", "/v1/locks/x", "").await.json();
        let lease = json!({ "lease": granted["lease"] }).to_string();
        for path in ["/v1/locks/x/renew", "/v1/locks/x/release"] {
            assert_eq!(server.send("POST", path, &lease).await.status, 200);
        }
        eventually("it is sampled", || async { metrics().await.contains("oarlock_store_held{") }).await;
        said.push(metrics().await);
    }
    server.stop().await;
    let values: Vec<BTreeMap<&str, &str>> = said
        .iter()
        .map(|text| {
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect()
        })
        .collect();
    let series: Vec<Value> = values[1]
        .iter()
        .map(|(name, after)| {
            let before = values[0].get(name).copied().unwrap_or("_");
            json!({ "series": name, "values": format!("{before}x4 {after}x4") })
        })
        .collect();
    let board: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/observability/grafana.json"].iter().collect();
    let board: Value = serde_json::from_str(&std::fs::read_to_string(board).unwrap()).unwrap();
    let targets = board["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().filter_map(|target| target["expr"].as_str());
    let queries = queries.map(|query| query.replace("$__rate_interval", "5m").replace("$__range", "1h"));
    let asked: Vec<Value> = queries
        .map(|query| {
            json!({
                "expr": format!("count(({query}) >= 0) > bool 0"),
                "eval_time": "7m",
                "exp_samples": [{ "labels": "{}", "value": 1 }],
            })
        })
        .collect();
    assert!(asked.len() >= 10 && series.len() > 50, "{asked:?} {series:?}");
    let tests = json!({ "tests": [{ "interval": "1m", "input_series": series, "promql_expr_test": asked }] });
    let dir = tempfile::TempDir::new().unwrap();
    // JSON is YAML.
    let file = dir.path().join("board.yml");
    std::fs::write(&file, tests.to_string()).unwrap();
    let done = output(Command::new(&promtool).args(["test", "rules"]).arg(&file)).await.expect("it starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

/// Each alert fires on data that it is for, and on no other.
#[tokio::test]
async fn promtool_sees_each_alert_fire_and_rest() {
    let Some(promtool) = promtool().await else { return };
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = crate_dir.join("tests/alerts.yml");
    let rules = std::fs::read_to_string(crate_dir.join("../../docs/observability/alerts.yml")).unwrap();
    let (data, mut alerts) = (std::fs::read_to_string(&tests).unwrap(), 0);
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(data.contains(&format!("alertname: {alert}\n")), "{alert} is not seen to fire");
        assert!(data.contains(&format!("alertname: {alert}, exp_alerts: [] }}")), "{alert} is not seen to rest");
        alerts += 1;
    }
    assert!(alerts >= 7, "{alerts}");
    let done = output(Command::new(&promtool).args(["test", "rules"]).arg(&tests)).await.expect("it starts");
    assert!(done.status.success(), "{done:?}");
}

/// The one of this machine, or in a long run from its Debian package, without its service.
async fn promtool() -> Option<PathBuf> {
    if output(Command::new("promtool").arg("--version")).await.is_some() {
        return Some("promtool".into());
    }
    if !is_long() {
        eprintln!("skipped: there is no promtool, and it is installed in a long run only (OARLOCK_LONG=1)");
        return None;
    }
    let folder = folder("promtool");
    let program = folder.join("usr/bin/promtool");
    if !program.is_file() {
        install(Command::new("apt-get").args(["download", "prometheus"]).current_dir(&folder)).await?;
        install(Command::new("sh").args(["-c", "dpkg-deb -x prometheus_*.deb ."]).current_dir(&folder)).await?;
    }
    Some(program)
}
