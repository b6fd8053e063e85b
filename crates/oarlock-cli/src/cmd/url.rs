//! `oarlock url explain`: what a URL means.

use clap::Subcommand;

use oarlock::url::Explanation;
use oarlock_core::text::plain;
use serde_json::json;

use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::messages::Messages;
use crate::output::{self, Format};
use crate::store::Store;

/// Explain the URLs of stores
#[derive(Debug, clap::Args)]
pub(crate) struct UrlArgs {
    #[command(subcommand)]
    pub(crate) command: UrlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UrlCommand {
    /// Print what a URL means, without its password
    #[command(
        after_help = "Every URL takes the keys prefix, ttl, connect_timeout, op_timeout and max_waiters; some stores have more."
    )]
    Explain {
        /// The URL; without it, the one that would be used
        url: Option<String>,
        #[arg(from_global)]
        profile: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
        output: Format,
    },
}

pub(crate) const EXAMPLES: Examples =
    &[("oarlock url explain redis://localhost", "What a URL means, with all its options.")];

pub(crate) fn main(args: &UrlArgs) -> Result<Exit, Failure> {
    let UrlCommand::Explain { url, profile, output: format } = &args.command;
    let url = match url {
        Some(url) => oarlock::url::parse(url)?,
        None => Store::chosen(profile.as_deref(), None, Messages::default())?.url,
    };
    let explained = url.explain();
    match format {
        Format::Table => output::print(&text(&explained))?,
        Format::Json => output::print_json(&json!(explained))?,
        Format::Jsonl => output::print_line(&json!(explained).to_string())?,
        Format::Name => output::print_line(&explained.url)?,
    }
    Ok(Code::Success.into())
}

/// What a store promises about its own data.
fn consistency(explained: &Explanation) -> &'static str {
    match explained.driver.as_str() {
        "etcd" | "zookeeper" => "consensus: a majority agrees before a write is acknowledged",
        "redlock" => "timing: safe while clocks and delays stay within bounds",
        "redis" => "one server; best effort with replicas, eviction or without persistence (min_replicas: timing)",
        "postgres" | "mysql" => "one durable server; a failover without synchronous replicas may forget grants",
        _ => "one machine",
    }
}

fn text(explained: &Explanation) -> String {
    let mut rows = vec![
        ("url", explained.url.clone()),
        ("scheme", explained.scheme.clone()),
        ("store", explained.store.clone()),
        ("driver", explained.driver.clone()),
        ("encrypted", if explained.tls { "yes" } else { "no" }.to_owned()),
    ];
    rows.extend(explained.user.iter().map(|user| ("user", plain(user))));
    if explained.password {
        rows.push(("password", "***".to_owned()));
    }
    rows.extend(explained.hosts.iter().map(|host| ("host", host.clone())));
    let directory = (explained.url == "local:").then(|| oarlock_local::default_dir().ok()).flatten();
    rows.extend(explained.path.iter().map(|(key, value)| {
        let real = directory.as_ref().map(|dir| format!("{}, ", plain(&dir.display().to_string())));
        (key.as_str(), format!("{}{}", real.unwrap_or_default(), plain(value)))
    }));
    rows.push(("consistency", consistency(explained).to_owned()));
    for option in &explained.options {
        let origin = if option.default { " (default)" } else { "" };
        // A lock of a transaction is known so that its refusal says why; it is nothing to choose.
        let choices: Vec<&str> =
            option.choices.iter().map(AsRef::as_ref).filter(|choice| *choice != "transaction").collect();
        let choices = if choices.len() > 1 { format!(", of {}", choices.join(", ")) } else { String::new() };
        let value = if option.value.is_empty() { "none".to_owned() } else { plain(&option.value) };
        rows.push((&option.key, format!("{value}{origin}{choices}")));
    }
    rows.extend(explained.warnings.iter().map(|warning| ("warning", warning.clone())));
    let width = rows.iter().map(|(key, _)| key.len()).max().unwrap_or_default();
    rows.iter().map(|(key, value)| format!("{key:width$}  {value}\n")).collect()
}
