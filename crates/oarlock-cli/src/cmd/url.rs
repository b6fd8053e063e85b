//! `oarlock url explain`: what a URL means.

use clap::Subcommand;

use oarlock::url::Explanation;
use oarlock_core::text::plain;
use serde_json::json;

use crate::exit::{Code, Exit, Failure};
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
        /// Output format
        #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
        output: Format,
    },
}

pub(crate) fn main(args: &UrlArgs) -> Result<Exit, Failure> {
    let UrlCommand::Explain { url, output: format } = &args.command;
    let url = match url {
        Some(url) => oarlock::url::parse(url)?,
        None => Store::from_environment()?.0,
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
    rows.extend(explained.path.iter().map(|(key, value)| (key.as_str(), plain(value))));
    for option in &explained.options {
        let origin = if option.default { " (default)" } else { "" };
        let choices =
            if option.choices.len() > 1 { format!(", of {}", option.choices.join(", ")) } else { String::new() };
        let value = if option.value.is_empty() { "none".to_owned() } else { plain(&option.value) };
        rows.push((&option.key, format!("{value}{origin}{choices}")));
    }
    rows.extend(explained.warnings.iter().map(|warning| ("warning", warning.clone())));
    let width = rows.iter().map(|(key, _)| key.len()).max().unwrap_or_default();
    rows.iter().map(|(key, value)| format!("{key:width$}  {value}\n")).collect()
}
