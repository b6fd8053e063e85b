//! A build without features pulls in no client of any store and no TLS.

use anyhow::Context as _;

use crate::workspace::{Failure, Workspace, shown, stream, succeeded};

/// Clients, and what clients bring along. A crate counts under its exact name.
const FORBIDDEN: &[&str] = &[
    // clients of stores
    "etcd-client",
    "libsqlite3-sys",
    "mysql",
    "mysql_async",
    "mysql_common",
    "postgres",
    "postgres-protocol",
    "redis",
    "redis-protocol",
    "rusqlite",
    "sqlx",
    "sqlx-core",
    "tokio-postgres",
    "zookeeper-client",
    // TLS
    "aws-lc-rs",
    "aws-lc-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
    "ring",
    "rustls",
    "tokio-native-tls",
    "tokio-rustls",
    // HTTP and RPC
    "axum",
    "h2",
    "hyper",
    "prost",
    "reqwest",
    "tonic",
];

/// Proves it with the dependency tree, then checks that such a build compiles.
/// In a long run, also that the command line exports to a collector of OpenTelemetry: what that needs is built for no
/// other test.
pub(crate) fn run(workspace: &Workspace, long: bool) -> Result<(), Failure> {
    let mut tree = workspace.cargo([
        "tree",
        "-p",
        "oarlock",
        "--no-default-features",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--locked",
    ]);
    let line = shown(&tree);
    println!("$ {line}");
    let output = tree.output().with_context(|| format!("cannot start `{line}`"))?;
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    succeeded(output.status, &line)?;
    let count = scan(&String::from_utf8_lossy(&output.stdout)).map_err(Failure::new)?;
    println!("{count} crates, none of them a client or TLS");
    stream(&mut workspace.cargo(["check", "-p", "oarlock", "--no-default-features", "--locked"]))?;
    if long {
        let otel = ["test", "-p", "oarlock-cli", "--no-default-features", "--features", "otel,serve", "--test", "otel"];
        stream(&mut workspace.cargo(otel.into_iter().chain(["--locked"])))?;
    }
    Ok(())
}

/// Counts the different crates of a dependency tree, printed with or without its branches.
///
/// # Errors
/// When a forbidden crate is among them, or when the text is not the tree of `oarlock`.
fn scan(tree: &str) -> Result<usize, String> {
    let mut crates: Vec<_> = tree.lines().filter_map(crate_name).collect();
    if crates.first() != Some(&"oarlock") {
        return Err("this is not the dependency tree of oarlock".to_owned());
    }
    crates.sort_unstable();
    crates.dedup();
    let found: Vec<_> = crates.iter().copied().filter(|name| FORBIDDEN.contains(name)).collect();
    if found.is_empty() {
        Ok(crates.len())
    } else {
        Err(format!("oarlock without features must stay free of clients and TLS, but pulls in {}", found.join(", ")))
    }
}

fn crate_name(line: &str) -> Option<&str> {
    line.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "\
oarlock v0.1.0 (/src/crates/oarlock)
oarlock-core v0.1.0 (/src/crates/oarlock-core)
tokio v1.54.0
tracing v0.1.41
tokio v1.54.0 (*)
";

    #[test]
    fn a_clean_tree_passes() {
        assert_eq!(scan(CLEAN), Ok(4));
    }

    #[test]
    fn every_forbidden_crate_is_found() {
        for name in FORBIDDEN {
            let why = scan(&format!("{CLEAN}{name} v1.2.3\n")).expect_err(name);
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn branches_do_not_hide_a_crate() {
        let tree = "oarlock v0.1.0 (/src)\n├── tokio v1.54.0\n│   └── rustls v0.23.0 (*)\n";
        let why = scan(tree).expect_err("rustls is there");
        assert!(why.contains("rustls"), "{why}");
    }

    #[test]
    fn a_name_that_only_resembles_is_free() {
        assert_eq!(scan(&format!("{CLEAN}ring-buffer v1.0.0\n")), Ok(5));
    }

    #[test]
    fn an_empty_tree_proves_nothing() {
        assert!(scan("").is_err());
        assert!(scan("warning: nothing to print\n").is_err());
    }
}
