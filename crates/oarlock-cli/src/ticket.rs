//! A held lock in written form, as scripts pass it on.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oarlock::LockTicket;

use crate::exit::{Code, Failure};

/// What a ticket in one word begins with; the digit is the version of this form.
const PREFIX: &str = "oarlock1.";

/// More than any ticket has.
const MOST: u64 = 64 * 1024;

/// Which ticket.
#[derive(Debug, clap::Args)]
pub(crate) struct TicketArgs {
    /// The ticket as acquire printed it, or - to read it from standard input; without it, that of `OARLOCK_TICKET`
    #[arg(value_name = "TICKET", conflicts_with = "ticket_file")]
    pub(crate) ticket: Option<String>,
    /// Read the ticket from FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket_file: Option<PathBuf>,
}

/// A ticket as one word of a shell.
pub(crate) fn word(ticket: &LockTicket) -> Result<String, Failure> {
    let json = serde_json::to_vec(ticket).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json)))
}

/// The ticket that the arguments name.
pub(crate) fn read(args: &TicketArgs) -> Result<LockTicket, Failure> {
    let text = match (&args.ticket, &args.ticket_file) {
        (Some(dash), _) if dash == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(MOST).read_to_string(&mut text);
            read.map_err(|error| Failure::os("cannot read the ticket from standard input", error))?;
            text
        }
        (Some(ticket), _) => ticket.clone(),
        (None, Some(file)) => {
            let mut text = String::new();
            let read = File::open(file).and_then(|file| file.take(MOST).read_to_string(&mut text));
            read.map_err(|error| Failure::new(Code::Config, format!("cannot read {}: {error}", file.display())))?;
            text
        }
        (None, None) => std::env::var("OARLOCK_TICKET")
            .map_err(|_| Failure::usage("no ticket: give TICKET, -, --ticket-file FILE or OARLOCK_TICKET"))?,
    };
    parse(text.trim())
}

/// Reads a word or JSON. Its text is a secret, and so no error repeats it.
pub(crate) fn parse(text: &str) -> Result<LockTicket, Failure> {
    let bad = || Failure::usage("this is no ticket: pass it on as acquire printed it");
    if text.starts_with('{') {
        let mut json: serde_json::Value = serde_json::from_str(text).map_err(|_| bad())?;
        // The whole answer of `acquire -o json`, or the ticket in it.
        let ticket = json.get_mut("ticket").map(serde_json::Value::take).unwrap_or(json);
        return serde_json::from_value(ticket).map_err(|_| bad());
    }
    let json = text.strip_prefix(PREFIX).and_then(|word| URL_SAFE_NO_PAD.decode(word).ok()).ok_or_else(bad)?;
    serde_json::from_slice(&json).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ticket_is_refused_and_not_repeated() {
        for text in ["", "x", "{}", "oarlock1.", "oarlock1.%%", "oarlock1.e30", "oarlock2.e30", "{\"format\":1}"] {
            let failure = parse(text).unwrap_err();
            assert_eq!(failure.exit(), Code::Usage.into(), "{text}");
            assert!(text.is_empty() || !failure.message().unwrap_or_default().contains(&format!("\"{text}\"")));
        }
    }
}
